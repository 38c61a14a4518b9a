"""Trainings from and to a bucket of S3, as moto serves it here: the bits of a folder, kill -9, and a silent server."""

import functools
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
import torch
from buckets import upload
from painted import drawn
from s3_server import S3Server
from small import log_of
from test_nodes import IMAGES, LONG, ROOT, Node, assert_same_run, rendezvous, torchrun
from toys import free_ports

from utils import remote
from utils.files import files_under
from utils.remote import FetchError
from utils.remote_cache import local

pytestmark = pytest.mark.slow
pytest.importorskip("moto", reason="pip install moto[server] s3fs")
pytest.importorskip("s3fs", reason="pip install moto[server] s3fs")

SET = {"train": "s3://data/set/train.txt", "val": "s3://data/set/val.txt"}
ARCHIVE = {"train": "s3://data/set.tar.gz", "val": "s3://data/set.tar.gz"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def bucket(images, tmp_path_factory):
    """The environment for a server of S3 whose bucket `data` has the images as files in `set`, and in `set.tar.gz`."""
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        remote.storage.cache_clear()
        storage().mkdir("data")
        upload(images, "s3://data/set")
        archive = shutil.make_archive(str(tmp_path_factory.mktemp("archive") / "set"), "gztar", images)
        storage().put_file(archive, "data/set.tar.gz")
        yield server.env
    server.close()


@functools.cache
def storage():
    return fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def empty(bucket, tmp_path, monkeypatch):
    """No cache."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    return storage()


def node(folder, processes, images, env, **changes):
    """A torchrun that is started in a new folder."""
    folder.mkdir(parents=True)
    return Node(folder, images, torchrun("--standalone", f"--nproc_per_node={processes}", **changes), env)


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """{processes: run folder} of runs with the images in a folder."""
    runs = {}
    for processes in (1, 2):
        one = node(tmp_path_factory.mktemp("local") / str(processes), processes, images, {}, save_minutes=0).start()
        one.end(0)
        runs[processes] = one.run
    return runs


@pytest.mark.parametrize(("workers", "source"), ((2, SET), (0, ARCHIVE)))
def test_the_bits_are_those_of_a_folder(bucket, images, undisturbed, tmp_path, workers, source):
    one = node(tmp_path / "run", 1, images, bucket, workers=workers, save_minutes=0, **source)
    shutil.rmtree(one.folder / "images")
    one.start().end(0)
    assert_same_run(one.run, undisturbed[1])
    for file in filter(Path.is_file, one.folder.rglob("*")):  # no key is kept, also not in the cache and the output
        assert b"test-secret" not in file.read_bytes() and b"AKIATESTKEY" not in file.read_bytes()


def progress(folder):
    """Returns (epochs, batches) of the newest last.pt in the bucket, (-1, -1) without any."""
    found = [path for path in storage().find(folder) if path.endswith("/last.pt")]
    if not found:
        return -1, -1
    saved = torch.load(io.BytesIO(storage().cat_file(max(found))), weights_only=True)["resume"]
    return len(saved["state"]["rows"]), saved["meter"]["batches"]


def wait_for_progress(folder, before, running):
    """Waits until a last.pt with more progress than `before`, within the run, is in the bucket."""
    end = time.monotonic() + LONG
    while not max(before, (0, 0)) < progress(folder) < (3, 0):
        assert running.process.poll() is None and time.monotonic() < end, running.tail()
        time.sleep(0.1)


def cached(one) -> Path:
    """The only run folder in the cache of a node."""
    (lock,) = (one.folder / "cache" / "runs").rglob("lock")
    return lock.parent


@pytest.mark.parametrize(("before", "after"), ((1, 1), (1, 2)))
def test_a_run_that_is_killed_resumes_on_an_empty_computer_with_another_number_of_processes(
    bucket, images, undisturbed, tmp_path, before, after
):
    runs = f"data/runs{before}{after}"
    one = node(tmp_path / "one", before, images, bucket, output=f"s3://{runs}", report="true", **SET).start()
    wait_for_progress(runs, (0, 0), one)
    one.kill()
    at = progress(runs)
    two = node(tmp_path / "two", after, images, bucket, output=f"s3://{runs}", report="true", resume="true", **SET)
    shutil.rmtree(two.folder / "images")
    two.start().end(0)
    assert "resuming" in two.out and (0, 0) < at < (3, 0)
    folder = cached(two)
    if before == after:
        assert_same_run(folder, undisturbed[before])
    losses = [[float(row["loss"]) for row in log_of(one)] for one in (folder, undisturbed[before])]
    assert len(losses[0]) == len(losses[1]) == 3
    for epoch, (ours, theirs) in enumerate(zip(*losses, strict=True)):
        if epoch != at[0]:  # the mean loss of an epoch that two numbers of processes trained is another mean
            assert ours == pytest.approx(theirs, rel=3e-7)  # another number of processes rounds otherwise
    there = {path.removeprefix(f"{runs}/{folder.name}/") for path in storage().find(runs)}
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if path.is_file()}
    assert there == here - {"lock"} and "evaluation/report.html" in here
    assert storage().cat_file(f"{runs}/{folder.name}/last.pt") == (folder / "last.pt").read_bytes()


def test_two_nodes_need_no_common_disk(bucket, images, undisturbed, tmp_path):
    """The node of rank 0 is killed, so that its last saves are not in the bucket, or it loses its disk, too."""
    port, nodes = free_ports(1)[0], []
    for address in ("127.0.0.1", "127.0.0.2"):
        command = rendezvous("127.0.0.1", address, port, output="s3://data/nodes", resume="true", **SET)
        (tmp_path / address).mkdir()
        env = {**bucket, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        nodes.append(Node(tmp_path / address / "node", images, command, env))
    main, other = nodes
    try:
        for loses_disk in (False, True):
            main.start(), other.start()
            wait_for_progress("data/nodes", progress("data/nodes"), main)
            main.kill(), other.kill()
            if loses_disk:
                shutil.rmtree(main.folder / "cache")
        main.start(), other.start()
        main.end(0), other.end(0)
    finally:
        main.kill(), other.kill()
    assert "resuming" in main.out
    assert_same_run(cached(main), undisturbed[2])


def test_a_server_that_stops_answering_holds_no_run_and_loses_nothing(images, undisturbed, tmp_path):
    """The run ends with an error a minute after its last step, and its folder has the bits of an undisturbed one."""
    code = "from s3_server import S3Server; s = S3Server(); print(s.server.port, flush=True); s.thread.join()"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    try:
        env = S3Server.ENV | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}"}
        fsspec.filesystem("s3", skip_instance_cache=True, endpoint_url=env["AWS_ENDPOINT_URL"]).mkdir("data")
        one = node(tmp_path / "one", 1, images, env, output="s3://data/runs").start()
        one.wait_for("run folder s3")
        one.wait_for("epoch +1/3")
        server.send_signal(signal.SIGSTOP)
        one.wait_for("epoch +3/3")
        start = time.monotonic()
        one.end(1)
        assert time.monotonic() - start < 150  # a minute, and the end of torchrun
    finally:
        server.kill()
    folder = cached(one)
    assert str(folder) in one.err and "WARNING" in one.out
    assert_same_run(folder, undisturbed[1])


def test_a_download_that_is_killed_goes_on_and_two_starts_at_once_have_one_set(empty, bucket, tmp_path):
    for number in range(300):
        empty.pipe_file(f"data/many/{number}.txt", str(number).encode() * 1000)
    code = "import sys; sys.path[:0] = [sys.argv[1]]; from utils.remote_cache import local; local('s3://data/many')"
    start = [sys.executable, "-c", code, str(ROOT)]
    copies = tmp_path / "cache" / "remote"
    with subprocess.Popen(start) as one:
        while len(list(copies.rglob("*.txt"))) < 20:
            assert one.poll() is None
        one.kill()
    before = {path: path.stat().st_ino for path in copies.rglob("*.txt")}
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0] and sum("downloading" in out for out in printed) == 1
    copy = Path(local("s3://data/many"))
    assert {path.name: path.read_text() for path in copy.iterdir()} == {f"{n}.txt": str(n) * 1000 for n in range(300)}
    assert sum(path.stat().st_ino == number for path, number in before.items()) >= len(before) - 32  # threads at work
    assert len(before) < 300


def test_names_of_s3_are_those_of_files(empty):
    names = ["a b", "50%", "%20", "#1", "?", "ä", "😀", "[1]*", "+", "A", "a", "deep/er/a", "back\\slash"]
    for name in names:
        empty.pipe_file(f"data/names/{name}", name.encode())
    empty.pipe_file("data/names2/other", b"x")
    empty.touch("data/names/deep/")
    copy = local("s3://data/names")
    assert {name: Path(copy, name).read_text() for name in files_under(copy)} == {name: name for name in names}


def test_of_two_that_create_an_object_one_succeeds(empty):
    assert remote.create("s3://data/claim/a", b"1") and not remote.create("s3://data/claim/a", b"2")
    with pytest.raises(FileExistsError):  # the condition that decides between two at the same moment
        empty.pipe_file("data/claim/a", b"3", mode="create")
    assert empty.cat_file("data/claim/a") == b"1"


def test_what_s3_refuses_is_named_with_its_address(empty):
    for work in (local, remote.entries):
        with pytest.raises(FetchError, match="s3://wrong/set"):
            work("s3://wrong/set")
