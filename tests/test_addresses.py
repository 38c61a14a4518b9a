"""Each program reads data, images and checkpoints at an address, with the results of those in a folder."""

import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pytest
from buckets import Faulty, tar_of, upload
from lively import tiny_checkpoint

import evaluate
import predict
from datasets.check_images import check_images
from datasets.formats.read import read
from deploy.detector import Detector
from tools import check
from utils import remote
from utils.files import files_under


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects, no pauses."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSES", (0, 0))
    Faulty.store.clear()
    Faulty.faults.clear()


@pytest.fixture
def address(demo_images):
    """The address of a copy of the demo images, next to a tar with them."""
    fsspec.filesystem("faulty").pipe_file("/bucket/set.tar", tar_of(demo_images))
    return upload(demo_images, "faulty://bucket/set")


@pytest.fixture(scope="module")
def weights(demo_images, tmp_path_factory):
    classes = (demo_images / "classes.txt").read_text(encoding="utf-8").split()
    return tiny_checkpoint(tmp_path_factory.mktemp("trained") / "best.pt", classes, image_size=(64, 64))


def evaluated(weights, data, output):
    options = {"workers": 0, "device": "cpu", "confidence": 0.01, "report": False, "worst": 0}
    return evaluate.main(evaluate.Config(checkpoint=str(weights), data=data, output=str(output), **options))


def test_an_evaluation_has_the_metrics_of_the_folder(address, demo_images, weights, tmp_path):
    ours = evaluated(weights, f"{address}/val.txt", tmp_path / "ours")
    theirs = evaluated(weights, f"{demo_images}/val.txt", tmp_path / "theirs")
    assert ours == theirs
    with open(tmp_path / "ours" / "metrics.json", encoding="utf-8") as file:
        assert json.load(file)["settings"]["data"] == f"{address}/val.txt"


@pytest.mark.parametrize("kind", ("folder", "tar", "image"))
def test_prediction_has_the_boxes_of_the_folder(address, demo_images, weights, tmp_path, kind):
    image = min(demo_images.rglob("*.png"))
    name = image.relative_to(demo_images).as_posix()
    source = {"folder": address, "tar": f"{address}.tar", "image": f"{address}/{name}"}[kind]
    local = {"folder": demo_images, "tar": demo_images, "image": image}[kind]
    found = []
    for where, output in ((source, "ours"), (str(local), "theirs")):
        cfg = predict.Config(
            checkpoint=str(weights), source=where, output=str(tmp_path / output), device="cpu", confidence=0.05
        )
        found.append(json.loads((predict.main(cfg) / "detections.json").read_text(encoding="utf-8")))
    assert found[0] == found[1] and found[0]
    for ours, theirs in zip(*(Detector(weights, device="cpu")(str(one)) for one in (source, local)), strict=True):
        np.testing.assert_array_equal(ours.boxes, theirs.boxes)


def test_a_checkpoint_in_a_bucket_is_a_checkpoint(address, weights):
    upload(weights.parent, "faulty://bucket/runs/one")
    detector = Detector("faulty://bucket/runs/one/best.pt", device="cpu")
    assert detector.classes == Detector(weights, device="cpu").classes
    with pytest.raises(ValueError, match="name the file"):
        Detector("faulty://bucket/runs/one", device="cpu")


def test_the_check_reports_what_it_reports_of_the_folder(address, demo_images, tmp_path):
    reports = []
    for data in (address, str(demo_images)):
        file = tmp_path / "check.json"
        with pytest.raises(SystemExit) as ended:
            check.main([f"data={data}/train.txt", f"val={data}/val.txt", f"json={file}"])
        assert ended.value.code == 0
        reports.append(json.loads(file.read_text(encoding="utf-8")))
        file.unlink()
    assert reports[0]["train"]["classes"] == reports[1]["train"]["classes"]
    assert reports[0]["train"]["boxes"] == reports[1]["train"]["boxes"] > 0


@contextmanager
def served(handler: Callable) -> Iterator[str]:
    """A web server in a thread; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_large_file_comes_from_a_server_that_knows_no_ranges(tmp_path):
    """Such as that of Python, which sends the whole file instead of a block."""
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    (tmp_path / "large.json").write_bytes(bytes(range(256)))
    with served(functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as address:
        storage = remote.storage_of(address)
        storage.copy(storage.file(f"{address}/large.json"), file := io.BytesIO(), block=100)
    assert file.getvalue() == bytes(range(256))


@pytest.mark.parametrize("lists", (True, False))
def test_a_web_server_may_list_its_folders_or_not(demo_images, tmp_path, lists):
    pytest.importorskip("aiohttp", reason="pip install aiohttp")

    class Handler(SimpleHTTPRequestHandler):
        def list_directory(self, path):
            if lists:
                return super().list_directory(path)
            self.send_error(403)

        def log_message(self, *_):
            pass

    own = tmp_path / "served"
    (own / "some photos").mkdir(parents=True)
    image = min(demo_images.rglob("*.png"))
    (own / "some photos" / "a b#1.png").write_bytes(image.read_bytes())
    (own / "train.txt").write_text("some photos/a b#1.png 1,2,9,9,0\n")
    (own / "classes.txt").write_text("cat\n")
    for folder in (demo_images, own):
        with served(functools.partial(Handler, directory=str(folder))) as address:
            data, _ = check_images(read(f"{address}/train.txt", "all"))
            if lists:
                assert remote.storage_of(address).folder(address).keys() == set(files_under(folder))
        assert data.image_digest() == check_images(read(folder / "train.txt", "all"))[0].image_digest()
