"""Messages between participants, their plain form, and the streams that carry them.

`messages` are calls and notices, `kinds` turns objects into plain values and back, `wire` is the gRPC stream (the only
importer of gRPC), `federation` names the participants, and `shards` divides the rows of one party. Begin with `messages`.
"""
