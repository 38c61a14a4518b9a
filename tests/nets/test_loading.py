"""nets/loading.py: tensors that fit are loaded, the others are reported, and too few are refused."""

import pytest
import torch
from refused import refused, told
from torch import nn

from nets.loading import load_compatible, without_prefixes
from utils.file_checks import CheckpointError


class Model(nn.Module):
    def __init__(self, width=4, classes=3):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width))
        self.head = nn.Conv2d(width, classes, 1)


def test_load_compatible_copies_tensors_that_fit_and_reports_the_others():
    model, other = Model(), Model(classes=5)
    nn.init.constant_(other.backbone[1].running_mean, 3.0)
    state = {f"module.{k}": v for k, v in other.state_dict().items()} | {"neck.x": torch.ones(1), "note": "text"}
    del state["module.backbone.1.bias"]
    fresh = {k: v.clone() for k, v in model.state_dict().items()}
    report = load_compatible(model, state)
    assert report.loaded == tuple(f"backbone.{n}" for n in ("0.weight", "1.weight", "1.running_mean", "1.running_var"))
    assert report.missing == ("backbone.1.bias",) and report.unused == ("neck.x", "note")
    assert report.mismatched == {
        "head.weight": "file [5, 4, 1, 1], model [3, 4, 1, 1]",
        "head.bias": "file [5], model [3]",
    }
    assert report.counts("backbone") == (4, 5, 108 + 12, 108 + 16) and report.counts("head") == (0, 2, 0, 15)
    now = model.state_dict()
    for name in report.loaded:
        assert torch.equal(now[name], other.state_dict()[name])
    for name in (*report.missing, *report.mismatched):
        assert torch.equal(now[name], fresh[name])
    told(report.text(), "4 of 5", "96.8%", "head.weight (file [5, 4, 1, 1], model [3, 4, 1, 1])")
    told(report.text(), "backbone.1.bias", "neck.x, note")


def test_weights_that_fit_too_little_of_the_backbone_are_refused():
    report = load_compatible(Model(), Model().state_dict())
    assert report.require(backbone=1.0, head=1.0) is report
    with refused(CheckpointError, "0%", "backbone", "80%", "model=", "weights=none"):
        load_compatible(Model(width=4), Model(width=6).state_dict()).require(backbone=0.8)


def test_matching_batch_norms_do_not_hide_missing_convolutions():
    """Four of the five tensors of a block belong to its batch norm: by tensors alone they would be 80 %."""
    state = Model().state_dict()
    del state["backbone.0.weight"]
    report = load_compatible(Model(), state)
    assert report.counts("backbone")[:2] == (4, 5) and report.fraction("backbone") == pytest.approx(16 / 124)
    with refused(CheckpointError, "13%", "backbone", "80%"):
        report.require(backbone=0.8)


def test_weights_that_are_not_finite_are_never_loaded():
    state = Model().state_dict()
    state["head.bias"] = torch.tensor([1.0, float("inf"), 0.0])
    model = Model()
    before = model.head.weight.clone()
    with refused(CheckpointError, "head.bias"):
        load_compatible(model, state)
    assert torch.equal(model.head.weight, before)


def test_prefixes_of_wrappers_are_stripped():
    names = {"module.backbone.a": 1, "_orig_mod.module.neck.b": 2, "module._orig_mod.c": 3, "backbone._orig_mod.d": 4}
    assert without_prefixes(names) == {"backbone.a": 1, "neck.b": 2, "c": 3, "backbone.d": 4}
