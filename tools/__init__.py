"""Programs around training, which nothing else imports: `python -m tools.check`, `python -m tools.convert`."""

import utils  # noqa: F401  before OpenCV: it explains a missing system library
