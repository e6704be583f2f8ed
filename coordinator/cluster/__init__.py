"""The coordinator on Ray: its actor, its transports to actors of parties and shards, and shared worker processes."""
