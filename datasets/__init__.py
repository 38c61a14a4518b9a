"""From files to batches. Knows nothing of models or processes."""

import utils.boxes  # noqa: F401  first of all: it says what to do where OpenCV misses a library of the system
