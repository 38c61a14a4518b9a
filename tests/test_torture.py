"""tests/stress: a training that is killed in every way, again and again, ends with the bits of an undisturbed one."""

import random
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from refused import refused, told

from tests.stress import clock, faults, torture
from utils import checkpoint

posix = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the processes are found under /proc")


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
    (of_ema,) = (fault for fault in faults if "/ema/" in fault)
    told(of_ema, "1 of 2", "5.96e-08")
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
@posix
def test_kills_of_every_kind_leave_no_trace():
    outcome = torture.main(kills=len(torture.KINDS))
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
@posix
def test_some_random_faults_leave_no_trace(capfd):
    outcome = faults.main(minutes=1)
    text = capfd.readouterr().out
    assert not outcome.differences, text[-4000:]


@pytest.mark.slow
@posix
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


@pytest.mark.parametrize("differences, code", [([], False), (["weights"], True)])
def test_the_exit_status_tells_whether_anything_differs(monkeypatch, differences, code):
    monkeypatch.setattr(faults, "main", lambda *options: torture.Outcome(1, differences=differences))
    monkeypatch.setattr(sys, "argv", ["tests.stress", "minutes=1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tests.stress", run_name="__main__")
    assert ended.value.code is code


def test_the_clock_that_is_moved_is_the_one_that_a_run_sees(tmp_path, monkeypatch):
    for name in ("time", "time_ns", "localtime", "strftime"):
        monkeypatch.setattr(time, name, getattr(time, name))  # restores it
    real, monotonic = time.time(), time.monotonic()
    (tmp_path / "clock").write_text("-172800\n")
    clock.move_clock(tmp_path / "clock")
    assert abs(time.time() - real + 172800) < 60 and abs(time.time_ns() / 1e9 - real + 172800) < 60
    assert time.strftime("%Y-%m-%d") < time.strftime("%Y-%m-%d", time.gmtime(real))
    (tmp_path / "clock").write_text("+3600\n")
    assert abs(time.time() - real - 3600) < 60 and abs(time.monotonic() - monotonic) < 60


class FakeJob:
    """A training of one process that answers what a test says."""

    def __init__(self, folder: Path, place=(0, 0), begun=(0, 0), code=-signal.SIGTERM):
        self.place, self.begun, self.code, self.output = place, begun, code, folder
        self.plan, self.process = torture.Plan(1, (), (), ()), subprocess.Popen(["sleep", "60"])
        self.command = {"args": ["train"]}

    def join(self):
        return self.code if self.process.wait(10) is not None else None

    def stopped(self):
        return None

    def done(self):
        return False


@pytest.fixture
def fake_run(tmp_path):
    runs = []

    def make(**values) -> faults.Run:
        runs.append(faults.Run(FakeJob(tmp_path, **values), random.Random(0), tmp_path, None))
        return runs[-1]

    yield make
    for run in runs:
        run.job.process.kill()
        run.job.process.wait()


@posix
@pytest.mark.parametrize(
    "place, begun, lost", [((0, 0), (2, 0), False), ((1, 0), (0, 0), True), ((2, 3), (2, 1), True)]
)
def test_only_a_signal_after_the_first_bar_must_save(fake_run, place, begun, lost):
    """Before, no handler is there and no step is done: the signal ends the process at once."""
    stop = faults.asked_to_stop(signal.SIGTERM)
    if lost:
        with refused(torture.Broken, f"SIGTERM at {place}"):
            stop(fake_run(place=place, begun=begun))
    else:
        assert stop(fake_run(place=place, begun=begun)) == "SIGTERM"


@posix
def test_a_killed_process_has_ended_when_the_next_fault_strikes(fake_run):
    run = fake_run()
    assert faults.killed(run) == "SIGKILL" and run.job.process.returncode == -signal.SIGKILL


@posix
@pytest.mark.parametrize(
    "output, after, broken",
    [
        (("resuming", ""), [1], True),
        (("resuming", "x is in use by process 7"), [1], False),
        (("nothing to do: all 8 epochs are trained", ""), [1], False),
        (("resuming", ""), [2], False),  # torchrun has replaced the processes: no process held the run meanwhile
    ],
)
def test_a_second_start_may_take_a_run_that_nobody_holds(fake_run, tmp_path, monkeypatch, output, after, broken):
    run, trainers = fake_run(), iter(([1], after))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/last.pt").touch()
    monkeypatch.setattr(run.__class__, "trainers", lambda self: next(trainers))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, *output))
    if broken:
        with refused(torture.Broken, "0", "resuming"):
            faults.resumed_twice(run)
    else:
        assert faults.resumed_twice(run)


@posix
def test_a_limit_on_file_sizes_is_lifted_in_processes_that_were_forked_meanwhile(fake_run, monkeypatch):
    run, worker = fake_run(), subprocess.Popen(["sleep", "60"])
    try:
        faults.prlimit(worker.pid, faults.RLIMIT_FSIZE, (4096, faults.RLIM_INFINITY))
        monkeypatch.setattr(run.__class__, "loaders", lambda self: [worker.pid])
        monkeypatch.setattr(run.rng, "uniform", lambda *_: 0)
        assert faults.small_files(run)
        for process in (worker, run.job.process):
            assert faults.prlimit(process.pid, faults.RLIMIT_FSIZE)[0] == faults.RLIM_INFINITY
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.slow
@posix
@pytest.mark.parametrize("processes", [1, 2])
def test_jumps_of_the_clock_do_not_stop_processes_that_load_images(tmp_path, processes):
    torture.draw(tmp_path / "images", torture.IMAGES)
    (tmp_path / "clock").write_text("+0\n")
    constants = ("epochs=3", "no_aug_epochs=1", "workers=1")
    plans = (faults.plan_of(processes - 1, random.Random(seed), tmp_path) for seed in range(100))
    environment = next(plan.environment for plan in plans if plan.environment)
    plan = torture.Plan(processes, constants, torture.LAUNCHERS[1], (), environment=environment)
    job = torture.Job(tmp_path, tmp_path / "runs", plan, resume=False)
    run = faults.Run(job, random.Random(0), tmp_path, None)
    try:
        while job.process.poll() is None:
            assert faults.clock_jumped(run)
            assert job.wait("the next step", partial(moved_on, job, job.place)) or job.done()
        torture.finished(job)
    finally:
        job.end()


def moved_on(job: torture.Job, place: tuple[int, int]) -> bool:
    return job.place != place
