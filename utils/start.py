"""What must happen in a script before PyTorch is imported. Every script imports this module first."""

import os

from utils import signals  # noqa: F401  notes the parent process: torchrun may be killed while PyTorch is imported

# Threads that wait in a busy loop starve each other when other programs need the cores. GNU OpenMP reads this when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
