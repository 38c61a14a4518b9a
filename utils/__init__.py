"""What needs no other room: boxes, images, text, files, constants, checkpoints, processes. One idea per file."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  Python 3.8 can read this file and the scripts, but not what they import
    raise SystemExit(
        "Thaw needs Python 3.11 or newer, and this is {}.{}: make the environment with a newer one, as in "
        "python3.12 -m venv .venv".format(*sys.version_info)
    )
try:
    import cv2  # noqa: F401
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"this Python has no {missing.name}: begin with uv run, activate the environment, or pip install -r requirements.txt"
    ) from missing
except ImportError as missing:  # mostly libGL.so.1, on servers and in containers
    raise SystemExit(
        f"OpenCV cannot be imported ({missing}). One that needs no library of the system: pip uninstall -y opencv-python "
        f"opencv-python-headless && pip install opencv-python-headless"
    ) from missing
