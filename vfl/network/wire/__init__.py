"""Transport between organisations: frames of plain values and vectors, over gRPC with mutual TLS."""
