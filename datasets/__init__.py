"""From files to batches: annotations, images, augmentation, loading. Imports utils only."""

import utils  # noqa: F401  before OpenCV: it explains a missing system library
