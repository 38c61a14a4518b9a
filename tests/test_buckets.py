"""Trainings from a bucket of S3, as moto serves it on this computer, equal those from a folder, and survive kill -9."""

import shutil

import fsspec
import pytest
from buckets import S3Server, tar_of, upload
from painted import drawn
from test_nodes import IMAGES, Node, assert_undisturbed, torchrun

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


@pytest.mark.parametrize("processes", (1, 2))
@pytest.mark.parametrize("workers", (0, 2))
def test_the_bits_are_those_of_a_folder(bucket, images, undisturbed, tmp_path, processes, workers):
    one = node(tmp_path / "run", processes, images, bucket, workers=workers, save_minutes=0, **SET)
    shutil.rmtree(one.folder / "images")
    one.start().end(0)
    assert_undisturbed(one.run, undisturbed[processes])
    for file in one.run.iterdir():  # no key is kept
        assert b"test-secret" not in file.read_bytes() and b"AKIATESTKEY" not in file.read_bytes()
    assert "test-secret" not in one.out + one.err
