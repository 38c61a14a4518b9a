"""Ctrl-C ends a script in one line from its first import on. This module imports only what Python has loaded before."""

import os
import sys


def end_in_one_line(kind: type[BaseException], error: BaseException, trace) -> None:
    """Prints an error that ended the program as Python does, but for Ctrl-C a line without a traceback."""
    if issubclass(kind, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        os.write(2, b"\nstopped\n")  # without the buffers of Python, in which the program may have been writing
    else:
        sys.__excepthook__(kind, error, trace)


def running_script() -> str | None:
    """Returns the path of the script of this project that runs; None in a notebook, a test or a program of the user."""
    main = getattr(sys.modules["__main__"], "__file__", None) or ""  # none: `python -`, "<stdin>"
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not os.path.isfile(main) or not os.path.realpath(main).startswith(root + os.sep):
        return None
    with open(main, encoding="utf-8") as file:
        return main if "from utils import start" in file.read() else None


SCRIPT = running_script()
if SCRIPT:
    sys.excepthook = end_in_one_line
