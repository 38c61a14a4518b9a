"""benchmarks/torture.py: a training that is killed in every way, again and again, ends with the bits of an undisturbed one."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from benchmarks import faults, torture
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
    assert not outcome.differences, "\n".join([f"seed={outcome.seed}", *outcome.differences[:20]])
    assert set(outcome.kills) == set(torture.KINDS)
    parts = ("model", "resume/model", "resume/updater/ema", "resume/updater/optimizer")
    for part in (*(f"last.pt {part}" for part in parts), "best.pt model", "log.csv", "TensorBoard"):
        assert outcome.compared[part] > 100, part


def test_every_kind_of_fault_is_a_function_of_its_own():
    assert len(faults.FAULTS) == 12 and all(
        fault.__doc__ or "asked_to_stop" in fault.__qualname__ for fault in faults.FAULTS
    )


def test_plans_of_the_long_torture_depend_on_the_seed_only(tmp_path):
    plans = [[faults.plan_of(n, random.Random(f"{seed} {n}"), tmp_path) for n in range(12)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {plan.processes for plan in plans[0]} == {1, 2, 3}


def test_three_processes_are_compared_up_to_rounding(tmp_path):
    first, second, third = (save(tmp_path / name, 0.5) for name in "abc")
    for folder, loss in ((first, 2.0), (second, 2.0001), (third, 2.1)):
        (folder / "log.csv").write_text(f"epoch,loss,AP,seconds\n1,{loss},0.5,1\n")
    assert faults.nearly(first, second) == []
    assert faults.nearly(first, third) == ["log.csv rows/0/loss: 2.0 became 2.1"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the processes are found under /proc")
def test_some_random_faults_leave_no_trace(capfd):
    outcome = torture.main(torture.Config(minutes=1))
    text = capfd.readouterr().out
    assert not outcome.differences, text[-4000:]
    assert re.search(r"^\d+ faults, bits equal$", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the processes are found under /proc")
@pytest.mark.parametrize("processes, fault", [(2, faults.torchrun_killed), (1, faults.resumed_twice)])
def test_a_run_without_end_is_struck(tmp_path, processes, fault):
    """Processes that outlive their torchrun end, although it was killed while they started. A second start is refused."""
    torture.draw(tmp_path / "images", torture.IMAGES)
    plan = torture.Plan(processes, ("epochs=9999", "workers=1"), torture.LAUNCHERS[1], torture.KINDS)
    job = torture.Job(tmp_path, tmp_path / "runs", plan, resume=False)
    run = faults.Run(job, random.Random(0), tmp_path, None)
    orphans = []
    try:
        if processes > 1:
            job.wait("two ranks", lambda: len(job.ranks()) == 2)
            time.sleep(1)
            orphans = run.trainers()
        else:
            job.wait("a checkpoint", lambda: list(job.output.glob("*/last.pt")))
        assert fault(run)
    finally:
        job.end()
        for orphan in filter(faults.alive, orphans):
            faults.send(signal.SIGKILL, orphan)
