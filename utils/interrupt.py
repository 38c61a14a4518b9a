"""Being asked to stop: Ctrl-C, a batch system, torchrun. The step is finished and the run saved before the program ends."""

import os
import signal
import threading

PATIENCE = 15.0  # seconds for the step; whoever sent the signal will not wait much longer


class Interrupted(Exception):
    """The program was asked to stop; raised by all processes together, between two steps or in an evaluation."""


class Watch:
    """While it is entered, SIGINT and SIGTERM only set `asked`. A second signal ends the program at once (under torchrun,
    which passes on every Ctrl-C that the terminal has sent already, only the first counts).

    When nobody has called `saving` for `patience` seconds after the signal, a thread ends the program with status 1.
    """

    def __init__(self, patience: float = PATIENCE):
        self.asked = False
        self._parent = os.getppid()
        self._before: dict = {}
        self._timer = threading.Timer(patience, self._give_up)
        self._timer.daemon = True

    def __enter__(self) -> "Watch":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {n: signal.signal(n, self._heard) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def orphaned(self) -> bool:
        """Whether torchrun was killed and has left this process behind, which another start must not find at work."""
        return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent

    def saving(self) -> None:
        """The step is done: what follows may take the time that it needs."""
        self._timer.cancel()

    def _heard(self, number: int, _) -> None:
        if not self.asked:
            self.asked = True
            self._timer.start()
        elif "TORCHELASTIC_RUN_ID" not in os.environ:
            os.write(2, b"\nstopped at once; what was saved before stays\n")
            os._exit(128 + number)

    @staticmethod
    def _give_up() -> None:
        os.write(2, b"\nstopped: the step did not end in time; what was saved before stays\n")
        os._exit(1)
