"""Set up before anything imports torch."""

from __future__ import annotations

import os

# The tensors here are tiny: threads of several workers on the same cores only wait for each other.
# Commands that the tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
