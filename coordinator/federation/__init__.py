"""The coordinator's side of a federation of organisations: parties connect to it, and it calls them."""
