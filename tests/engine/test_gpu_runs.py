"""Whole runs on a real GPU, of every family, in all their phases: frozen, thawed, and with fixed batch-norm statistics."""

import pytest
import torch
from small import assert_same_run, config, log_of, train_quietly

from engine import network

pytestmark = pytest.mark.gpu


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "model, amp", [("yolox_nano", "fp16"), ("yolov9_t", "bf16"), ("ppyoloe_s", "none"), ("picodet_s", "fp16")]
)
def test_a_run_with_cuda_graphs_equals_one_without_to_the_bit(
    model, amp, demo_images, tmp_path, deterministic, monkeypatch
):
    folders = []
    for graphs in (True, False):
        if not graphs:
            monkeypatch.setattr(network, "graphed", lambda model, *_: model)
        changes = {"model": model, "device": "cuda:0", "amp": amp}
        folder, _, text = train_quietly(config(demo_images, tmp_path / str(graphs), **changes))
        assert "CUDA graphs are not used" not in text
        folders.append(folder)
    assert_same_run(*folders)
    rows = log_of(folders[0])
    assert len(rows) == 4 and all(float(row["loss"]) > 0 for row in rows)
