"""What must happen in a script before PyTorch is imported, which takes seconds. Every script imports this module first."""

from utils.ctrl_c import SCRIPT  # first of all: from here on Ctrl-C ends it in one line

# isort: split
import gc
import os
import re
import sys
import time
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path

from utils import signals  # noqa: F401  notes the parent process: torchrun may be killed while PyTorch is imported
from utils.config import unknown_text
from utils.migration import constants_of
from utils.text import pip

BEGAN = time.perf_counter()  # of the program, for the account of its time

# Threads that wait in a busy loop starve each other when other programs need the cores. GNU OpenMP reads this when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def misspelled(words: Sequence[str], constants: Collection[str]) -> str | None:
    """Returns the message for the first word name=value whose name is none of the constants, None without one."""
    for word in words:
        name, equals, _ = word.partition("=")
        if equals and name.isidentifier() and name not in constants and not os.path.exists(word):
            return unknown_text(word, constants)
    return None


def install_line(build: str) -> str:
    """Returns the command that replaces PyTorch by a build of it: "cpu" or "cu126", as in its version, otherwise that of PyPI."""
    index = f" --index-url https://download.pytorch.org/whl/{build}" if re.fullmatch(r"cpu|cu\d+", build) else ""
    return f"{pip('uninstall torch torchvision')} && {pip(f'install torch torchvision{index}')}"


def unfit_torchvision() -> str | None:
    """Returns the message if torchvision does not fit to torch, which only the first evaluation would find; None if it fits.

    Where their versions leave a doubt, torchvision is imported here, which takes seconds.
    """
    try:
        version, other = metadata.version("torch"), metadata.version("torchvision")
        base, _, build = version.partition("+")
        pinned = re.search(r"\btorch ?\(?==([^;),]+)", " ".join(metadata.requires("torchvision") or ()))
        if build != other.partition("+")[2] or (pinned and pinned[1] != base):
            import_torchvision()
    except metadata.PackageNotFoundError as missing:
        return f"this Python has no {missing.name}: activate the environment, or pip install -r requirements.txt"
    except (ImportError, RuntimeError) as error:
        fault = str(error).splitlines()[0]
        return f"torch {version} and torchvision {other} are of different builds ({fault}): {install_line(build)}"
    return None


def import_torchvision() -> None:
    """Raises ImportError or RuntimeError if NMS of torchvision cannot run where torch computes."""
    import torch
    import torchvision.ops  # noqa: F401  both are slow to import

    if torch.version.cuda and torch.ops.torchvision._cuda_version() == -1:
        raise RuntimeError("torchvision has no CUDA")


def import_opencv() -> None:
    """Imports OpenCV. Raises SystemExit with the fix if it is missing, or lacks a library of the system."""
    try:
        import cv2  # noqa: F401  slow to import, so that Ctrl-C may come meanwhile
    except ModuleNotFoundError as missing:
        fix = "begin with uv run, activate the environment, or pip install -r requirements.txt"
        raise SystemExit(f"this Python has no {missing.name}: {fix}") from missing
    except ImportError as missing:  # mostly libGL.so.1, on servers and in containers
        fix = " && ".join(
            [pip("uninstall opencv-python opencv-python-headless"), pip("install opencv-python-headless")]
        )
        raise SystemExit(
            f"OpenCV cannot be imported ({missing}). One that needs no library of the system: {fix}"
        ) from missing


def begin(script: Path) -> None:
    """Prepares the Python process of a script: checks its packages and the words of its command line."""
    gc.disable()  # imports leave no garbage, and collections between them take 0.2 s; `run_script` enables them
    import_opencv()
    try:
        os.getcwd()
    except FileNotFoundError:  # MKL would end the process while PyTorch is imported
        raise SystemExit("\nthe current folder was deleted: cd to one that exists") from None
    if "TORCHELASTIC_RUN_ID" in os.environ:  # each process would print it
        return
    constants = constants_of(script)
    if constants and (message := misspelled(sys.argv[1:], constants) or unfit_torchvision()):
        raise SystemExit(f"\n{message}")


if SCRIPT:
    begin(Path(SCRIPT))
