"""Trainings in the background: their common progress, their files, and what happens if one of them fails."""

import os
import sys
import time
from pathlib import Path

import pytest
from refused import refused

from tools import trainings
from utils import progress

# Stands for train.py: writes the log of a run, or fails after its first word.
PRETENDED = """
import sys, time
from pathlib import Path
words = dict(word.split("=", 1) for word in sys.argv[1:])
print("started", words["name"], flush=True)
if words.get("fails") == "1":
    sys.exit("weights=none is the fix")
if words.get("waits") == "1":
    Path(words["output"], "waits").touch()
    time.sleep(60)
run = Path(words["output"], words["name"] + "-2026-01-31-1")
run.mkdir()
rows = range(int(words["epochs"]) - int(words.get("lacks", 0)) + 1)
(run / "log.csv").write_text("epoch,AP\\n" + "".join(f"{row},0.5\\n" for row in rows))
"""


@pytest.fixture(autouse=True)
def pretended(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pretended.py").write_text(PRETENDED)
    monkeypatch.setattr(trainings, "TRAIN", (sys.executable, str(tmp_path / "pretended.py")))
    monkeypatch.setattr(trainings, "POLL", 0.02)
    monkeypatch.setattr(progress, "SHORT", 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_trainings_run_and_print_only_their_progress(device: str, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(trainings, "choose_device", lambda: trainings.torch.device(device))
    found = trainings.run_trainings(tmp_path, {"a": [], "b": []}, 5)
    assert [run.name for run in found] == ["a-2026-01-31-1", "b-2026-01-31-1"]
    out = capfd.readouterr().out
    assert "10 of 10" in out and "started" not in out
    assert (tmp_path / "a.log").read_text() == "started a\n"


@pytest.mark.parametrize("word", ["fails=1", "lacks=1"])
def test_a_failed_or_stopped_training_is_an_error_with_its_last_lines(word: str, tmp_path: Path) -> None:
    """The other training ends, too."""
    begin = time.monotonic()
    with refused(ChildProcessError, tmp_path / "a.log", "started a"):
        trainings.run_trainings(tmp_path, {"a": [word], "b": ["waits=1"]}, 3)
    assert time.monotonic() - begin < 30


def test_each_training_gets_its_share_of_the_cores(tmp_path: Path, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(trainings.subprocess, "Popen", lambda words, env, **_: given.append(env["OMP_NUM_THREADS"]))
    monkeypatch.setattr(trainings, "cores_of", lambda processes: 8 // processes)
    monkeypatch.delitem(os.environ, "OMP_NUM_THREADS", raising=False)
    trainings.start([], tmp_path / "log", 2)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "3")
    trainings.start([], tmp_path / "log", 2)
    assert given == ["4", "3"]
