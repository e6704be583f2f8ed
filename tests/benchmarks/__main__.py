"""`python -m tests.benchmarks`: see `command`."""

import sys

from tests.benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
