"""utils/interrupt.py: the first signal asks, the second ends, and patience has an end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from utils.interrupt import Watch

ROOT = Path(__file__).parents[1]


def test_the_first_signal_only_asks_and_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with Watch() as watch:
            assert not watch.asked
            signal.raise_signal(number)
            assert watch.asked
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_watch_in_another_thread_watches_nothing_and_does_no_harm():
    seen = []

    def work():
        with Watch() as watch:
            seen.append(watch.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def run(body, **env):
    program = f"import os, signal, time\nfrom utils.interrupt import Watch\nwith Watch(patience=1) as watch:\n{body}"
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    return done, time.monotonic() - begin


RAISE = "  os.kill(os.getpid(), signal.SIGTERM)\n"


def test_a_second_signal_leaves_at_once_but_not_under_torchrun():
    done, _ = run(RAISE + RAISE + "  print('still there')")
    assert done.returncode == 128 + signal.SIGTERM and "still there" not in done.stdout and "at once" in done.stderr
    done, _ = run(RAISE + RAISE + "  print('still there')", TORCHELASTIC_RUN_ID="job")
    assert done.returncode == 0 and "still there" in done.stdout


@pytest.mark.parametrize("saving", [False, True])
def test_a_step_that_does_not_end_is_given_up_but_a_save_is_not(saving):
    done, _ = run(RAISE + ("  watch.saving()\n" if saving else "") + "  time.sleep(3)\n  print('saved')")
    assert (done.returncode, "saved" in done.stdout) == ((0, True) if saving else (1, False))


def test_a_process_that_torchrun_has_left_behind_knows_it(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with Watch() as watch:
        assert not watch.orphaned()
        parent = os.getppid()
        monkeypatch.setattr("os.getppid", lambda: parent + 1)
        assert watch.orphaned()
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # a program of its own may outlive the shell that started it
        assert not watch.orphaned()
