"""The parties: each holds its own columns and answers queries over them."""
