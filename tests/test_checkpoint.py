"""utils/checkpoint.py: never half written, nothing but plain data, and a report of what fits."""

import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from utils.checkpoint import CheckpointError, load, load_matching, plain, save, strip

ROOT = Path(__file__).parents[1]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses Linux limits and signals")


def contents(value=1.0):
    return {
        "config": {"train": "a.txt", "image_size": (64, 96), "weights": None, "mosaic": 0.5, "ema": True},
        "classes": ["cat", "狗"],
        "epoch": 3,
        "step": 2**70,
        "metrics": {"AP": -1.0, "AP_small": float("nan")},
        "model": {"backbone.a": torch.full((3, 2), value), "n": torch.tensor(7)},
        "resume": {"model": {"backbone.a": torch.full((3, 2), value)}, "updater": {"state": [torch.zeros(2)]}},
    }


def test_what_is_saved_is_loaded(tmp_path):
    save(tmp_path / "last.pt", contents())
    loaded = load(tmp_path / "last.pt")
    assert torch.equal(loaded["model"]["backbone.a"], torch.ones(3, 2)) and loaded["model"]["n"].item() == 7
    assert torch.equal(loaded["resume"]["updater"]["state"][0], torch.zeros(2))
    assert loaded["config"] == contents()["config"] and loaded["step"] == 2**70 and loaded["classes"] == ["cat", "狗"]
    assert loaded["format"] == 1 and np.isnan(loaded["metrics"]["AP_small"])
    assert os.listdir(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("layout", ["plain", "channels_last", "bfloat16", "bool", "empty", "scalar"])
def test_tensors_of_every_kind_survive_the_read_back(tmp_path, layout):
    tensor = {
        "plain": torch.randn(2, 3, 4, 5),
        "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "bfloat16": torch.randn(4).bfloat16(),
        "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(1.5),
    }[layout]
    save(tmp_path / "a.pt", {"model": {"t": tensor}})
    again = load(tmp_path / "a.pt")["model"]["t"]
    assert torch.equal(again, tensor) and again.dtype == tensor.dtype and again.stride() == tensor.stride()


def test_plain_values_only():
    class Point(NamedTuple):
        x: int

    made = plain(
        {"n": np.float64(1.5), "i": np.int32(3), "p": Path("a") / "b", "a": np.arange(3), "o": OrderedDict(k=(1, [2]))}
    )
    assert torch.equal(made.pop("a"), torch.arange(3))
    assert made == {"n": 1.5, "i": 3, "p": os.path.join("a", "b"), "o": {"k": (1, [2])}}
    assert type(made["n"]) is float and type(made["i"]) is int and type(made["o"]) is dict
    for bad in (Point(1), torch.float32, {1, 2}, Path, nn.Linear(1, 1), np.array([None])):
        with pytest.raises(CheckpointError, match=r"contents\.resume\.1 is a"):
            plain({"resume": [0, bad]})


def test_a_slice_is_saved_without_the_rest_of_its_storage(tmp_path):
    big = torch.randn(1_000_000)
    parameter = nn.Parameter(big[:4])
    save(tmp_path / "a.pt", {"model": {"w": parameter}})
    assert (tmp_path / "a.pt").stat().st_size < 10_000
    again = load(tmp_path / "a.pt")["model"]["w"]
    assert torch.equal(again, big[:4]) and type(again) is torch.Tensor and not again.requires_grad


@pytest.mark.parametrize("place", ["model", "resume.model", "resume.updater"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_weights_are_never_saved(tmp_path, place, bad):  # PITFALLS 2
    save(tmp_path / "last.pt", contents(5.0))
    new = contents(6.0)
    holder = {"model": new, "resume.model": new["resume"], "resume.updater": new["resume"]}[place]
    holder[place.rpartition(".")[2]] = {"x": [torch.tensor([1.0, bad])]}
    with pytest.raises(CheckpointError, match="not finite"):
        save(tmp_path / "last.pt", new)
    assert load(tmp_path / "last.pt")["model"]["backbone.a"][0, 0] == 5
    assert os.listdir(tmp_path) == ["last.pt"]


def test_an_error_of_the_disk_leaves_the_old_file(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", contents(5.0))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*the previous one is kept"):
        save(tmp_path / "last.pt", contents(6.0))
    monkeypatch.undo()
    assert load(tmp_path / "last.pt")["model"]["backbone.a"][0, 0] == 5
    assert os.listdir(tmp_path) == ["last.pt"]


@LINUX
def test_a_full_disk_while_writing_leaves_the_old_file(tmp_path):
    """The limit on file size makes write() fail in the middle, as a full disk does."""
    program = f"""
import resource, signal, torch
from utils.checkpoint import save, CheckpointError
save({str(tmp_path / "last.pt")!r}, {{"model": {{"a": torch.ones(3)}}}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save({str(tmp_path / "last.pt")!r}, {{"model": {{"a": torch.zeros(1_000_000)}}}})
except CheckpointError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "File too large" in out.stdout and "previous one is kept" in out.stdout, out.stdout + out.stderr
    assert torch.equal(load(tmp_path / "last.pt")["model"]["a"], torch.ones(3))
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_write_that_went_wrong_is_noticed_by_reading_it_back(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", contents(5.0))
    wrong = torch.save
    monkeypatch.setattr(torch, "save", lambda _, file: wrong(plain({**contents(7.0), "format": 1}), file))
    with pytest.raises(CheckpointError, match="differs"):
        save(tmp_path / "last.pt", contents(6.0))
    assert load(tmp_path / "last.pt")["model"]["backbone.a"][0, 0] == 5


@LINUX
def test_kill_during_save_leaves_a_whole_file(tmp_path):  # PITFALLS 40
    program = f"""
import torch
from utils.checkpoint import save
for i in range(100000):
    save({str(tmp_path / "last.pt")!r}, {{"step": i, "model": {{"a": torch.full((2_000_000,), float(i))}}}})
    print(i, flush=True)
"""
    rng = np.random.default_rng(0)
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        loaded = load(tmp_path / "last.pt")
        assert (loaded["model"]["a"] == loaded["step"]).all()


def test_what_killed_processes_left_is_removed_in_time(tmp_path):
    """Also of a best.pt after which there was no better one."""
    old, older, young = (tmp_path / name for name in (".last.pt.a-1.tmp", ".best.pt.a-1.tmp", ".last.pt.a-2.tmp"))
    for file in (old, older, young):
        file.write_bytes(b"half")
    for file in (old, older):
        os.utime(file, (time.time() - 3600,) * 2)
    save(tmp_path / "last.pt", contents())
    assert sorted(os.listdir(tmp_path)) == [young.name, "last.pt"]


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.parametrize("old_layout", [False, True])
def test_a_hostile_pickle_is_refused(tmp_path, monkeypatch, old_layout):  # PITFALLS 33
    monkeypatch.chdir(tmp_path)
    if old_layout:
        Path("bad.pt").write_bytes(pickle.dumps({"format": 1, "model": Hostile()}, protocol=2))
    else:
        torch.save({"format": 1, "model": Hostile()}, "bad.pt")
    with pytest.raises(CheckpointError, match="could run code when loaded: refused"):
        load("bad.pt")
    assert not Path("owned").exists()


def test_files_that_are_no_checkpoints_say_so(tmp_path):
    file = tmp_path / "x.pt"
    for garbage in (b"", b"hello, this is text", b"PK\x03\x04 nearly a zip", os.urandom(5000)):
        file.write_bytes(garbage)
        with pytest.raises(CheckpointError, match="x.pt"):
            load(file)
    torch.save({"model": {"a": torch.ones(1)}}, file)
    with pytest.raises(CheckpointError, match="no checkpoint of this project.*weights="):
        load(file)
    torch.save({"format": 2, "model": {}}, file)
    with pytest.raises(CheckpointError, match="format 2, known is 1"):
        load(file)


def test_a_missing_file_comes_with_the_cure(tmp_path):
    with pytest.raises(CheckpointError, match="train.py writes them"):
        load(tmp_path / "best.pt")
    save(tmp_path / "best.pt", contents())
    with pytest.raises(CheckpointError, match="did you mean .*best.pt"):
        load(tmp_path)


def test_damage_is_noticed(tmp_path):
    file = tmp_path / "a.pt"
    save(file, {"model": {"a": torch.arange(10_000.0)}})
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        data = max(archive.infolist(), key=lambda item: item.file_size)
    for damaged in (whole[: len(whole) // 2], whole[:-1], bytearray(whole)):
        if isinstance(damaged, bytearray):
            damaged[data.header_offset + 5000] ^= 1  # one bit of one weight
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            load(file)


def test_prefixes_of_wrappers_are_stripped(tmp_path):  # PITFALLS 39
    names = {"module.backbone.a": 1, "_orig_mod.module.neck.b": 2, "module._orig_mod.c": 3, "backbone._orig_mod.d": 4}
    assert strip(names) == {"backbone.a": 1, "neck.b": 2, "c": 3, "backbone.d": 4}
    state = {"module.backbone.a": torch.ones(2)}
    save(tmp_path / "a.pt", {"model": state, "resume": {"model": state}})
    loaded = load(tmp_path / "a.pt")
    assert list(loaded["model"]) == list(loaded["resume"]["model"]) == ["backbone.a"]


class Model(nn.Module):
    def __init__(self, width=4, classes=3):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width))
        self.head = nn.Conv2d(width, classes, 1)


def test_load_matching_takes_what_fits_and_reports_the_rest():
    model, other = Model(), Model(classes=5)
    nn.init.constant_(other.backbone[1].running_mean, 3.0)
    state = {f"module.{k}": v for k, v in other.state_dict().items()} | {"neck.x": torch.ones(1), "note": "text"}
    del state["module.backbone.1.bias"]
    fresh = {k: v.clone() for k, v in model.state_dict().items()}
    report = load_matching(model, state)
    assert report.taken == tuple(f"backbone.{n}" for n in ("0.weight", "1.weight", "1.running_mean", "1.running_var"))
    assert report.missing == ("backbone.1.bias",) and report.unused == ("neck.x", "note")
    assert report.mismatched == {
        "head.weight": "file [5, 4, 1, 1], model [3, 4, 1, 1]",
        "head.bias": "file [5], model [3]",
    }
    assert report.tensors == {"backbone": (4, 5), "head": (0, 2)}
    assert report.parameters == {"backbone": (108 + 12, 108 + 16), "head": (0, 15)}
    now = model.state_dict()
    for name in report.taken:
        assert torch.equal(now[name], other.state_dict()[name])
    for name in (*report.missing, *report.mismatched):
        assert torch.equal(now[name], fresh[name])
    text = report.text()
    assert "4 of 5 tensors" in text and "96.8 %" in text
    assert "head.weight (file [5, 4, 1, 1], model [3, 4, 1, 1])" in text
    assert "not in the file: backbone.1.bias" in text and "not in the model: neck.x, note" in text


def test_too_little_of_the_backbone_is_an_error():  # PITFALLS 17
    report = load_matching(Model(), Model().state_dict())
    assert report.require(backbone=1.0, head=1.0) is report
    with pytest.raises(CheckpointError, match=r"only 0 % of the backbone fits, 80 % are wanted.*model="):
        load_matching(Model(width=4), Model(width=6).state_dict()).require(backbone=0.8)


def test_matching_batch_norms_do_not_hide_missing_convolutions():
    """Four of five tensors of a block belong to its batch norm: counted alone they would reach 80 %."""
    state = Model().state_dict()
    del state["backbone.0.weight"]
    report = load_matching(Model(), state)
    assert report.tensors["backbone"] == (4, 5) and report.share("backbone") == pytest.approx(16 / 124)
    with pytest.raises(CheckpointError, match="backbone"):
        report.require(backbone=0.8)


def test_weights_that_are_not_finite_are_not_loaded():
    state = Model().state_dict()
    state["head.bias"] = torch.tensor([1.0, float("inf"), 0.0])
    model = Model()
    before = model.head.weight.clone()
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        load_matching(model, state)
    assert torch.equal(model.head.weight, before)
