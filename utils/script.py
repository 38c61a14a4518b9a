"""Runs the entry scripts: errors that a user can fix end in one message."""

import gc
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from utils import processes
from utils.text import error_text

PAUSE = 1.0  # seconds by which a process delays its error, so that the rank with the cause prints first


def command_line(script: str, words: Sequence[str]) -> str:
    """Returns the command that starts the running script with other words, quoted for the shell: python train.py resume=runs/x.

    Under torchrun, its options are left out. If another program uses the file `script`, only the words are returned.
    """
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    if Path(sys.argv[0]).resolve() != Path(script).resolve():
        return join(words)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun ... " + join([sys.argv[0], *words])
    return join(["python", sys.argv[0], *words])


@contextmanager
def without_old_garbage() -> Iterator[None]:
    """Garbage collections in the block leave out the objects from before: all modules and the model would take 0.2 s each."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # else what a failed run leaves could never be freed


def run_script(main: Callable[[], object], stopped: str, memory_advice: str) -> None:
    """Runs an entry script. User errors end it with one message that names the fix; other errors keep their traceback.

    `stopped` is printed after Ctrl-C, unless a note of the error says how to continue; `memory_advice` names the constants that
    save memory. Of several processes only those that failed by themselves print their error, so that the cause stays visible.
    """
    gc.freeze()  # later collections leave the imported modules out
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # characters that the terminal does not have; a log file or a pipe gets each line at once
            stream.reconfigure(errors="replace", line_buffering=True)
    try:
        main()
    except KeyboardInterrupt as error:
        print(f"\n{notes_of(error) or stopped}", file=sys.stderr)
        number = error.args[0] if error.args else signal.SIGINT  # predict.py names another signal
        raise SystemExit(128 + number) from None
    except BrokenPipeError as error:  # what reads the output has ended, such as head
        print(notes_of(error), file=sys.stderr)
        raise SystemExit(141) from None  # 128 + SIGPIPE, which Windows does not have
    except processes.RemoteError:
        time.sleep(2 * PAUSE)
        raise SystemExit(1) from None
    except (SystemExit, Exception) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            raise
        message = user_message(error, memory_advice, notes_of(error) or stopped)
        time.sleep(seconds_before_report(error))
        if message is None:
            raise
        rank = os.environ.get("RANK", "0")
        raise SystemExit(f"\n{message}" if rank == "0" else f"\nrank {rank}: {message}") from error


def user_message(error: BaseException, memory_advice: str, stopped: str) -> str | None:
    """Returns the message of an error that a user can fix; None for others, which keep their traceback."""
    if isinstance(error, SystemExit):
        return str(error.code)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        advised = str(error).startswith("CUDA out of memory: ")  # the messages of torch have a full stop there
        return str(error) if advised else f"CUDA out of memory: {memory_advice}"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return f"{error}: name one in the environment variable TMPDIR"
    if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):  # of a batch norm
        return f"{error}: the images of a step are too small, use a larger image_size= or batch_size="
    if isinstance(error, ValueError | OSError):
        return error_text(error)
    why = str(error).strip().partition("\n")[0]
    if lost_connection(error):
        advice = "their messages tell why, or one of them took longer than timeout_minutes="
        return f"lost the connection to the other processes; {advice} ({why})"
    is_full = "unable to allocate shared memory" in str(error)
    if is_full or ("DataLoader worker" in why and not why.startswith("Caught ")):  # that is an error of its code
        advice = "if its memory or shared memory was full, lower workers= or batch_size= (dmesg shows kills for memory)"
        return f"a process that loads images was ended ({why}); {advice}; {stopped}"
    return None


def notes_of(error: BaseException) -> str:
    """Returns what was added to an error on its way."""
    return "\n".join(getattr(error, "__notes__", ()))


def seconds_before_report(error: BaseException) -> float:
    """Returns how long a process waits with its error: the first rank of a node reports errors of the whole node.

    After a lost connection torchrun has time to end this process, if it saw another one fail.
    """
    if lost_connection(error):
        return 2 * PAUSE
    return 0 if os.environ.get("LOCAL_RANK", "0") == "0" else PAUSE


def lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank ended, cannot be reached, or took too long."""
    return dist.is_available() and (
        isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )
