"""State of the coordinator between queries: margins in one process, margins in row shards, or only the public model."""
