"""`python -m vfl`: the command line."""

from __future__ import annotations

from vfl.apps.cli import main

if __name__ == "__main__":
    main()
