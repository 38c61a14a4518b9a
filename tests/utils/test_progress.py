"""utils/progress.py: the plain lines of a program without a terminal, which has no bar."""

import pytest
from refused import told

from utils import progress


def lines_of(monkeypatch, capsys, count: int, seconds: float, **options) -> list[str]:
    """Returns the lines of a task of `count` items that take `seconds` each."""
    now = [1000.0]
    monkeypatch.setattr(progress.tqdm, "monitor_interval", 0)  # no thread, which has another clock
    with progress.progress_bar(None, "epoch 3/50", **options) as bar:
        bar._time = lambda: now[0]
        bar.start_t = bar.last_print_t = now[0]
        for number in range(count):
            bar.set_postfix_str(f"loss {number}", refresh=False)
            now[0] += seconds
            bar.update()
    out, err = capsys.readouterr()
    assert err == "" and "\r" not in out
    return out.splitlines()


def test_a_line_comes_each_minute_with_the_time_left(monkeypatch, capsys):
    assert lines_of(monkeypatch, capsys, 100, 0.59, total=100) == []
    lines = lines_of(monkeypatch, capsys, 100, 6.0, total=100)
    assert 8 <= len(lines) <= 10
    told(lines[0], "epoch 3/50", "10 of 100", "09:00", "loss 9")


def test_the_time_left_does_not_count_what_an_earlier_start_has_done(monkeypatch, capsys):
    told(lines_of(monkeypatch, capsys, 40, 3.0, total=100, begun=60)[0], "80 of 100", "01:00")


def test_a_task_of_unknown_length_has_lines_too(monkeypatch, capsys):
    told(lines_of(monkeypatch, capsys, 10, 60.0)[0], "epoch 3/50", 1, "01:00")


@pytest.mark.parametrize("seconds, text", [(40, "40 s"), (720, "12 min"), (3599, "1 h 0 min"), (187_200, "2 d 4 h")])
def test_durations_are_short(seconds, text):
    assert progress.duration(seconds) == text
