"""Runs that are stopped between any two steps, and how they are found again."""

import errno
import os
import signal
from functools import partial

import pytest
import torch
from small import assert_same_run, config, log_of, only_run
from toys import FAMILIES, spawn

import nets
import train
from utils import checkpoint, resume
from utils.distributed import Ranks, start
from utils.run import Run

RECIPES = {
    "as shipped": {},
    "accumulation and sizes": {"accumulate": 2, "multi_scale": 0.5, "batch_size": 2},
    "sgd, workers, several evaluations": {
        "optimizer": "sgd",
        "workers": 1,
        "evaluate_every": 2,
        "learning_rate": 0.001,
    },
    "yolov9": {"model": "yolov9_t"},
}


class Criterion:
    """Calls `now` when it is called for the `at`-th time, in training or in an evaluation."""

    calls, at, now = 0, (), staticmethod(lambda: None)

    def __call__(self, *args):
        Criterion.calls += 1
        if Criterion.calls in Criterion.at:
            Criterion.now()
        return super().__call__(*args)


class OfYOLOX(Criterion, nets.YOLOXCriterion):
    pass


class OfYOLOv9(Criterion, nets.YOLOv9Criterion):
    pass


@pytest.fixture
def at_call(monkeypatch):
    """`at_call(numbers, what)`: what happens at the calls of the criterion with these numbers, counted from now."""
    monkeypatch.setattr(nets, "YOLOXCriterion", OfYOLOX)
    monkeypatch.setattr(nets, "YOLOv9Criterion", OfYOLOv9)
    monkeypatch.setitem(nets.MODELS, "yolov9_t", FAMILIES["yolov9"])

    def arrange(numbers, what):
        Criterion.calls, Criterion.at, Criterion.now = 0, numbers, staticmethod(what)

    yield arrange
    arrange((), lambda: None)


@pytest.fixture(scope="module")
def alone(pictures, tmp_path_factory):
    """-> recipe -> the folder of a run of it that nobody disturbed."""
    folders = {}

    def run(recipe):
        if recipe not in folders:
            output = tmp_path_factory.mktemp("alone")
            train.main(config(pictures, output, **RECIPES[recipe]))
            folders[recipe] = only_run(output)
        return folders[recipe]

    return run


# 9 pictures: 2 batches frozen, then 3 an epoch; 2 batches of an evaluation after each epoch
@pytest.mark.parametrize(
    "recipe, calls",
    [("as shipped", [n]) for n in (1, 2, 3, 5, 7, 8, 15)]  # 3, 8: evaluation; 5: after the thaw
    + [
        ("as shipped", [2, 4]),
        ("accumulation and sizes", [1, 6]),
        ("sgd, workers, several evaluations", [4]),
        ("yolov9", [2, 7]),
    ],
)
def test_4_a_run_stopped_anywhere_has_the_bits_of_one_left_alone(
    pictures, tmp_path, at_call, alone, capsys, recipe, calls
):
    cfg = config(pictures, tmp_path, **RECIPES[recipe], resume=True)
    expected = alone(recipe)
    for call in calls:
        number = signal.SIGTERM if call % 2 else signal.SIGINT
        at_call([call], partial(signal.raise_signal, number))
        train.main(cfg)
        assert "the same command with resume=true goes on" in capsys.readouterr().out
    assert len(log_of(only_run(tmp_path))) < 4
    at_call([], None)
    train.main(cfg)
    assert "going on in" in capsys.readouterr().out
    assert_same_run(only_run(tmp_path), expected)


def test_4_a_run_that_dies_goes_on_from_the_last_save_within_the_epoch(pictures, tmp_path, at_call, alone):
    class Died(Exception):
        pass

    def die():
        raise Died

    expected = alone("as shipped")
    cfg = config(pictures, tmp_path, resume=True, save_minutes=1e-9)
    at_call([7], die)
    with pytest.raises(Died):
        train.main(cfg)
    saved = checkpoint.load(only_run(tmp_path) / "last.pt")["resume"]
    assert (len(saved["state"]["rows"]), saved["meter"]["batches"]) == (
        1,
        2,
    )  # 2 + 2 calls, then 2 batches before the 7th
    at_call([], None)
    train.main(cfg)
    assert_same_run(only_run(tmp_path), expected)


def test_a_process_that_was_not_asked_itself_saves_and_fails_so_that_torchrun_starts_it_again(
    pictures, tmp_path, monkeypatch
):
    monkeypatch.setattr(Ranks, "any", lambda self, *wishes: [False] * (len(wishes) - 1) + [len(wishes) == 2])
    with pytest.raises(SystemExit, match="another process was asked to stop"):
        train.main(config(pictures, tmp_path))
    assert checkpoint.load(only_run(tmp_path) / "last.pt")["resume"]["meter"]["batches"] == 1


def test_more_epochs_may_be_asked_for_within_an_epoch(pictures, tmp_path, at_call):
    at_call([14], lambda: signal.raise_signal(signal.SIGTERM))
    train.main(config(pictures, tmp_path, epochs=6, plain_epochs=1))
    at_call([], None)
    train.main(
        config(pictures, tmp_path, epochs=3, plain_epochs=1, resume=True)
    )  # epoch 3 becomes a plain one half-way
    assert [row["epoch"] for row in log_of(only_run(tmp_path))] == ["1", "2", "3"]


def test_a_full_disk_is_said_and_training_goes_on(pictures, tmp_path, monkeypatch, alone, capsys):
    expected, sync, calls = alone("as shipped"), os.fsync, []

    def fsync(file):
        calls.append(file)
        if len(calls) in (5, 6):  # after two epochs
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    train.main(config(pictures, tmp_path))
    said = capsys.readouterr().out
    assert "No space left on device" in said and "training goes on and will try again" in said
    assert_same_run(only_run(tmp_path), expected)


def test_a_full_disk_at_the_end_is_an_error(pictures, tmp_path, monkeypatch):
    def fsync(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(checkpoint.DiskError, match="there is no previous one"):
        train.main(config(pictures, tmp_path, epochs=2))


def test_a_full_disk_at_a_stop_is_an_error_and_the_previous_checkpoint_stays(pictures, tmp_path, monkeypatch, at_call):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    def stop():
        monkeypatch.setattr(os, "fsync", full)
        signal.raise_signal(signal.SIGTERM)

    at_call([6], stop)
    with pytest.raises(checkpoint.DiskError, match="previous one is kept"):
        train.main(config(pictures, tmp_path))
    assert checkpoint.load(only_run(tmp_path) / "last.pt")["epoch"] == 1


def test_torchrun_finds_its_run_again_by_its_id(pictures, tmp_path, monkeypatch, at_call, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    cfg = config(pictures, tmp_path)
    at_call([6], lambda: signal.raise_signal(signal.SIGTERM))
    train.main(cfg)
    first = only_run(tmp_path)
    at_call([], None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    train.main(config(pictures, tmp_path, epochs=1))  # has nothing to do with it
    assert len(list(tmp_path.iterdir())) == 2 and len(log_of(first)) == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 2 and len(log_of(first)) == 4
    capsys.readouterr()
    train.main(cfg)
    assert "nothing to do" in capsys.readouterr().out and len(list(tmp_path.iterdir())) == 2


def test_without_an_id_only_a_restart_by_the_same_torchrun_goes_on(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    cfg = config(pictures, tmp_path, epochs=1)
    train.main(cfg)
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 2  # started by hand: two runs
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 2
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 3


def saved(folder, rows, batches, run="job"):
    """A run folder that has got so far."""
    folder.mkdir(parents=True)
    Run(folder, {}, run=run)
    state = {"rows": [{"epoch": 1 + n, "AP": 0.1} for n in range(rows)]}
    going_on = {"state": state, "meter": {"batches": batches}, "constants": {"seed": 0}}
    checkpoint.save(folder / "last.pt", {"model": {"where": torch.tensor([rows, batches])}, "resume": going_on})
    checkpoint.save(folder / "best.pt", {"model": {"where": torch.tensor([rows, batches])}})


def machine(rank, store, outputs, results):
    os.environ.update(WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK="0", GROUP_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=store, TORCHELASTIC_RUN_ID="job")
    ranks = start("cpu", 1)
    folder, earlier = resume.find(False, outputs[rank], "demo", {"seed": 0}, ranks)
    found = resume.State(tuple(earlier["state"]["rows"])).epoch, earlier["meter"]["batches"]
    torch.save((ranks.machine, str(folder), found), results[rank])
    ranks.stop()


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("other", ["behind", "empty"])
def test_the_furthest_checkpoint_of_all_machines_is_brought_to_those_that_lack_it(tmp_path, ahead, other):
    outputs = [str(tmp_path / name) for name in ("a", "b")]
    name = "demo-2026-01-31-2"
    saved(tmp_path / "ab"[ahead] / name, 3, 7)
    saved(tmp_path / "ab"[ahead] / "demo-2026-01-31-3", 9, 9, run="not this one")
    if other == "behind":
        saved(tmp_path / "ab"[1 - ahead] / name, 3, 2)
    results = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
    spawn(machine, (free_port(), outputs, results), 2)
    for rank in range(2):
        assert torch.load(results[rank]) == ((rank,), f"{outputs[rank]}/{name}", (3, 7))
        for file in ("last.pt", "best.pt"):
            assert checkpoint.load(f"{outputs[rank]}/{name}/{file}")["model"]["where"].tolist() == [3, 7]
        assert not [path for path in os.listdir(f"{outputs[rank]}/{name}") if path.endswith(".tmp")]


def test_the_state_is_what_the_log_says():
    state = resume.State()
    assert (state.epoch, state.best, state.best_epoch) == (0, 0.0, 0)
    for epoch, ap in enumerate([0.2, 0.5, 0.4, None, 0.5], 1):
        state = state.after({"epoch": epoch} | ({} if ap is None else {"AP": ap}))
    assert (state.epoch, state.best, state.best_epoch) == (5, 0.5, 2)
    assert state.done(5, 0) and state.done(9, 3) and not state.done(9, 4)
    nothing = resume.State().after({"epoch": 1, "AP": -1.0}).after({"epoch": 2, "AP": -1.0})
    assert (nothing.best, nothing.best_epoch) == (0.0, 2)


def test_a_damaged_checkpoint_is_named(tmp_path):
    saved(tmp_path / "demo-2026-01-31-1", 1, 0)
    (tmp_path / "demo-2026-01-31-1" / "last.pt").write_bytes(b"half")
    with pytest.raises(checkpoint.CheckpointError, match="last.pt"):
        resume.find(True, str(tmp_path), "demo", {}, Ranks())
