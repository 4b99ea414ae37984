"""`python -m pagedkv` does what the `pagedkv` script does."""

from __future__ import annotations

import sys

from pagedkv.cli import main

# Guarded: a process that multiprocessing spawns imports this module once more.
if __name__ == "__main__":
    sys.exit(main())
