"""Programs around training, which nothing else imports: `python -m tools.check`, convert, suspects and compare."""

import utils  # noqa: F401  before OpenCV: it explains a missing system library
