"""The coordinator: samples blocks, keeps the shared margins Xw, and charges every release before it is made."""
