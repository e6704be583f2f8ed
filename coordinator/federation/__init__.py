"""The coordinator's side of a federation of organisations. Parties connect to it, and it calls them over their streams."""
