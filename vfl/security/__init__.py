"""Private set intersection and signatures."""
