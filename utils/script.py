"""How an entry script starts: mistakes of the user end in one line with its cure, mistakes of ours in a traceback."""

import sys
from collections.abc import Callable

import torch

from utils.checkpoint import CheckpointError


def run(main: Callable[[], object], mistakes: tuple[type[Exception], ...], stopped: str, lower: str) -> None:
    """Calls `main`. Its `mistakes`, errors of the system (a full disk, no permission) and a GPU without memory end the
    program with their message; `stopped` is said after Ctrl-C, `lower` names the constants that save memory."""
    for stream in (sys.stdout, sys.stderr):  # a class name that the terminal has no letters for must not end a training
        stream.reconfigure(errors="replace")
    try:
        main()
    except torch.cuda.OutOfMemoryError as error:
        raise SystemExit(f"\nCUDA out of memory: {lower}") from error
    except (ValueError, OSError, CheckpointError, *mistakes) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(f"\n{stopped}") from None
