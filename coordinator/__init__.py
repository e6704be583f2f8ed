"""The coordinator: samples blocks, keeps the shared margins Xw, charges every release before it is made."""
