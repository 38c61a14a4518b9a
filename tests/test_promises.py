"""Where each promise ends: the table of docs/distributed.md, and for each cell the test that checks it, or the reason."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from files import read_annotation_file
from mutants import file_of_tests
from refused import refused
from small import assert_same_run, config, log_of, train_quietly
from torch.utils._python_dispatch import TorchDispatchMode

from datasets.dataset import DetectionDataset, Key
from datasets.mosaic import Augment
from engine.environment import changes_of_rounding

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/distributed.md"
CHANGES = ("workers", "processes", "threads", "device", "torch")
NO_TORCH = "samples are made by NumPy and OpenCV alone: test_promises.test_samples_are_made_without_torch"
UNTOUCHED = "nothing writes to it: test_train.test_frozen_backbone_keeps_every_bit_and_thaws_afterwards"
NEEDS_GPU = "needs a GPU: tests/engine/test_simulated_gpu.py has the code path, benchmarks/gpu.py the numbers"
VERSIONS = "other versions run the same test: test_golden.test_ten_steps_have_the_stored_losses"
PROMISES = {  # first words of the row -> by change: what stays equal, and the test that checks it
    "a training sample": {
        "workers": ("bits", "test_loader.test_workers_do_not_change_a_batch_and_epochs_differ"),
        "processes": ("bits", "test_loader.test_ranks_draw_the_samples_that_one_process_would"),
        "threads": ("bits", "test_promises.test_samples_are_made_without_torch"),
        "device": ("bits", NO_TORCH),
        "torch": ("bits", NO_TORCH),
    },
    "a run takes the same steps": {
        "workers": ("bits", "test_promises.test_workers_change_no_bit_of_a_run"),
        "processes": ("rounding", "test_distributed.test_a_training_by_two_processes_logs_what_one_process_logs"),
        "threads": ("rounding", "test_promises.test_threads_change_a_run_by_rounding"),
        "device": ("rounding", NEEDS_GPU),
        "torch": ("rounding", VERSIONS),
    },
    "what is frozen": {change: ("bits", UNTOUCHED) for change in CHANGES},
    "the same weights": {
        "workers": ("bits", "test_promises.test_workers_change_no_bit_of_a_run"),
        "processes": ("rounding", "test_distributed.test_sharded_evaluation_equals_that_of_one_process"),
        "threads": ("rounding", "test_promises.test_threads_change_a_run_by_rounding"),
        "device": ("rounding", NEEDS_GPU),
        "torch": ("rounding", "test_golden.test_the_kept_checkpoint_detects_what_it_detected"),
    },
}


def test_the_page_has_this_table():
    _, _, section = PAGE.read_text(encoding="utf-8").partition("### Where each promise ends\n")
    header, *rows = re.findall(r"^\| (.*) \|$", section.partition("\n### ")[0], re.MULTILINE)
    assert [name.split()[-1] if "torch" in name else name.split()[0] for name in header.split(" | ")[1:]] == list(
        CHANGES
    )
    cells = [row.split(" | ") for row in rows]
    assert len(cells) == len(PROMISES)
    for (promise, *found), (words, expected) in zip(cells, PROMISES.items(), strict=True):
        assert promise.startswith(words)
        assert found == [expected[change][0] for change in CHANGES], promise


@pytest.mark.parametrize("promise", PROMISES)
def test_the_test_that_holds_a_promise_exists(promise):
    for _, held in PROMISES[promise].values():
        named = re.findall(r"(test_\w+)\.(test_\w+)", held)
        for module, name in named:
            text = (TESTS.parent / file_of_tests(module)).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"{module}.{name}"
        for path in re.findall(r"[\w/]+\.py", held):
            assert (TESTS.parent / path).exists(), path
        assert named or "needs a GPU" in held


@pytest.mark.parametrize("change", CHANGES)
def test_a_resumed_run_notes_the_changes_that_end_its_equality_by_bits(change):
    before = {"device": "cpu", **dict.fromkeys(set(CHANGES) - {"device"}, 1)}
    noted = changes_of_rounding(before, {**before, change: 2})
    assert (change in noted) == (PROMISES["a run takes the same steps"][change][0] == "rounding")


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


def test_workers_change_no_bit_of_a_run(demo_images, tmp_path, run):
    assert_same_run(train_quietly(config(demo_images, tmp_path, epochs=2, workers=1))[0], run)


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
