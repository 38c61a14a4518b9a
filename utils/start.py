"""What must happen in a script before PyTorch is imported, which takes seconds. Every script imports this module first."""

import glob
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from utils import signals  # noqa: F401  notes the parent process: torchrun may be killed while PyTorch is imported
from utils.config import is_weights, unknown_text
from utils.files import missing_text
from utils.migration import SCRIPTS, constants_of
from utils.text import brief

# Threads that wait in a busy loop starve each other when other programs need the cores. GNU OpenMP reads this when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
INPUTS = ("checkpoint", "weights", "source", "data", "train", "val", "apply")  # constants with the path of what exists
DRAWN = "data/demo"  # train.py draws it if it is missing
SUFFIXES = (".txt", ".json", ".yaml", ".csv", ".zip")  # of files to read; weights have their own


def wrong_word(words: Sequence[str], constants: Collection[str], only_inputs: bool) -> str | None:
    """Returns the message for the first word of a command line with an unknown constant or a missing file, None without one.

    It leaves all that is less certain to the script. `only_inputs`: words without a name are files to read."""
    for word in words:
        name, equals, value = word.partition("=")
        if os.path.exists(word):
            continue
        if equals and name.isidentifier() and name not in constants:
            return unknown_text(word, constants)
        path = value if name in INPUTS else word
        is_input = name in INPUTS or (only_inputs and not equals)
        resumes = any(other.startswith("resume=") for other in words)  # a resumed run does not need all files again
        if is_input and is_path(path) and not os.path.exists(path) and not resumes:
            return f"{brief(word)}: {missing_text(path)}"
    return None


def is_path(word: str) -> bool:
    """Whether a word can only be the path of one file or folder: no address, pattern, list, run, number or fold."""
    if "://" in word or "," in word or glob.has_magic(word) or word.startswith(("~", "-", "$", DRAWN)):
        return False
    if word.replace("/", "").isdecimal():  # val=1/5
        return False
    return "/" in word or os.sep in word or is_weights(word) or word.lower().endswith(SUFFIXES)


def end_in_one_line(kind: type[BaseException], error: BaseException, trace) -> None:
    """Prints an error that ended the program as Python does, but for Ctrl-C a line without a traceback."""
    if issubclass(kind, KeyboardInterrupt):
        signals.print_at_once("stopped")
    else:
        sys.__excepthook__(kind, error, trace)


def begin(script: Path) -> None:
    """Prepares the Python process of a script: checks the words of its command line, and makes Ctrl-C end it with one line."""
    sys.excepthook = end_in_one_line
    if "TORCHELASTIC_RUN_ID" in os.environ:  # each process would print it
        return
    constants = constants_of(script)
    if constants and (message := wrong_word(sys.argv[1:], constants, script.name in SCRIPTS)):
        raise SystemExit(f"\n{message}")


_main = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
_is_here = _main.is_file() and Path(__file__).parents[1] in _main.resolve().parents  # no file: `python -`, "<stdin>"
if _is_here and "from utils import start" in _main.read_text("utf-8"):
    begin(_main)  # not in a notebook, a test or a program of the user
