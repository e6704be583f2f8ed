"""The wire between organisations: frames, plain values and vectors over gRPC with mutual TLS."""
