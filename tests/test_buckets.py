"""Trainings from a bucket of S3, as moto serves it on this computer, equal those from a folder, and survive kill -9."""

import io
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
import torch
from buckets import tar_of, upload
from painted import drawn
from small import log_of
from test_nodes import IMAGES, LONG, ROOT, Node, assert_same_run, rendezvous, torchrun
from toys import free_ports

from benchmarks import buckets as buckets_benchmark
from benchmarks import table
from benchmarks.s3_server import S3Server
from engine import run_store
from utils import checkpoint, mirror, remote
from utils.remote import FetchError

pytestmark = pytest.mark.slow
pytest.importorskip("moto", reason="pip install moto[server] s3fs")
pytest.importorskip("s3fs", reason="pip install moto[server] s3fs")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    drawn(folder, IMAGES)
    return folder


@pytest.fixture(scope="module")
def bucket(images):
    """The environment of an S3 server whose bucket `data` has the images as files in `set`, and in `set.tar`."""
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        files.mkdir("data")
        upload(images, "s3://data/set")
        files.pipe_file("data/set.tar", tar_of(images))
        yield server.env
    server.close()


def node(folder, processes, images, env, **changes):
    """A torchrun that is started in a new folder."""
    folder.mkdir(parents=True)
    return Node(folder, images, torchrun("--standalone", f"--nproc_per_node={processes}", **changes), env)


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """{processes: run folder} of runs with the images in a folder."""
    runs = {}
    for processes in (1, 2):
        folder = tmp_path_factory.mktemp("local") / str(processes)
        one = node(folder, processes, images, {}, save_minutes=0).start()
        one.end(0)
        runs[processes] = one.run
    return runs


SET = {"train": "s3://data/set/train.txt", "val": "s3://data/set/val.txt"}
TAR = {"train": "s3://data/set.tar", "val": "s3://data/set.tar"}
RUNS = "s3://data/runs"


@pytest.mark.parametrize(("processes", "workers", "source"), ((1, 2, SET), (2, 0, SET), (1, 0, TAR)))
def test_the_bits_are_those_of_a_folder(bucket, images, undisturbed, tmp_path, processes, workers, source):
    one = node(tmp_path / "run", processes, images, bucket, workers=workers, save_minutes=0, **source)
    shutil.rmtree(one.folder / "images")
    one.start().end(0)
    assert_same_run(one.run, undisturbed[processes])
    for file in filter(Path.is_file, one.folder.rglob("*")):  # no key is kept, also not in the cache and the output
        assert b"test-secret" not in file.read_bytes() and b"AKIATESTKEY" not in file.read_bytes()
    assert "test-secret" not in one.out + one.err


def progress_in_bucket(files, folder="data/runs"):
    """Returns (epochs, batches) of the newest last.pt in the bucket, (-1, -1) without any."""
    found = [path for path in files.find(folder) if path.endswith("/last.pt")]
    if not found:
        return -1, -1
    saved = torch.load(io.BytesIO(files.cat_file(max(found))), weights_only=True)["resume"]
    return len(saved["state"]["rows"]), saved["meter"]["batches"]


def wait_for_progress(files, folder, before, running):
    """Waits until a last.pt with more progress than `before`, within the run, is in the bucket."""
    end = time.monotonic() + LONG
    while not max(before, (0, 0)) < progress_in_bucket(files, folder) < (3, 0):
        assert running.process.poll() is None and time.monotonic() < end, running.tail()
        time.sleep(0.1)


def staged(one, runs="runs"):
    """The only folder in the cache of a node that stands for a run in the bucket."""
    (folder,) = (one.folder / "cache" / "remote" / "runs+s3" / "data" / runs).iterdir()
    return folder


@pytest.mark.parametrize(("before", "after"), ((1, 1), (2, 1), (1, 2)))
def test_a_run_that_is_killed_resumes_on_an_empty_computer_with_another_number_of_processes(
    bucket, images, undisturbed, tmp_path, before, after
):
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    if files.exists("data/runs"):
        files.rm("data/runs", recursive=True)
    one = node(tmp_path / "one", before, images, bucket, output=RUNS, **SET).start()
    wait_for_progress(files, "data/runs", (0, 0), one)
    one.kill()
    at = progress_in_bucket(files)
    two = node(tmp_path / "two", after, images, bucket, output=RUNS, resume="true", **SET)
    shutil.rmtree(two.folder / "images")
    two.start().end(0)
    assert "resuming" in two.out and (0, 0) < at < (3, 0)
    folder = staged(two)
    if before == after:
        assert_same_run(folder, undisturbed[before])
    losses = [[float(row["loss"]) for row in log_of(one)] for one in (folder, undisturbed[before])]
    assert len(losses[0]) == len(losses[1]) == 3
    for epoch, (ours, theirs) in enumerate(zip(*losses, strict=True)):
        if epoch != at[0]:  # the mean loss of an epoch that two numbers of processes trained is another mean
            assert ours == pytest.approx(theirs, rel=3e-7)  # another number of processes rounds otherwise
    there = max(path for path in files.find("data/runs") if path.endswith("/last.pt"))
    assert files.cat_file(there) == (folder / "last.pt").read_bytes()


def test_two_nodes_need_no_common_disk(bucket, images, undisturbed, tmp_path):
    """The node of rank 0 is killed, so that its last saves are not in the bucket, or it loses its disk, too."""
    files, port = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False), free_ports(1)[0]
    nodes = []
    for address in ("127.0.0.1", "127.0.0.2"):
        command = rendezvous("127.0.0.1", address, port, output="s3://data/nodes", resume="true", **SET)
        (tmp_path / address).mkdir()
        nodes.append(
            Node(tmp_path / address / "node", images, command, {**bucket, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        )
    main, other = nodes
    try:
        for loses_disk in (False, True):
            main.start(), other.start()
            before = progress_in_bucket(files, "data/nodes")
            wait_for_progress(files, "data/nodes", before, main)
            main.kill(), other.kill()
            if loses_disk:
                shutil.rmtree(main.folder / "cache")
        main.start(), other.start()
        main.end(0), other.end(0)
    finally:
        main.kill(), other.kill()
    assert "resuming" in main.out
    assert_same_run(staged(main, "nodes"), undisturbed[2])


@pytest.fixture
def no_pauses(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSES", (0,))


@pytest.mark.usefixtures("no_pauses")
def test_what_s3_refuses_is_named_with_its_address():
    for work in (mirror.local, run_store.require_store):
        with pytest.raises(FetchError, match="s3://wrong/set"):
            work("s3://wrong/set")


@pytest.mark.usefixtures("no_pauses")
def test_an_object_of_s3_that_changes_is_noticed():
    """By its MD5, without a second request."""
    address, storage = "s3://data/changes/a.txt", remote.storage_of("s3://data")
    storage.files.pipe_file(address, b"old")
    item = storage.file(address)
    assert storage.read(item) == b"old"
    for contents in (b"new", b"longer", b"", b"s"):
        storage.files.pipe_file(address, contents)
        with pytest.raises(FetchError, match=address):
            storage.read(item)


WRITER = """
import sys
sys.path[:0] = [{root!r}]
import torch
from benchmarks.s3_server import S3Server
from engine import run_store
from utils import checkpoint
run_store.EVERY = 0.01
folder = run_store.run_root({runs!r}) / "small-2026-01-01-1"
folder.mkdir(parents=True, exist_ok=True)
(folder / "environment.json").write_text("{{}}")
uploads = run_store.Uploads(folder)
for step in range(int(sys.argv[1]), 10**6):
    contents = {{"step": step, "epoch": step, "model": {{"x": torch.zeros(300000)}}, "config": {{}}, "classes": ["a"]}}
    checkpoint.save(folder / "best.pt", contents)
    checkpoint.save(folder / "last.pt", contents)
    if uploads.done.get("last.pt") and not sys.stdout.closed:
        print("uploaded", flush=True)
        sys.stdout.close()
"""


def test_uploads_that_are_killed_20_times_always_leave_a_checkpoint_to_resume_from(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    rng, runs, step = random.Random(0), "s3://data/killed", 0
    folder = run_store.run_root(runs) / "small-2026-01-01-1"
    for _ in range(20):
        script = [sys.executable, "-c", WRITER.format(root=str(ROOT), runs=runs), str(step + 1)]
        with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as writer:
            while "uploaded" not in writer.stdout.readline():
                assert writer.poll() is None
            time.sleep(rng.uniform(0, 1))
            writer.kill()
        shutil.rmtree(tmp_path / "cache")  # another computer
        run_store.fetch_run(runs, lambda folders: folders[0])
        last, best = (checkpoint.load(folder / name)["step"] for name in ("last.pt", "best.pt"))
        assert best >= last > step
        step = last


@pytest.mark.parametrize("source", ("files", "tar"))
def test_the_benchmark_of_buckets_adds_a_row(source, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    buckets_benchmark.main(buckets_benchmark.Config(images=20, latency=0, batch_size=4, batches=2, source=source))
    assert f"| {source} | no | 20 |" in (tmp_path / "buckets.md").read_text()
