"""A run whose output is a bucket resumes from an empty disk, and what is in the bucket is whole at every moment."""

import contextlib
import errno
import io
import os
import random
import shutil
from pathlib import Path
from unittest import mock

import fsspec
import pytest
import small
from buckets import Faulty, upload

import train
from datasets.check_images import check_images
from datasets.formats.read import read
from engine import resume, run_store
from engine.run_folder import create
from utils import checkpoint, remote
from utils.processes import Ranks
from utils.remote import FetchError


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects, no pauses."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSES", (0, 0))
    Faulty.store.clear()
    Faulty.faults.clear()
    Faulty.writes = None


RUNS = "faulty://bucket/runs"


def in_bucket():
    """{name: contents} of the files of the only run in the bucket."""
    files = fsspec.filesystem("faulty")
    return {path.split("/", 4)[4]: files.cat_file(path) for path in files.find("/bucket/runs") if path.count("/") > 3}


def staged(tmp_path) -> Path:
    return small.only_run(tmp_path / "cache" / "remote" / "runs+faulty" / "bucket" / "runs")


def run_once(cfg, tmp_path, **options):
    """Trains with output= in the bucket -> the folder that stands for the run."""
    text = io.StringIO()
    undrawn = mock.patch("report.plots.draw_curves", lambda rows, path, marks: path.touch())
    with contextlib.redirect_stdout(text), undrawn:
        train.main(cfg, **options)
    return staged(tmp_path), text.getvalue()


def test_a_run_from_and_to_a_bucket_has_the_bits_of_a_run_in_folders_and_resumes_from_an_empty_disk(
    demo_images, tmp_path
):
    data = upload(demo_images, "faulty://bucket/set")
    local, *_ = small.train_quietly(small.config(demo_images, tmp_path / "runs"))
    changes = {"train": f"{data}/train.txt", "val": f"{data}/val.txt"}
    first, _ = run_once(small.config(demo_images, RUNS, **changes), tmp_path)
    small.assert_same_run(local, first)
    names = in_bucket()
    assert {"last.pt", "best.pt", "log.csv", "config.json", "environment.json"} <= names.keys()
    for name in ("last.pt", "best.pt", "log.csv"):
        assert names[name] == (first / name).read_bytes()
    assert not [name for name in names if name.startswith(".") or name == "lock"]
    shutil.rmtree(tmp_path / "cache")  # another computer
    again, text = run_once(small.config(demo_images, RUNS, **changes, resume=True), tmp_path)
    assert again.name == first.name and "nothing to do" in text
    small.assert_same_run(local, again)


def test_a_fraction_of_images_in_a_bucket_is_validated_on_another_computer(demo_images, tmp_path):
    data = upload(demo_images, "faulty://bucket/set")
    cfg = small.config(demo_images, RUNS, epochs=1, freeze_epochs=0, train=f"{data}/train.txt", val=".3")
    folder, _ = run_once(cfg, tmp_path)
    val = checkpoint.load(folder / "last.pt")["config"]["val"]
    assert val == f"{RUNS}/{folder.name}/val.txt"
    before = check_images(read(val, "all"))[0]
    shutil.rmtree(tmp_path / "cache")
    assert check_images(read(val, "all"))[0].image_digest() == before.image_digest() and len(before)


def test_a_new_run_gets_the_next_number(demo_images, tmp_path):
    cfg = small.config(demo_images, RUNS, epochs=1, freeze_epochs=0)
    first, _ = run_once(cfg, tmp_path)
    shutil.rmtree(tmp_path / "cache")
    assert resume.find(False, RUNS, "small", Ranks()).folder is None
    assert create(RUNS, "small").name == first.name[:-1] + "2"


class Killed(BaseException):
    """The process ends."""


def saved(folder: Path, step: int, is_best: bool) -> None:
    """Saves as a training does: best.pt, if it is the best, before last.pt."""
    contents = {"step": step, "epoch": step, "model": {}, "config": {}, "classes": ["a"]}
    if is_best:
        checkpoint.save(folder / "best.pt", contents)
    checkpoint.save(folder / "last.pt", {**contents, "metrics": {"best": step if is_best else step - 1}})


@pytest.fixture
def folder(monkeypatch):
    """The folder of a run without a thread that uploads."""
    monkeypatch.setattr(run_store.Uploads, "_work", lambda self: None)
    folder = run_store.run_root(RUNS) / "small-2026-01-01-1"
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def written(monkeypatch):
    """The names of the files that are uploaded, in their order."""
    names, put = [], Faulty.put_file
    monkeypatch.setattr(
        Faulty, "put_file", lambda self, path, address: names.append(Path(address).name) or put(self, path, address)
    )
    return names


def fetch():
    run_store.fetch_run(RUNS, lambda folders: max(folders, default=None))


def step_of(path: Path) -> int:
    return checkpoint.load(path)["step"]


def in_order(names) -> bool:
    """Whether last.pt comes after all that it refers to."""
    return names[-1] == "last.pt" and set(names) == {"environment.json", "config.json", "best.pt", "last.pt"}


def test_what_is_newer_is_copied_to_the_other_place_and_nothing_if_both_are_the_same(folder, written):
    fetch()
    assert sorted(written) == ["config.json", "environment.json"]  # other nodes find a run that has saved nothing yet
    for step in (1, 2):
        saved(folder, step, True)
        written.clear()
        fetch()
        assert in_order(written)
    reads = Faulty.reads
    fetch()
    assert Faulty.reads == reads + 1 and in_order(written)  # it looks at last.pt only
    there = in_bucket()
    saved(folder, 1, True)
    fetch()
    assert in_bucket() == there and step_of(folder / "last.pt") == step_of(folder / "best.pt") == 2
    for spoil in (
        Path.unlink,
        lambda path: path.write_bytes(b"damaged"),
        lambda path: checkpoint.save(path, {"model": {}}),
    ):
        spoil(folder / "last.pt")
        (folder / "best.pt").unlink()
        fetch()
        assert in_bucket() == there and step_of(folder / "last.pt") == step_of(folder / "best.pt") == 2
    assert {path.name for path in folder.iterdir()} == there.keys()


def test_a_run_without_a_last_pt_is_fetched_if_it_was_started_there(folder):
    fetch()
    shutil.rmtree(folder)
    fetch()
    assert (folder / "config.json").exists()
    shutil.rmtree(folder)
    fsspec.filesystem("faulty").rm("/bucket/runs/small-2026-01-01-1/environment.json")
    fetch()
    assert folder.is_dir() and not any(folder.iterdir())


def test_only_what_resuming_needs_is_fetched(folder, tmp_path):
    saved(folder, 2, True)
    fetch()
    shutil.rmtree(folder)
    saved(tmp_path, 7, False)
    for name in ("epoch_0001.pt", ".hidden", "old/last.pt"):
        address = f"/bucket/runs/{folder.name}/{name}"
        fsspec.filesystem("faulty").pipe_file(address, (tmp_path / "last.pt").read_bytes())
    fetch()
    assert {path.name for path in folder.iterdir()} == {"environment.json", "config.json", "best.pt", "last.pt"}
    assert step_of(folder / "last.pt") == 2


def test_a_fetch_that_fails_leaves_no_last_pt_without_its_best_pt(folder, monkeypatch):
    saved(folder, 2, True)
    fetch()
    shutil.rmtree(folder)
    cat_file = Faulty.cat_file

    def denied(self, path, *args, **options):
        if path.endswith("best.pt"):
            raise PermissionError("403")
        return cat_file(self, path, *args, **options)

    monkeypatch.setattr(Faulty, "cat_file", denied)
    with pytest.raises(FetchError):
        fetch()
    assert not (folder / "last.pt").exists()


def test_files_of_a_run_are_uploaded_when_they_have_changed(folder, written):
    saved(folder, 1, True)
    (folder / "epoch_0001.pt").write_bytes(b"1")
    (folder / "log.csv").write_text("1\n")
    (folder / "log.csv.tmp").touch()
    (folder / "lock").touch()
    os.link(folder / "last.pt", folder / f"{run_store.SNAPSHOT}last.pt")  # of a process that was killed
    uploads = run_store.Uploads(folder)
    uploads.upload()
    assert in_order([name for name in written[:-1] if name != "epoch_0001.pt"]) and written[-1] == "log.csv"
    assert written.index("epoch_0001.pt") < written.index("last.pt")
    uploads.upload()
    assert len(written) == 6
    (folder / "log.csv").write_text("1\n2\n")
    assert uploads.close() == "" and written[6:] == ["log.csv"]
    assert in_bucket()["log.csv"] == b"1\n2\n" and not list(folder.glob(f"{run_store.SNAPSHOT}*"))


@pytest.mark.parametrize("change", ("longer", "later", "replaced"))
def test_each_change_of_a_file_is_seen(folder, written, change):
    log, other = folder / "log.csv", folder / "other"
    for path in (log, other):
        path.write_text("1\n")
        os.utime(path, (1, 1))
    uploads = run_store.Uploads(folder)
    uploads.upload()
    if change == "replaced":
        os.replace(other, log)
    else:
        log.write_text("12\n" if change == "longer" else "2\n")
        os.utime(log, (1, 1) if change == "longer" else (2, 2))
    written.clear()
    uploads.upload()
    assert written == ["log.csv"]


def test_a_file_that_is_saved_while_it_is_uploaded_is_uploaded_again(folder, tmp_path, monkeypatch):
    saved(folder, 1, True)
    put = Faulty.put_file

    def put_file(self, path, address):
        put(self, path, address)
        if address.endswith("best.pt") and step_of(folder / "best.pt") == 1:
            saved(folder, 2, True)

    monkeypatch.setattr(Faulty, "put_file", put_file)
    uploads = run_store.Uploads(folder)
    for _ in range(2):
        uploads.upload()
    (tmp_path / "best.pt").write_bytes(in_bucket()["best.pt"])
    assert step_of(tmp_path / "best.pt") == 2


def test_uploads_that_work_again_leave_no_error(folder, written, monkeypatch, capsys):
    uploads = run_store.Uploads(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "put_file", mock.Mock(side_effect=PermissionError("403")))
        for _ in range(3):
            uploads.upload()
        assert capsys.readouterr().out.count("403") == 1
    assert uploads.close() == "" and sorted(written) == ["config.json", "environment.json"]


def test_an_output_of_an_unknown_kind_is_refused():
    with pytest.raises(FetchError, match="s4://bucket"):
        run_store.require_store("s4://bucket/runs")


@pytest.mark.parametrize("seed", range(20))
def test_uploads_that_are_cut_off_leave_a_checkpoint_to_resume_from(folder, tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    uploads, whole = run_store.Uploads(folder), 0
    put = Faulty.put_file
    left = rng.randrange(3, 16)

    def cut(self, path, address, **options):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        put(self, path, address, **options)
        if rng.random() < 0.3:  # the training saves while files are uploaded
            saved(folder, step + 1, True)

    monkeypatch.setattr(Faulty, "put_file", cut)
    with pytest.raises(Killed):
        for step in range(1, 100, 2):
            saved(folder, step, rng.random() < 0.5)
            uploads.upload()
            whole = step
    monkeypatch.setattr(Faulty, "put_file", put)
    names = in_bucket().keys()
    assert "last.pt" not in names or names >= {"environment.json", "config.json"}
    shutil.rmtree(tmp_path / "cache")
    run_store.fetch_run(RUNS, lambda folders: folders[0])
    if whole:
        last = checkpoint.load(folder / "last.pt")
        assert last["step"] >= whole
        if last["metrics"]["best"] == last["step"]:
            assert checkpoint.load(folder / "best.pt")["step"] >= last["step"]


def test_a_disk_without_links_uploads_each_version_once(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(run_store.Uploads, "_work", lambda self: None)
    folder = run_store.run_root(RUNS) / "small-2026-01-01-1"
    folder.mkdir(parents=True)
    uploads, written = run_store.Uploads(folder), []
    put = Faulty.put_file
    monkeypatch.setattr(Faulty, "put_file", lambda self, *paths: written.append(paths[1]) or put(self, *paths))
    for step in (1, 2):
        saved(folder, step, True)
        uploads.upload()
        uploads.upload()
    assert [Path(name).name for name in written] == ["best.pt", "last.pt"] * 2


def test_a_last_pt_that_is_newer_here_is_kept(tmp_path, monkeypatch):
    folder = run_store.run_root(RUNS) / "small-2026-01-01-1"
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text("{}")
    uploads = run_store.Uploads(folder)
    saved(folder, 1, True)
    uploads.upload()
    saved(folder, 3, True)
    run_store.fetch_run(RUNS, lambda folders: folders[0])
    assert checkpoint.load(folder / "last.pt")["step"] == 3
    assert uploads.close() == ""
    saved(folder, 2, True)
    run_store.fetch_run(RUNS, lambda folders: folders[0])
    assert checkpoint.load(folder / "last.pt")["step"] == 3


def test_failing_uploads_are_reported_and_do_not_end_the_training(demo_images, tmp_path, monkeypatch, capsys):
    put = Faulty.put_file

    def denied(self, path, address, **options):
        if not address.endswith(".writable"):
            raise PermissionError("403")
        put(self, path, address, **options)

    monkeypatch.setattr(Faulty, "put_file", denied)
    cfg = small.config(demo_images, RUNS, epochs=1, freeze_epochs=0)
    with pytest.raises(FetchError) as error:
        run_once(cfg, tmp_path)
    assert RUNS in str(error.value) and str(staged(tmp_path)) in str(error.value)
    assert checkpoint.load(staged(tmp_path) / "last.pt")["epoch"] == 1


def test_a_bucket_that_cannot_be_written_is_an_error_before_the_data_are_read(demo_images, tmp_path, monkeypatch):
    def denied(self, path, address, **options):
        raise PermissionError("403")

    monkeypatch.setattr(Faulty, "put_file", denied)
    with pytest.raises(FetchError, match=RUNS):
        run_once(small.config(demo_images, RUNS, train="missing"), tmp_path)
