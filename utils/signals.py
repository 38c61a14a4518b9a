"""Stopping on request: signals let the step end and the run be saved."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

PATIENCE = 15.0  # seconds from a signal to the start of the save; batch systems and torchrun kill soon after that
PARENT = os.getppid()  # as it was before PyTorch was imported: see utils/start.py


class StopSignal:
    """Context manager in which SIGINT, SIGTERM and SIGHUP only set `received`, so that the step ends and the run is saved.

    SIGHUP stays ignored where it is, under nohup. A second signal ends the program at once, except under torchrun, which repeats
    a Ctrl-C of the terminal. After SIGTERM, and after any signal under torchrun, others kill the program soon: a thread ends it
    with status 1 as soon as `patience` seconds pass without a save, which sets `saving`. `advice` returns how to continue, which
    is printed when a program is ended before it saved.
    """

    def __init__(self, patience: float = PATIENCE, advice: Callable[[], str] = lambda: ""):
        self.received = self.saving = False
        self._patience, self._advice = patience, advice
        self._handlers: dict = {}
        self._ended = threading.Event()

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            numbers = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
            wanted = [n for n in numbers if n.name != "SIGHUP" or signal.getsignal(n) != signal.SIG_IGN]
            self._handlers = {n: signal.signal(n, self._handle) for n in wanted}
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @staticmethod
    def orphaned() -> bool:
        """Whether torchrun was killed and left this process behind, which must not write next to a restarted run."""
        return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != PARENT

    def _handle(self, number: int, _) -> None:
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self.received:
            if not under_torchrun:
                end_at_once("stopped at once", 128 + number, self._advice())
            return
        self.received = True
        if under_torchrun or number == signal.SIGTERM:
            threading.Thread(target=self._give_up, daemon=True).start()
        elif number == signal.SIGINT:
            print_at_once("finishing the step, then saving; Ctrl-C again stops now")

    def _give_up(self, tick: float = 0.1) -> None:
        waited = 0.0
        while waited < self._patience and not self._ended.wait(tick):
            waited = 0.0 if self.saving else waited + tick
        if not self._ended.is_set():
            end_at_once("stopped: the step did not end in time", 1, self._advice())


def end_at_once(why: str, status: int, advice: str = "") -> None:
    """Ends the process without waiting for anything."""
    print_at_once(f"{why}; what was saved before remains. {advice}".rstrip())
    os._exit(status)


def print_at_once(text: str) -> None:
    """Prints a line on standard error, without the buffers of Python, in which the interrupted program may be writing."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"\n{text}\n".encode())
