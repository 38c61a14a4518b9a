"""Runs the entry scripts: errors that a user can fix end in one message, on a console that never fails."""

import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from utils import processes
from utils.text import error_text

PAUSE = 1.0  # seconds by which a process delays its error, so that the rank with the cause prints first


class _Console(io.FileIO):
    """Standard output that drops what cannot be written: the disk is full, or the reader of a pipe has ended."""

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def _patient(stream: Any, original: Any) -> Any:
    """Returns standard output or error in a form whose errors never end a program: neither of the disk nor of a character."""
    if stream is None:  # closed by the caller
        return open(os.devnull, "w")
    stream.reconfigure(errors="replace")
    if stream is not original or os.name == "nt":  # a notebook's or a test's; Windows has its own kind for a console
        return stream
    raw = _Console(stream.fileno(), "wb", closefd=False)
    buffer = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, stream.encoding, "replace", None, stream.line_buffering, stream.write_through)


def command_line(script: str, words: Sequence[str]) -> str:
    """Returns the command that starts the running script with other words, quoted for the shell: python train.py resume=runs/x.

    Under torchrun it is the command of torchrun with its options, if the system tells it (Linux does). If the file `script`
    was not started from a shell but is used by another program, only the words are returned.
    """
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    if Path(sys.argv[0]).resolve() != Path(script).resolve():
        return join(words)
    start = ["python"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        start = _torchrun(sys.argv)
    return join([*start, sys.argv[0], *words])


def _torchrun(argv: Sequence[str]) -> list[str]:
    """Returns how torchrun, the parent of this process, was started, up to the script; [] where it cannot be known."""
    with suppress(OSError):
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        options = words[1 : -len(argv)]
        if words[-len(argv) :] == list(argv) and options:
            if Path(options[0]).name == "torchrun":
                return ["torchrun", *options[1:]]
            return ["python", *options]
    return []


def run_script(main: Callable[[], object], stopped: str, memory_advice: str) -> None:
    """Runs an entry script. User errors end it with one message that names the fix; other errors keep their traceback.

    `stopped` is printed after Ctrl-C; `memory_advice` names the constants that save memory. Of several processes only
    those that failed by themselves print their error, so that the cause stays visible.
    """
    for name in ("stdout", "stderr"):
        setattr(sys, name, _patient(getattr(sys, name), getattr(sys, f"__{name}__")))
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(f"\n{stopped}") from None
    except (SystemExit, Exception) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            raise
        if isinstance(error, processes.RemoteError):
            time.sleep(2 * PAUSE)
            raise SystemExit(1) from None
        message = reported(error, memory_advice, stopped)
        if message is None:
            raise
        raise SystemExit(message) from error


def reported(error: BaseException, memory_advice: str, stopped: str) -> str | None:
    """Reports an error to torchrun, after a pause, and returns the message to print; None: no user can fix it."""
    message, pause = _user_error(error, memory_advice, stopped)
    time.sleep(pause)
    _report_to_torchrun(error, message)
    if message is None:
        return None
    rank = os.environ.get("RANK", "0")
    return f"\n{message}" if rank == "0" else f"\nrank {rank}: {message}"


def _user_error(error: BaseException, memory_advice: str, stopped: str) -> tuple[str | None, float]:
    """The message of an error that a user can fix, or None, and the seconds after which it is printed.

    Local rank 0 goes first, because it reports errors of the whole node. After a lost connection torchrun has time to end
    this process, if it saw another one fail.
    """
    pause = 0 if os.environ.get("LOCAL_RANK", "0") == "0" else PAUSE
    if isinstance(error, SystemExit):
        return error.code, pause
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"CUDA out of memory: {memory_advice}", pause
    if isinstance(error, ValueError | OSError):
        return error_text(error), pause
    if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
        return _loader_failed(str(error).strip().split("\n"), stopped), pause
    if _lost_connection(error):
        why = str(error).partition("\n")[0]
        advice = "their messages tell why, or one of them took longer than timeout_minutes="
        return f"lost the connection to the other processes; {advice} ({why})", 2 * PAUSE
    return None, 0


def _loader_failed(lines: list[str], stopped: str) -> str | None:
    """The message if a process that loads images was ended or got no shared memory; None: its own code raised the error."""
    if not lines[0].startswith("Caught "):
        advice = "if its memory or shared memory was full, lower workers= or batch_size= (dmesg shows kills for memory)"
        return f"a process that loads images was ended ({lines[0]}); {advice}; {stopped}"
    if "</torch_" in lines[-1]:  # a file of shared memory
        advice = "free some, raise the limit on the size of files (ulimit -f), or lower workers= or batch_size="
        return f"a process that loads images got no shared memory ({lines[-1]}); {advice}; {stopped}"
    return None


def _lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank ended, cannot be reached, or took too long."""
    return dist.is_available() and (
        isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


def _report_to_torchrun(error: BaseException, message: str | None) -> None:
    """Writes the error to the file from which torchrun prints the root cause: the message, or without one the traceback."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    with suppress(OSError):  # the terminal shows the error as well
        if message is None:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        else:
            report = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": report}), encoding="utf-8")
