"""A run whose output is a bucket goes on from an empty disk, what is in the bucket is always whole, and no wait is long."""

import contextlib
import io
import os
import random
import shutil
import threading
import time
from pathlib import Path
from unittest import mock

import fsspec
import pytest
import small
from buckets import Faulty, upload
from refused import refused

import train
from datasets.check_images import check_images
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from engine import resume, run_store
from engine.runs import create, newest
from utils import checkpoint, remote
from utils.processes import Ranks
from utils.remote import FetchError

RUNS = "faulty://bucket/runs"


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    Faulty.store.clear()
    Faulty.faults.clear()


@pytest.fixture
def folder():
    """The folder of a run in a bucket, which has been claimed."""
    folder = create(RUNS, "small")
    (folder / "config.json").write_text("{}")
    return folder


def in_bucket() -> dict[str, bytes]:
    """{name: contents} of the files of the only run in the bucket."""
    files = fsspec.filesystem("faulty")
    return {path.split("/", 4)[4]: files.cat_file(path) for path in files.find("/bucket/runs")}


def saved(folder: Path, step: int, is_best: bool = True) -> None:
    """Saves as a training does: best.pt, if it is the best, before last.pt."""
    contents = {"step": step, "epoch": step, "model": {}, "config": {}, "classes": ["a"]}
    if is_best:
        checkpoint.save(folder / "best.pt", contents)
    checkpoint.save(folder / "last.pt", {**contents, "metrics": {"best": step if is_best else step - 1}})


def steps(folder: Path) -> list[int]:
    return [checkpoint.load(folder / name)["step"] for name in ("best.pt", "last.pt")]


def fetch() -> None:
    run_store.fetch_run(RUNS, lambda: newest(RUNS, "small"))


def run_once(cfg) -> tuple[Path, str]:
    text = io.StringIO()
    undrawn = mock.patch("report.plots.draw_curves", lambda rows, path, marks: path.touch())
    with contextlib.redirect_stdout(text), undrawn:
        return train.main(cfg).folder, text.getvalue()


def test_a_run_from_and_to_a_bucket_has_the_bits_of_a_run_in_folders_and_resumes_from_an_empty_disk(
    demo_images, tmp_path
):
    data = upload(demo_images, "faulty://bucket/set")
    local, *_ = small.train_quietly(small.config(demo_images, tmp_path / "runs"))
    changes = {"train": f"{data}/train.txt", "val": f"{data}/val.txt", "report": True}
    first, text = run_once(small.config(demo_images, RUNS, **changes))
    small.assert_same_run(local, first)
    assert f"{RUNS}/{first.name}" in text.splitlines()[-1] and str(tmp_path) not in text.partition("done:")[2]
    names = in_bucket()
    assert {"last.pt", "best.pt", "log.csv", "config.json", "environment.json", "curves.png"} <= names.keys()
    for name in ("last.pt", "best.pt", "log.csv"):
        assert names[name] == (first / name).read_bytes()
    evaluation = {f"evaluation/{path.name}" for path in (first / "evaluation").iterdir()}
    assert "evaluation/report.html" in evaluation <= names.keys()
    assert not [name for name in names if name.startswith(".") or name == "lock"]
    shutil.rmtree(tmp_path / "cache")  # another computer
    again, text = run_once(small.config(demo_images, RUNS, **changes, resume=True))
    assert again.name == first.name and "nothing to do" in text
    small.assert_same_run(local, again)


def test_a_fraction_of_images_in_a_bucket_is_validated_on_another_computer(demo_images, tmp_path):
    data = upload(demo_images, "faulty://bucket/set")
    cfg = small.config(demo_images, RUNS, epochs=1, freeze_epochs=0, train=f"{data}/train.txt", val=".3")
    folder, _ = run_once(cfg)
    val = checkpoint.load(folder / "last.pt")["config"]["val"]
    assert val == f"{RUNS}/{folder.name}/val.txt"
    before = check_images(read(val, "all"))[0]
    shutil.rmtree(tmp_path / "cache")
    options = ReadOptions(image_root=data)
    assert check_images(read(val, "all", options))[0].image_digest() == before.image_digest() and len(before)


def test_two_new_runs_of_two_computers_are_two(tmp_path, monkeypatch):
    names = []
    for computer in ("one", "two", "three"):
        monkeypatch.setenv("THAW_CACHE", str(tmp_path / computer))
        if computer == "three":  # it also looks into the bucket before
            assert resume.find(False, RUNS, "small", Ranks()).folder is None
        names.append(create(RUNS, "small").name)
    assert len(set(names)) == 3
    assert {name.partition("/")[0] for name in remote.entries(RUNS)} == set(names)


def test_what_has_more_steps_is_copied_to_the_other_place(folder):
    saved(folder, 2)
    fetch()
    assert [*sorted(in_bucket())] == ["best.pt", "config.json", "environment.json", "last.pt"]
    for spoil in (Path.unlink, lambda path: path.write_bytes(b"damaged"), lambda path: saved(path.parent, 1)):
        spoil(folder / "last.pt")
        fetch()
        assert steps(folder) == [2, 2]
    saved(folder, 3)
    (folder / "evaluation/of/one").mkdir(parents=True)
    (folder / "evaluation/of/one/note.txt").touch()
    fetch()
    shutil.rmtree(folder)
    fsspec.filesystem("faulty").pipe_file(f"/bucket/runs/{folder.name}/epoch_0001.pt", b"large")
    fetch()
    assert steps(folder) == [3, 3] and not (folder / "epoch_0001.pt").exists()
    assert (folder / "evaluation/of/one/note.txt").exists()
    reads = Faulty.reads
    fetch()
    assert Faulty.reads == reads  # it is the same


def test_a_fetch_that_fails_leaves_no_last_pt_without_its_best_pt(folder):
    saved(folder, 2)
    fetch()
    shutil.rmtree(folder)
    Faulty.faults += [None, None, PermissionError("403")]
    with refused(FetchError, RUNS):
        fetch()
    assert not (folder / "last.pt").exists()
    fetch()
    assert steps(folder) == [2, 2]


def test_a_fetch_that_is_killed_leaves_no_last_pt_without_its_best_pt(folder, monkeypatch):
    """Whichever file it replaced last."""
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "report.html").touch()
    (folder / "zebra.txt").touch()
    saved(folder, 2)
    fetch()
    replace, number, done = os.replace, 0, False

    def killed(source, target):
        nonlocal left
        left -= ".fetch" not in str(target)
        if left < 0:
            raise KeyboardInterrupt
        replace(source, target)

    while not done:
        number, left = number + 1, number
        shutil.rmtree(folder)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "replace", killed)
            fetch()
        done = (folder / "last.pt").exists()
        if done:
            assert steps(folder) == [2, 2] and (folder / "zebra.txt").exists()
            assert (folder / "evaluation" / "report.html").exists()
    assert number >= 6


def test_a_start_on_another_computer_ends_the_uploads_of_the_one_before(folder):
    """Both runs stay whole, each in its folder, and the bucket has the later one."""
    environment = folder / "environment.json"
    environment.write_text('{"id": 1}')
    saved(folder, 1)
    uploads = run_store.Uploads(folder)
    uploads._upload()
    other = f"/bucket/runs/{folder.name}/environment.json"
    fsspec.filesystem("faulty").pipe_file(other, b'{"id": 2}')
    saved(folder, 2)
    problem = uploads.close()
    assert RUNS in problem and str(folder) in problem and steps(folder) == [2, 2]
    assert in_bucket()["environment.json"] == b'{"id": 2}'
    again = run_store.Uploads(folder)  # resumed here: it takes the run over
    assert again.close() == "" and in_bucket()["last.pt"] == (folder / "last.pt").read_bytes()


@pytest.mark.parametrize("seed", range(5))
def test_uploads_that_are_cut_off_leave_a_checkpoint_to_resume_from(folder, monkeypatch, seed):
    rng, put = random.Random(seed), Faulty.put_file
    left, whole, step = rng.randrange(3, 16), 0, 0

    def cut(self, path, address, **options):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        put(self, path, address, **options)
        if rng.random() < 0.3:  # the training saves while files are uploaded
            saved(folder, step + 1)

    uploads = run_store.Uploads(folder)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Faulty, "put_file", cut)
        while True:
            step += 2
            saved(folder, step, rng.random() < 0.5)
            uploads._upload()
            whole = step
    shutil.rmtree(folder)
    fetch()
    if whole:
        last = checkpoint.load(folder / "last.pt")
        assert last["step"] >= whole
        if last["metrics"]["best"] == last["step"]:
            assert steps(folder)[0] >= last["step"]


def test_only_what_has_changed_is_uploaded(folder, monkeypatch):
    names, put = [], Faulty.put_file
    monkeypatch.setattr(
        Faulty, "put_file", lambda self, path, address: names.append(Path(address).name) or put(self, path, address)
    )
    saved(folder, 1)
    (folder / "lock").touch()
    uploads = run_store.Uploads(folder)
    for text in ("1\n", "2\n"):
        (folder / "log.csv").write_text(text)
        uploads.begin()
        assert wait_until(lambda text=text: in_bucket().get("log.csv") == text.encode() and "last.pt" in names)
    assert uploads.close() == ""
    assert [names.count(name) for name in ("best.pt", "config.json", "last.pt", "lock")] == [1, 1, 1, 0]


def wait_until(condition) -> bool:
    end = time.monotonic() + 20
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def test_a_bucket_that_is_silent_is_told_and_holds_the_end_of_a_run_for_a_moment_only(folder, monkeypatch, capsys):
    monkeypatch.setattr(remote, "WARN_AFTER", 0.05)
    end = threading.Event()
    monkeypatch.setattr(Faulty, "put_file", lambda *_: end.wait(60))
    saved(folder, 1)
    uploads, start = run_store.Uploads(folder), time.monotonic()
    uploads.begin()
    assert wait_until(lambda: "WARNING" in capsys.readouterr().out)
    problem = uploads.close(0.5)
    assert time.monotonic() - start < 20
    assert str(folder) in problem and RUNS in problem
    assert steps(folder) == [1, 1]
    end.set()


def test_uploads_that_fail_are_told_once_and_tried_again(folder, monkeypatch, capsys):
    monkeypatch.setattr(run_store, "AGAIN", 0.05)
    saved(folder, 1)
    denied = mock.Mock(side_effect=PermissionError("403"))
    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "put_file", denied)
        uploads = run_store.Uploads(folder)
        uploads.begin()
        assert wait_until(lambda: denied.call_count > 2)
    assert wait_until(lambda: "last.pt" in in_bucket())
    assert uploads.close() == "" and capsys.readouterr().out.count("403") == 1


def test_a_run_that_cannot_be_uploaded_ends_with_an_error_that_names_its_folder(demo_images, tmp_path, monkeypatch):
    monkeypatch.setattr(Faulty, "put_file", mock.Mock(side_effect=PermissionError("403")))
    with pytest.raises(FetchError) as error:
        run_once(small.config(demo_images, RUNS, epochs=1, freeze_epochs=0))
    (last,) = (tmp_path / "cache" / "runs").rglob("last.pt")
    assert RUNS in str(error.value) and str(last.parent) in str(error.value)
    assert checkpoint.load(last)["epoch"] == 1


@pytest.mark.parametrize("output", ("s4://bucket/runs", RUNS))
def test_an_output_that_cannot_be_used_is_an_error_before_the_data_are_read(demo_images, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Faulty, "find", mock.Mock(side_effect=PermissionError("403")))
    with refused(FetchError, output):
        run_once(small.config(demo_images, output, train="missing"))
