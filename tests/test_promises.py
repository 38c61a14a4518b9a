"""Where each promise of docs/guarantees.md ends: the tests that no other file has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from files import read_annotation_file
from refused import refused
from small import assert_same_run, config, log_of, train_quietly
from torch.utils._python_dispatch import TorchDispatchMode

from datasets.dataset import DetectionDataset, Key
from datasets.mosaic import Augment
from engine.environment import changes_of_rounding

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("change", ["workers", "processes", "threads", "device", "torch"])
def test_a_resumed_run_notes_the_changes_that_end_its_equality_by_bits(change):
    before = {"workers": 1, "processes": 1, "threads": 1, "device": "cpu", "torch": 1}
    assert (change in changes_of_rounding(before, {**before, change: 2})) == (change != "workers")


class NoOperation(TorchDispatchMode):
    """Context manager in which an operation of torch is an error."""

    def __torch_dispatch__(self, operation, *_, **__):
        raise AssertionError(f"torch computes {operation}")


def test_samples_are_made_without_torch(painted):
    """So neither its threads, nor its device, nor its version can change them."""
    augment = Augment(mosaic=0.5, mixup=0.3, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
    data = DetectionDataset(read_annotation_file(str(painted(8))), "corner", augment)
    with refused(AssertionError, "aten.zeros.default"), NoOperation():
        torch.zeros(1)
    with NoOperation():
        samples = [data[Key(0, position, position, (64, 96))] for position in range(8)]
    assert all(isinstance(sample.image, np.ndarray) and len(sample.boxes) == len(sample.labels) for sample in samples)


@pytest.fixture(scope="module")
def run(demo_images, tmp_path_factory):
    return train_quietly(config(demo_images, tmp_path_factory.mktemp("run"), epochs=2))[0]


@pytest.mark.shared_memory
def test_workers_change_no_bit_of_a_run(demo_images, tmp_path, run):
    assert_same_run(train_quietly(config(demo_images, tmp_path, epochs=2, workers=1))[0], run)


@pytest.mark.slow
def test_threads_change_a_run_by_rounding(demo_images, tmp_path):
    """At a learning rate of 0, so that rounding does not grow."""
    logs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            rates = {"learning_rate": 0.0, "min_learning_rate": 0.0, "epochs": 1, "freeze_epochs": 0}
            logs.append(log_of(train_quietly(config(demo_images, tmp_path / str(threads), **rates))[0])[-1])
        finally:
            torch.set_num_threads(1)
    assert float(logs[0]["loss"]) > 0
    for column, value in logs[0].items():
        assert float(logs[1][column] or "nan") == pytest.approx(float(value or "nan"), rel=1e-4, nan_ok=True), column


SILENT = """
import socket, sys
opened = []
SENDS = ["socket." + name for name in ("connect", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")]
sys.addaudithook(lambda event, values: event in SENDS and opened.append(f"{event} {values}"))
socket.socket().connect_ex(("127.0.0.1", 9))
print("noticed", len(opened))
opened.clear()
from lively import lively_checkpoint
from small import config, train_quietly
import evaluate, export, predict
from datasets import demo
from pathlib import Path
images, output = Path(sys.argv[1]), Path(sys.argv[2])
train_quietly(config(images, output / "runs", report=True, epochs=1, freeze_epochs=0, no_aug_epochs=0), draw=True)
best = str(lively_checkpoint(output / "best.pt", "tiny_n", demo.CLASSES, (64, 64), val=str(images / "val.txt")))
evaluate.main(evaluate.Config(best, device="cpu", workers=0, output=str(output / "results")))
predict.main(predict.Config(best, source=str(images), device="cpu", output=str(output / "found")))
export.main(export.Config(best, check_images=1))
print(sorted({path.suffix for path in output.rglob("*")}), opened, sep="\\n")
"""


@pytest.mark.slow
def test_nothing_is_sent(demo_images, tmp_path):
    """No program opens a connection, from the first import to the end, if the weights are a file."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    run = [sys.executable, "-c", SILENT, str(demo_images), str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    noticed, *_, written, opened = done.stdout.splitlines()
    assert noticed == "noticed 1"
    assert {".pt", ".html", ".json", ".onnx"} <= set(re.findall(r"\.\w+", written))
    assert opened == "[]"
