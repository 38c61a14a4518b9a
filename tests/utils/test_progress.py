"""utils/progress.py: the plain lines of a program without a terminal, which has no bar."""

import pytest
from refused import told

from utils import progress


def lines_of(monkeypatch, capsys, count: int, seconds: float, **options) -> list[str]:
    """Returns the lines of a task of `count` items that take `seconds` each."""
    clock = iter([seconds * n for n in range(count + 2)])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress_bar(None, "epoch 3/50", **options) as bar:
        for number in range(count):
            bar.set_postfix_str(f"loss {number}")
            bar.update()
    out, err = capsys.readouterr()
    assert err == "" and "\r" not in out
    return out.splitlines()


def test_a_line_comes_after_each_tenth_with_the_time_left(monkeypatch, capsys):
    lines = lines_of(monkeypatch, capsys, 100, 6.0, total=100)
    assert len(lines) == 10
    told(lines[0], "epoch 3/50", "10 of 100", "9 min", "loss 9")


def test_lines_are_at_least_30_seconds_and_at_most_5_minutes_apart(monkeypatch, capsys):
    assert lines_of(monkeypatch, capsys, 100, 0.29, total=100) == []
    assert len(lines_of(monkeypatch, capsys, 100, 1.0, total=100)) == 3
    assert len(lines_of(monkeypatch, capsys, 100, 60.0, total=100)) == 20


def test_the_time_left_does_not_count_what_an_earlier_start_has_done(monkeypatch, capsys):
    told(lines_of(monkeypatch, capsys, 20, 3.0, total=100, begun=60)[1], "80 of 100", "60 s")


def test_a_task_of_unknown_length_has_lines_too(monkeypatch, capsys):
    told(lines_of(monkeypatch, capsys, 10, 60.0)[0], "epoch 3/50", 5, "5 min")


@pytest.mark.parametrize("seconds, text", [(40, "40 s"), (720, "12 min"), (3599, "1 h 0 min"), (187_200, "2 d 4 h")])
def test_durations_are_short(seconds, text):
    assert progress.duration(seconds) == text
