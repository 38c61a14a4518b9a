"""benchmarks/torture.py: a training that is killed in every way, again and again, ends with the bits of an undisturbed one."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks import torture
from utils import checkpoint


def save(folder: Path, value: float, seconds: float = 1.0) -> Path:
    folder.mkdir()
    row = {"epoch": 1, "AP": value, "seconds": seconds}
    rest = {
        "updater": {"ema": {"a.weight": torch.tensor([1.0, value])}},
        "state": {"rows": [row]},
        "meter": {"batches": 3},
    }
    contents = {"model": {"a.weight": torch.tensor([1.0, 2.0])}, "metrics": row, "config": {"output": str(folder)}}
    checkpoint.save(folder / "last.pt", {**contents, "resume": rest})
    checkpoint.save(folder / "best.pt", contents)
    (folder / "log.csv").write_text(f"epoch,AP,seconds\n1,{value},{seconds}\n")
    return folder


def test_every_value_that_differs_is_named(tmp_path):
    first, second = save(tmp_path / "a", 0.5), save(tmp_path / "b", 0.5 + 2**-24, seconds=2.0)
    faults, compared = torture.differences(first, second)
    assert sorted(re.match(r"(\S+ \S+): ", fault)[1] for fault in faults) == [
        "best.pt metrics/AP",
        "last.pt metrics/AP",
        "last.pt resume/state/rows/0/AP",
        "last.pt resume/updater/ema/a.weight",
        "log.csv rows/0/AP",
    ]
    assert "last.pt resume/updater/ema/a.weight: 1 of 2 values differ, by up to 5.96e-08" in faults
    assert compared["last.pt model"] == 2 and compared["last.pt resume/updater/ema"] == 2
    assert torture.differences(first, first)[0] == []


def test_missing_and_duplicate_rows_are_named(tmp_path):
    first, second, third = (save(tmp_path / name, 0.5) for name in "abc")
    (second / "log.csv").write_text("epoch,AP,seconds\n")
    (third / "log.csv").write_text("epoch,AP,seconds\n1,0.5,1.0\n1,0.5,1.0\n")
    assert "log.csv rows/0/AP: '0.5' became '(missing)'" in torture.differences(first, second)[0]
    assert "log.csv rows/1/AP: '(missing)' became '0.5'" in torture.differences(first, third)[0]


def test_the_schedule_has_every_kind_twice_and_depends_on_the_seed_only():
    plans = torture.schedule(22, seed=3)
    assert plans == torture.schedule(22, seed=3) != torture.schedule(22, seed=4)
    kinds = [kind for plan in plans for kind in plan.kinds]
    assert all(kinds.count(kind) == 2 for kind in torture.KINDS) and len(kinds) == 22
    assert sum(len(plan.kinds) for plan in torture.schedule(25, seed=3)) == 25


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the ranks of torchrun are found under /proc")
def test_kills_of_every_kind_leave_no_trace():
    outcome = torture.main(torture.Config(kills=len(torture.KINDS)))
    assert not outcome.faults, "\n".join([f"seed={outcome.seed}", *outcome.faults[:20]])
    assert set(outcome.kills) == set(torture.KINDS)
    parts = ("model", "resume/model", "resume/updater/ema", "resume/updater/optimizer")
    for part in (*(f"last.pt {part}" for part in parts), "best.pt model", "log.csv", "TensorBoard"):
        assert outcome.compared[part] > 100, part
