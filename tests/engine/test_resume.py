"""engine/resume.py: a run stopped anywhere and resumed ends with the same bits; what is saved, and how a run is found again."""

import errno
import os
import signal
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refused import refused
from small import assert_same_run, config, log_of, only_run, same, train_quietly

import nets
import train
from engine import resume, saving
from engine.epoch import Meter
from engine.origin import Origin
from engine.run_folder import Run
from engine.saving import Saver
from engine.state import State
from utils import checkpoint
from utils.config import ConfigError
from utils.file_checks import CheckpointError
from utils.processes import Ranks
from utils.script import run_script

ROOT = Path(__file__).parents[2]
RECIPES = {
    "default": {},
    "accumulation, sizes and repeats": {"accumulate": 2, "multi_scale": 0.5, "batch_size": 2, "repeat_rare": 1.0},
    "sgd, workers, few evaluations": {"optimizer": "sgd", "workers": 1, "evaluate_every": 2, "learning_rate": 0.1},
}


@pytest.fixture(scope="module")
def uninterrupted(demo_images, tmp_path_factory):
    """`uninterrupted(recipe)` -> the folder of a run of it that was not interrupted."""
    folders = {}

    def run(recipe):
        if recipe not in folders:
            output = tmp_path_factory.mktemp("uninterrupted")
            folders[recipe], *_ = train_quietly(config(demo_images, output, **RECIPES[recipe]))
        return folders[recipe]

    return run


def fake_validate(*args):
    """Epoch 2 is the best one."""
    return {"AP": (0.1, 0.5, 0.2, 0.3)[args[5]], "AP50": 0.5, "val_loss": 1.0}


FAKE = train.Parts(validate=fake_validate)


class Died(Exception):
    """Stands for kill -9 at a place that the test chooses."""


def die():
    raise Died


@pytest.mark.parametrize(
    "recipe, calls",
    [
        ("default", [1, 2, 1, 1, 2, 2]),  # stopped six times: in the frozen epoch, in evaluations, after the thaw
        pytest.param("default", [5], marks=pytest.mark.slow),  # the first thawed step
        pytest.param("default", [15], marks=pytest.mark.slow),  # within the no-augmentation epoch
        ("accumulation, sizes and repeats", [1, 6]),
        pytest.param("sgd, workers, few evaluations", [4], marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_run_equals_an_uninterrupted_one(
    demo_images, tmp_path, at_call, uninterrupted, recipe, calls
):
    cfg, expected = config(demo_images, tmp_path, **RECIPES[recipe], resume=True), uninterrupted(recipe)
    for number, call in enumerate(calls):
        at_call(call, partial(signal.raise_signal, signal.SIGINT if number % 2 else signal.SIGTERM))
        *_, text = train_quietly(cfg)
        assert text.rstrip().endswith(f"\nresume={only_run(tmp_path)}")  # the words after the name of a script
        assert (only_run(tmp_path) / "curves.png").exists() == bool(log_of(only_run(tmp_path)))
    assert len(log_of(only_run(tmp_path))) < 4
    *_, text = train_quietly(cfg)
    assert "resuming" in text
    assert_same_run(only_run(tmp_path), expected)


@pytest.mark.parametrize("by_folder", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_run_resumed_in_one_word_equals_an_uninterrupted_one(demo_images, tmp_path, at_call, uninterrupted, by_folder):
    expected = uninterrupted("accumulation, sizes and repeats")
    at_call(4, partial(signal.raise_signal, signal.SIGINT))
    train_quietly(config(demo_images, tmp_path, **RECIPES["accumulation, sizes and repeats"]))
    folder = only_run(tmp_path)
    words = [f"resume={folder}"] if by_folder else ["resume=true", "name=small", f"output={tmp_path}"]
    *_, text = train_quietly(train.from_command_line(words))
    assert "resuming" in text
    assert_same_run(folder, expected)


@pytest.mark.parametrize(
    "call, saved",
    [(7, (1, 2)), pytest.param(8, (1, 3), marks=pytest.mark.slow), pytest.param(13, (2, 3), marks=pytest.mark.slow)],
)  # (epochs, batches); 8, 13: evaluation
def test_killed_run_resumes_from_the_last_save_within_the_epoch(
    demo_images, tmp_path, at_call, uninterrupted, call, saved
):
    cfg, expected = config(demo_images, tmp_path, resume=True, save_minutes=1e-9), uninterrupted("default")
    at_call(call, die)
    with pytest.raises(Died):
        train.main(cfg)
    found = checkpoint.load(only_run(tmp_path) / "last.pt")["resume"]
    assert (len(found["state"]["rows"]), found["meter"]["batches"]) == saved
    train_quietly(cfg)
    assert_same_run(only_run(tmp_path), expected)


@pytest.mark.parametrize("name", ["log.csv", "last.pt", "best.pt"])
def test_run_killed_while_it_saves_an_epoch_resumes_with_the_same_bits(demo_images, tmp_path, monkeypatch, name):
    """2 + 2 epochs equal 4. A kill between the log, best.pt and last.pt leaves neither gaps nor repeated epochs."""
    expected, *_ = train_quietly(config(demo_images, tmp_path / "expected"), parts=FAKE)
    output, replace = tmp_path / "killed", os.replace

    def killed(source, target):
        replace(source, target)
        if os.path.basename(target) == name and (only_run(output) / "log.csv").read_text().count("\n") == 2 + 1:
            raise Died

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Died):
        train.main(config(demo_images, output, save_minutes=0), parts=FAKE)
    monkeypatch.setattr(os, "replace", replace)
    train_quietly(config(demo_images, output, resume=True), parts=FAKE)
    assert_same_run(only_run(output), expected)


def test_run_may_be_resumed_with_fewer_epochs_within_an_epoch(demo_images, tmp_path, at_call):
    at_call(14, partial(signal.raise_signal, signal.SIGTERM))
    train_quietly(config(demo_images, tmp_path, epochs=6))
    folder, *_ = train_quietly(
        config(demo_images, tmp_path, epochs=3, resume=True)
    )  # epoch 3 becomes a no-augmentation one
    assert [row["epoch"] for row in log_of(folder)] == ["1", "2", "3"]


def test_process_stopped_by_another_one_saves_and_fails_so_that_torchrun_restarts_it(
    demo_images, tmp_path, monkeypatch
):
    monkeypatch.setattr(Ranks, "any", lambda self, *flags: [False] * (len(flags) - 1) + [len(flags) == 2])
    with refused(SystemExit, "torchrun"):
        train.main(config(demo_images, tmp_path))
    assert checkpoint.load(only_run(tmp_path) / "last.pt")["resume"]["meter"]["batches"] == 1


# --- writes that fail -------------------------------------------------------------------------------------------------


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full while `disk["full"]` is true, for files written atomically."""
    state, fsync = {"full": False}, os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: no_space() if state["full"] else fsync(file))
    return state


def test_full_disk_that_is_freed_later_loses_nothing(demo_images, tmp_path, at_call, disk, uninterrupted, monkeypatch):
    """The checkpoints and the log are written after the disk is freed; TensorBoard may miss points."""
    expected = uninterrupted("default")

    def fill():
        disk["full"] = True
        at_call(6, lambda: disk.update(full=False))  # in the next epoch

    at_call(5, fill)  # the first step of epoch 2
    folder, _, text = train_quietly(config(demo_images, tmp_path), draw=True)
    assert f"No space left on device: '{folder / 'log.csv'}'" in text and "training continues" in text
    assert_same_run(folder, expected)
    assert (folder / "curves.png").stat().st_size > 0


def test_last_save_attempts_everything_before_it_raises(demo_images, tmp_path, monkeypatch):
    """log.csv cannot be written in the last epoch; best.pt and last.pt are written all the same."""
    log = Run.log
    monkeypatch.setattr(Run, "log", lambda self, row, last: no_space() if row["epoch"] == 2 else log(self, row, last))
    parts = train.Parts(validate=lambda *args: {"AP": args[5] / 10, "AP50": 0.2, "val_loss": 1.0})
    with pytest.raises(OSError, match="No space"):
        train.main(config(demo_images, tmp_path, epochs=2), parts=parts)
    assert {checkpoint.load(only_run(tmp_path) / name)["epoch"] for name in ("best.pt", "last.pt")} == {2}
    monkeypatch.undo()
    train_quietly(config(demo_images, tmp_path, epochs=2, resume=True), parts=parts)
    assert [row["epoch"] for row in log_of(only_run(tmp_path))] == ["1", "2"]


def failing_save(monkeypatch, names, until):
    """Makes writes of these checkpoints fail until `until(path)` is true; returns the names of the attempts."""
    save, attempts = checkpoint.save, []

    def write(path, contents):
        attempts.append(path.name)
        if path.name in names and not until(path):
            raise checkpoint.DiskError(f"{path} was not saved (No space left on device)")
        save(path, contents)

    monkeypatch.setattr(checkpoint, "save", write)
    return attempts


def test_best_checkpoint_that_could_not_be_written_is_kept_and_written_later(demo_images, tmp_path, monkeypatch):
    """best.pt and epoch_0002.pt of epoch 2 fail and are written within epoch 3, with the bits of epoch 2."""
    expected, *_ = train_quietly(config(demo_images, tmp_path / "expected", save_every=2), parts=FAKE)
    names, late = ("best.pt", "epoch_0002.pt"), []
    within = Saver.within_epoch

    def within_epoch(self, state, meter, **options):
        late.append((state.epoch, sorted(self.pending)))
        within(self, state, meter, **options)

    monkeypatch.setattr(Saver, "within_epoch", within_epoch)
    attempts = failing_save(monkeypatch, names, lambda path: len(late) > 0 and late[-1][0] >= 2)
    cfg = config(demo_images, tmp_path / "late", save_every=2, save_minutes=1e-9)
    folder, _, text = train_quietly(cfg, parts=FAKE)
    assert "was not saved" in text and (2, ["best.pt", "epoch_0002.pt"]) in late
    assert late[late.index((2, ["best.pt", "epoch_0002.pt"])) + 1] == (2, [])  # nothing is owed at the next save
    for name in ("best.pt", "epoch_0002.pt", "epoch_0004.pt"):
        ours, theirs = (checkpoint.load(run / name) for run in (folder, expected))
        assert ours["epoch"] == theirs["epoch"] and same(ours["model"], theirs["model"])
    assert attempts.count("epoch_0004.pt") == 1


def test_best_checkpoint_that_is_still_missing_at_the_end_is_an_error(demo_images, tmp_path, monkeypatch, at_call):
    """best.pt is a folder, so it can never be replaced by a file; last.pt is written all the same."""
    at_call(1, lambda: (only_run(tmp_path) / "best.pt" / "x").mkdir(parents=True))
    with refused(checkpoint.DiskError, "best.pt"):
        train.main(config(demo_images, tmp_path, epochs=3), parts=FAKE)
    assert checkpoint.load(only_run(tmp_path) / "last.pt")["epoch"] == 3 and len(log_of(only_run(tmp_path))) == 3


# --- finding a run ----------------------------------------------------------------------------------------------------


def test_torchrun_finds_its_run_again_by_its_id(demo_images, tmp_path, monkeypatch, at_call, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    cfg = config(demo_images, tmp_path)
    at_call(6, partial(signal.raise_signal, signal.SIGTERM))
    first, *_ = train_quietly(cfg)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    train.main(config(demo_images, tmp_path, epochs=1))  # a new run
    assert len(list(tmp_path.iterdir())) == 2 and len(log_of(first)) == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 2 and len(log_of(first)) == 4
    capsys.readouterr()
    train.main(cfg)
    assert "nothing to do" in capsys.readouterr().out and len(list(tmp_path.iterdir())) == 2


def test_the_command_to_continue_is_for_one_rank_and_a_saved_run(tmp_path):
    assert resume.to_continue("train.py", tmp_path, Ranks()) == ""
    (tmp_path / "last.pt").touch()
    assert resume.to_continue("train.py", tmp_path, Ranks()).endswith(f"resume={tmp_path}")
    assert resume.to_continue("train.py", tmp_path, Ranks(rank=1, world_size=2, node_ranks=(0, 1))) == ""


@pytest.mark.parametrize("when", ["before the first save", "in an epoch", "in the report"])
def test_a_stopped_program_says_how_to_continue_what_was_saved(
    demo_images, tmp_path, monkeypatch, at_call, capsys, when
):
    """Following it ends with the files of an undisturbed run; where nothing was saved, it does not say that it continues."""
    output = tmp_path / "runs"
    cfg = config(demo_images, output, epochs=2, report=when == "in the report")

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        if when == "in an epoch":
            at_call(5, lambda: patch.setattr(Meter, "add", stop))
        else:
            place = "train.warn_if_boxes_are_lost" if when == "before the first save" else "train.evaluate_best"
            patch.setattr(place, stop)
        run_script(lambda: train_quietly(cfg), stopped="nothing was saved", memory_advice="")
    text = capsys.readouterr().err
    if when == "before the first save":
        assert "nothing was saved" in text and "resume" not in text and not list(tmp_path.rglob("*.pt"))
    else:
        assert text.splitlines()[-1] == f"resume={only_run(output)}"
        folder, *_ = train_quietly(train.from_command_line([text.splitlines()[-1], "report=true"]))
        assert checkpoint.load(folder / "last.pt")["epoch"] == 2 and (folder / "evaluation" / "report.html").exists()


def test_without_an_id_only_a_restart_by_the_same_torchrun_is_resumed(tmp_path, monkeypatch):
    def find():
        folder = resume.find(False, str(tmp_path), "demo", Ranks()).folder
        return folder

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    folder = tmp_path / "demo-2026-01-31-1"
    save_run(folder, 1, 0, run=resume.run_id())
    assert find() is None  # started by hand: a new run
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert find() == folder
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    assert find() is None


def test_a_restart_finds_its_run_although_another_start_has_resumed_it(tmp_path, monkeypatch):
    """In the seconds in which torchrun replaces its processes, nothing holds the run. The restart must not begin a new one."""
    folder = tmp_path / "demo-2026-01-31-1"
    save_run(folder, 1, 0, run="first")
    Run(folder, {}, run_id="second").close()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    assert resume.find(False, str(tmp_path), "demo", Ranks()).folder == folder


def save_run(folder, rows, batches, run="job"):
    """Writes a run folder with checkpoints after `rows` epochs and `batches` batches."""
    folder.mkdir(parents=True)
    Run(folder, {}, run_id=run)
    state = {"rows": [{"epoch": 1 + n, "AP": 0.1} for n in range(rows)]}
    rest = {
        "state": state,
        "meter": {"batches": batches, "sums": {}},
        "origin": {"user_config": {"seed": 0}, "fingerprint": {}},
    }
    rest |= {"model": {}, "updater": {}, "rates": {"power": 0.5, "max_images": 64, "clip": 10.0}}
    rest |= {"course": {"max_epochs": 0, "warmup_epochs": 1.0, "no_aug_epochs": 1, "budget": None}}
    contents = {"config": {}, "model": {"where": torch.tensor([rows, batches])}}
    checkpoint.save(folder / "last.pt", {**contents, "resume": rest})
    checkpoint.save(folder / "best.pt", {"model": {"where": torch.tensor([rows, batches])}})


class TwoNodes(Ranks):
    """Rank 0 of two, and what the other node finds at each look."""

    def gather(self, value):
        return [value, self.others.pop(0)]

    def once_per_node(self, work):
        return work()


def test_nodes_that_find_different_states_of_a_run_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(resume.time, "sleep", lambda _: None)
    folder = tmp_path / "demo-2026-01-31-1"
    save_run(folder, 3, 7)
    ours, behind, other = (
        f"demo-2026-01-31-{run} after epoch 3 and {n} batches" for run, n in ((1, 7), (1, 2), (2, 7))
    )
    none = "none"
    for others, refuses in (
        *(((ours,), False), ((behind, ours), False), ((behind, none, ours), False)),
        *(((one,) * len(resume.PAUSES), True) for one in (none, behind, other)),
    ):
        ranks = TwoNodes(0, 2)
        object.__setattr__(ranks, "others", list(others))
        if refuses:
            with refused(ConfigError, folder.name, "output="):
                resume.find(True, str(tmp_path), "demo", ranks)
        else:
            assert resume.find(True, str(tmp_path), "demo", ranks).folder == folder


@pytest.mark.parametrize("batches", [None, 0, 3])
def test_a_run_is_found_whatever_it_has_saved_in_its_first_epoch(tmp_path, monkeypatch, batches):
    """None: nothing yet; then it starts again in its folder, as a restart by torchrun does."""
    folder = tmp_path / "demo-2026-01-31-1"
    monkeypatch.setattr(resume, "run_to_resume", lambda *_: folder)
    if batches is not None:
        save_run(folder, 0, batches)
    found = resume.find(True, str(tmp_path), "demo", Ranks())
    assert found.folder == folder and (found.last is None) == (batches is None)


def test_best_pt_is_written_only_after_an_epoch_that_is_better_than_all_before(monkeypatch):
    monkeypatch.setattr(saving, "epoch_text", lambda *_: "")
    budget = SimpleNamespace(end_epoch=lambda: None)
    course = SimpleNamespace(done=lambda _: None, seconds_left=lambda _: 0.0, epochs=5, budget=budget)
    saver = SimpleNamespace(save_every=2, course=course, ranks=Ranks(rank=1), run=None, _is_due=lambda: True)
    written, saver._log = [], lambda *_: []
    saver._save = lambda state, meter, last, names, errors: written.append(names)
    state = State()
    for epoch, ap in enumerate((0.1, 0.3, 0.2, 0.3, 0.4), 1):
        state = Saver.finish(saver, state, {"epoch": epoch, "AP": ap})
    assert written == [["best.pt"], ["best.pt", "epoch_0002.pt"], [], ["epoch_0004.pt"], ["best.pt"]]


def test_a_run_with_a_time_limit_saves_its_number_of_epochs_before_the_first_step(demo_images, tmp_path, at_call):
    """Also when it is resumed within an epoch: it saves how far the epoch was."""
    expected, *_ = train_quietly(config(demo_images, tmp_path / "expected"))
    cfg = config(demo_images, tmp_path / "killed", hours=100.0, resume=True)
    at_call(4 + 8 + 8, die)  # the probe, of two phases; the first step
    with pytest.raises(Died):
        train.main(cfg)
    assert checkpoint.load(only_run(tmp_path / "killed") / "last.pt")["config"]["epochs"] == 4
    at_call(7, partial(signal.raise_signal, signal.SIGTERM))
    train_quietly(cfg)
    at_call(1, die)
    with pytest.raises(Died):
        train.main(cfg)
    assert checkpoint.load(only_run(tmp_path / "killed") / "last.pt")["resume"]["meter"]["batches"] > 0
    train_quietly(cfg)
    assert_same_run(only_run(tmp_path / "killed"), expected)


def test_state_is_a_function_of_the_log():
    state = State()
    assert (state.epoch, state.best, state.best_epoch) == (0, 0.0, None)
    for epoch, ap in enumerate([0.2, 0.5, 0.4, None, 0.5], 1):
        state = state.after({"epoch": epoch} | ({} if ap is None else {"AP": ap}))
    assert (state.epoch, state.best, state.best_epoch) == (5, 0.5, 2)
    assert state.done(5, 0) and state.done(9, 3) and not state.done(9, 4)
    assert state.done(1, 0) == "5 epochs are trained, more than epochs=1" and "all 5" in state.done(5, 0)
    nothing = State().after({"epoch": 1, "AP": -1.0}).after({"epoch": 2, "AP": -1.0})
    assert (nothing.best, nothing.best_epoch) == (0.0, 2)
    initial = State().after({"epoch": 0, "AP": 0.3})
    assert (initial.epoch, initial.best, initial.best_epoch) == (0, 0.3, 0)
    trained = initial.after({"epoch": 1, "AP": 0.3}).after({"epoch": 2, "AP": 0.2})
    assert trained.best_epoch == 0 and trained.done(9, 2) and not trained.done(9, 3)
    assert trained.after({"epoch": 3, "AP": 0.4}).best_epoch == 3


def test_a_resumed_run_reads_last_pt_once_and_keeps_none_of_it(demo_images, tmp_path, monkeypatch):
    """Raw weights, moving average and two moments of AdamW: 1.6 GB for YOLOX-x, in each process."""
    train_quietly(config(demo_images, tmp_path, epochs=1))
    reads, kept = [], []
    load, progress = checkpoint.load, Origin.progress

    def restored(origin):
        kept.extend(map(weakref.ref, origin.saved["model"].values()))
        return progress(origin)

    monkeypatch.setattr(checkpoint, "load", lambda *args: reads.append(args) or load(*args))
    monkeypatch.setattr(Origin, "progress", restored)
    alive = []

    def on_row(row, run):
        alive.append(sum(ref() is not None for ref in kept))

    train_quietly(config(demo_images, tmp_path, epochs=2, resume=True), on_row=on_row)
    assert len(reads) == 1 and len(kept) > 20 and alive == [0]


@pytest.mark.parametrize("words", [[], ["train=data"]])
@pytest.mark.parametrize(("written", "expected"), [("early", "no last.pt"), ("earl", "resume=earl"), ("x", "resume=x")])
def test_a_run_that_cannot_be_resumed_is_named(tmp_path, words, written, expected):
    """Whether or not the command names the data."""
    folder = tmp_path / "early-2026-01-31-1"
    folder.mkdir()
    (folder / "environment.json").write_text("{}")
    for name in [written] if written != "early" else ["early", folder.name, str(folder)]:
        with refused((ConfigError, CheckpointError), expected) as raised:
            Origin(train.from_command_line([f"resume={name}", f"output={tmp_path}", *words]), Ranks())
        assert written != "early" or str(folder) in str(raised.value)


@pytest.mark.parametrize(
    ("minutes", "seconds", "is_due"),
    [(2.0, 119, False), (2.0, 121, True), (0.5, 29, False), (0.5, 31, True), (0.0, 1e9, False)],
)
def test_last_pt_is_saved_when_save_minutes_have_passed_since_the_last_save(minutes, seconds, is_due):
    saves, stop = [], SimpleNamespace(orphaned=lambda: False, received=False)
    parts = {"stop": stop, "ranks": Ranks(), "within_epoch": lambda *_: saves.append(1)}
    saver = SimpleNamespace(save_minutes=minutes, _seconds_since_save=lambda: seconds, **parts)
    Saver.between_steps(saver, State(), None)
    assert len(saves) == is_due


@pytest.mark.parametrize(
    ("minutes", "saved"), [(10.0, [1, 5, 9, 12]), (0.25, [1, 3, 5, 7, 9, 11, 12]), (0.0, range(1, 13))]
)
def test_saves_take_a_fiftieth_of_a_run_and_best_pt_agrees_with_every_one(
    demo_images, tmp_path, monkeypatch, minutes, saved
):
    """An epoch takes 13 s and a file .5 s. A run saves its first epoch, then every 50 s if that is before save_minutes."""
    now, save, found = 0.0, checkpoint.save, []

    def slow_save(path, contents):
        nonlocal now
        now += 0.5
        save(path, contents)
        if path.name == "last.pt":
            found.append((contents["epoch"], checkpoint.load(path.with_name("best.pt"))["epoch"]))

    def slow_validate(*args):
        nonlocal now
        now += 13
        return {"AP": (0.1, 0.5, 0.2, 0.6)[args[5] % 4] + args[5] / 100, "AP50": 0.5, "val_loss": 1.0}

    monkeypatch.setattr(checkpoint, "save", slow_save)
    parts = train.Parts(validate=slow_validate, clock=lambda: now)
    cfg = config(demo_images, tmp_path, epochs=12, save_minutes=minutes)
    folder, *_ = train_quietly(cfg, parts=parts)
    assert [epoch for epoch, _ in found] == list(saved)
    best = [1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 12]
    assert [epoch for _, epoch in found] == [best[epoch - 1] for epoch, _ in found]
    assert [int(row["epoch"]) for row in log_of(folder)] == list(range(1, 13))


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_that_ends_between_two_saves_keeps_its_best_pt_unless_it_is_killed(
    demo_images, tmp_path, monkeypatch, at_call, killed
):
    expected, *_ = train_quietly(config(demo_images, tmp_path / "expected"), parts=FAKE)
    at_call(7, die)  # in epoch 3, after the best one
    with monkeypatch.context() as patch, pytest.raises(Died):
        if killed:
            patch.setattr(Saver, "close", lambda saver: saver.run.close())
        patch.setattr(saving, "SAVING", 1e-9)
        train.main(config(demo_images, tmp_path / "ended"), parts=FAKE)
    folder = only_run(tmp_path / "ended")
    epochs = [checkpoint.load(folder / name)["epoch"] for name in ("best.pt", "last.pt")]
    assert epochs == [1 if killed else 2, 1] and len(log_of(folder)) == 2
    train_quietly(config(demo_images, tmp_path / "ended", resume=True), parts=FAKE)
    assert_same_run(folder, expected)


def test_measured_thresholds_win_over_those_of_the_model_that_gets_new_classes():
    data = SimpleNamespace(classes=("old", "new"), value_range=None)
    updater = SimpleNamespace(step_number=3, ema=SimpleNamespace(model=nets.build("tiny_n", 2)))
    run = SimpleNamespace(config={})
    saver = SimpleNamespace(data=(data,), run=run, updater=updater, frozen_thresholds={"old": 0.3, "older": 0.4})
    state = State(({"epoch": 1},), {"old": 0.6, "new": 0.5})
    assert Saver._contents(saver, run, state)["thresholds"] == {"old": 0.6, "older": 0.4, "new": 0.5}
