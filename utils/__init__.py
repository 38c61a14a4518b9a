"""What needs no other room: boxes, images, text, files, constants, checkpoints, processes. One idea per file."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  Python 3.8 can read this file and the scripts, but not what they import
    raise SystemExit(
        "Thaw needs Python 3.11 or newer, and this is {}.{}: make the environment with a newer one, as in "
        "python3.12 -m venv .venv".format(*sys.version_info)
    )

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported, which otherwise sends usage data
