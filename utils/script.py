"""How an entry script starts: mistakes of the user end in one line with its cure, mistakes of ours in a traceback.

Of several processes each says what is its own fault, and the others stay quiet, so that the cause is not buried.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable

import torch

from utils.checkpoint import CheckpointError
from utils.distributed import Elsewhere, lost_the_others

TURN = 1.0  # seconds by which other processes leave the first word to that which failed first, or to the first of a machine


def run(main: Callable[[], object], mistakes: tuple[type[Exception], ...], stopped: str, lower: str) -> None:
    """Calls `main`. Its `mistakes`, errors of the system (a full disk, no permission) and a GPU without memory end the
    program with their message; `stopped` is said after Ctrl-C, `lower` names the constants that save memory."""
    for stream in (sys.stdout, sys.stderr):  # a class name that the terminal has no letters for must not end a training
        stream.reconfigure(errors="replace")
    try:
        main()
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        _end(error.code, error)
    except torch.cuda.OutOfMemoryError as error:
        _end(f"CUDA out of memory: {lower}", error)
    except (ValueError, OSError, CheckpointError, *mistakes) as error:
        _end(f"{type(error).__name__}: {error}", error)
    except KeyboardInterrupt:
        raise SystemExit(f"\n{stopped}") from None
    except Elsewhere:
        time.sleep(2 * TURN)
        raise SystemExit(1) from None
    except Exception as error:
        if lost_the_others(error):
            time.sleep(2 * TURN)  # torchrun will have ended this process by now, where it has seen the other one fail
            why = str(error).partition("\n")[0]
            message = f"lost the other processes, whose messages say why, or waited longer than timeout_minutes= for them ({why})"
            _tell_torchrun(message)
            raise SystemExit(f"{_who()}{message}") from None
        _tell_torchrun(traceback.format_exc())
        raise


def _end(message: str, error: BaseException) -> None:
    """Ends the program with the message. What all processes have to say alike, the first of a machine says alone."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(TURN)
    _tell_torchrun(message)
    raise SystemExit(f"\n{_who()}{message}") from error


def _who() -> str:
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


def _tell_torchrun(message: str) -> None:
    """Puts the message where torchrun takes the cause of a failure from for its last words."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        cause = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(cause, file)
        except OSError:  # it is said on the terminal as well
            pass
