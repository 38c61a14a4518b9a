"""StopSignal of utils/signals.py: the first signal asks, the second one ends, and patience has an end."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from utils.signals import StopSignal

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_handlers_are_restored(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.received
        signal.raise_signal(number)
        assert stop.received
    assert signal.getsignal(number) == before


def test_a_stop_signal_in_another_thread_does_nothing():
    received = []

    def work():
        with StopSignal() as stop:
            received.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert received == [False]


# Code of processes that get signals; send() sends SIGTERM, or another signal. Forked, because importing torch takes seconds.
CASES = {
    "a second signal": ("send(); send(); time.sleep(0.3); os._exit(7)", {}),
    "a second signal under torchrun": ("send(); send(); time.sleep(0.3); os._exit(7)", {"TORCHELASTIC_RUN_ID": "job"}),
    "a step that does not end": ("send(); time.sleep(3); os._exit(7)", {}),
    "a long step after Ctrl-C": ("send(signal.SIGINT); time.sleep(1.5); os._exit(7)", {}),
    "a long step after Ctrl-C under torchrun": (
        "send(signal.SIGINT); time.sleep(3); os._exit(7)",
        {"TORCHELASTIC_RUN_ID": "job"},
    ),
    "a long step after the terminal closed": ("send(signal.SIGHUP); time.sleep(1.5); os._exit(7)", {}),
    "a second Ctrl-C": ("send(signal.SIGINT); send(signal.SIGINT); time.sleep(0.3); os._exit(7)", {}),
    "a slow save": ("send(); stop.saving = True; time.sleep(1.5); os._exit(7)", {}),
}


@pytest.fixture(scope="module")
def statuses():
    """The exit status of each case, 7 if it came to its end, and all that was printed."""
    program = f"""
import os, signal, time
from utils.signals import StopSignal
send = lambda number=signal.SIGTERM: os.kill(os.getpid(), number)
children = {{}}
for name, (body, env) in {CASES!r}.items():
    children[name] = os.fork()
    if children[name] == 0:
        os.environ.update(env)
        with StopSignal(0.5, lambda: "To continue: " + name) as stop:
            exec(body)
print({{name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for name, child in children.items()}})
"""
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout) | {"printed": done.stderr}


def test_a_second_signal_ends_the_program_at_once_but_not_under_torchrun(statuses):
    assert statuses["a second signal"] == 128 + signal.SIGTERM
    assert statuses["a second signal under torchrun"] == 7


def test_a_step_that_does_not_end_in_time_is_given_up_but_a_save_is_not(statuses):
    assert statuses["a step that does not end"] == 1
    assert statuses["a slow save"] == 7


def test_after_ctrl_c_or_a_closed_terminal_a_step_has_the_time_that_it_needs(statuses):
    assert statuses["a long step after Ctrl-C"] == statuses["a long step after the terminal closed"] == 7
    assert statuses["a long step after Ctrl-C under torchrun"] == 1
    assert statuses["a second Ctrl-C"] == 128 + signal.SIGINT


def test_ctrl_c_prints_at_once_what_a_second_one_does(statuses):
    lines = [line for line in statuses["printed"].splitlines() if "Ctrl-C again" in line]
    assert len(lines) == 2


def test_a_program_that_is_ended_says_how_to_continue(statuses):
    said = re.findall("To continue: (.*)", statuses["printed"])
    ended = (
        "a long step after Ctrl-C under torchrun",
        "a second Ctrl-C",
        "a second signal",
        "a step that does not end",
    )
    assert sorted(said) == sorted(ended)


def test_a_process_that_torchrun_left_behind_notices_it(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with StopSignal() as stop:
        assert not stop.orphaned()
        parent = os.getppid()
        monkeypatch.setattr("os.getppid", lambda: parent + 1)
        assert stop.orphaned()
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # without torchrun, a program may outlive the shell that started it
        assert not stop.orphaned()
