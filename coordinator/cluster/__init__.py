"""The coordinator on Ray: its actor, and its transports to actors of parties, of shards and of shared worker processes."""
