"""utils/checkpoint.py: files are never half written, hold plain data only, and old ones can still be read and resumed."""

import os
import pickle
import sys
import time
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from refused import refused
from torch import nn

from utils.checkpoint import FORMAT, DiskError, load, plain, read, save
from utils.file_checks import CheckpointError
from utils.files import atomic_write

ROOT = Path(__file__).parents[2]


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


def test_a_saved_checkpoint_is_loaded_unchanged(tmp_path):
    save(tmp_path / "last.pt", contents())
    loaded = load(tmp_path / "last.pt")
    assert torch.equal(loaded["model"]["backbone.a"], torch.ones(3, 2)) and loaded["model"]["n"].item() == 7
    assert torch.equal(loaded["resume"]["updater"]["state"][0], torch.zeros(2))
    assert loaded["config"] == contents()["config"] and loaded["step"] == 2**70 and loaded["classes"] == ["cat", "狗"]
    assert loaded["format"] == FORMAT and np.isnan(loaded["metrics"]["AP_small"])
    assert os.listdir(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("layout", ["plain", "channels_last", "bfloat16", "bool", "empty", "scalar"])
def test_tensors_of_every_kind_are_saved_bit_for_bit(tmp_path, layout):
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


def test_only_plain_values_are_saved():
    class Point(NamedTuple):
        x: int

    made = plain(
        {"n": np.float64(1.5), "i": np.int32(3), "p": Path("a") / "b", "a": np.arange(3), "o": OrderedDict(k=(1, [2]))}
    )
    assert torch.equal(made.pop("a"), torch.arange(3))
    assert made == {"n": 1.5, "i": 3, "p": os.path.join("a", "b"), "o": {"k": (1, [2])}}
    assert type(made["n"]) is float and type(made["i"]) is int and type(made["o"]) is dict
    for bad in (Point(1), torch.float32, {1, 2}, Path, nn.Linear(1, 1), np.array([None])):
        with refused(CheckpointError, "contents.resume.1"):
            plain({"resume": [0, bad]})


def test_a_slice_is_saved_without_the_rest_of_its_storage(tmp_path):
    big = torch.randn(1_000_000)
    parameter = nn.Parameter(big[:4])
    save(tmp_path / "a.pt", {"model": {"w": parameter}})
    assert (tmp_path / "a.pt").stat().st_size < 10_000
    again = load(tmp_path / "a.pt")["model"]["w"]
    assert torch.equal(again, big[:4]) and type(again) is torch.Tensor and not again.requires_grad


@pytest.mark.parametrize(
    ("place", "first"),
    [("model", "model.x.0"), ("resume.model", "resume.model.x.0"), ("resume.updater", "resume.updater.x.0")],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, place, first, bad):
    save(tmp_path / "last.pt", contents(5.0))
    new = contents(6.0)
    holder = {"model": new, "resume.model": new["resume"], "resume.updater": new["resume"]}[place]
    holder[place.rpartition(".")[2]] = {"x": [torch.tensor([1.0, bad])]}
    with refused(CheckpointError, "last.pt", first):
        save(tmp_path / "last.pt", new)
    assert load(tmp_path / "last.pt")["model"]["backbone.a"][0, 0] == 5
    assert os.listdir(tmp_path) == ["last.pt"]


def fail(error):
    def failing(*_, **__):
        raise error

    return failing


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path, monkeypatch, step, error):
    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    if step != "write":
        monkeypatch.setattr(os, step, fail(error))
    with pytest.raises(type(error)), atomic_write(path) as file:
        file.write(b"new")
        if step == "write":
            raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["table.csv"]


def test_a_full_disk_is_a_disk_error_that_names_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail(OSError(28, "No space left on device")))
    with refused(DiskError, "last.pt", tmp_path, "No space left on device"):
        save(tmp_path / "last.pt", contents())
    monkeypatch.undo()
    save(tmp_path / "last.pt", contents(5.0))
    monkeypatch.setattr(os, "fsync", fail(OSError(28, "No space left on device")))
    with refused(DiskError, "last.pt", tmp_path, "No space left on device"):
        try:
            raise KeyboardInterrupt  # a run that is stopped is saved while the signal is handled
        except KeyboardInterrupt:
            save(tmp_path / "last.pt", contents(6.0))
    assert load(tmp_path / "last.pt")["model"]["backbone.a"][0, 0] == 5


def test_a_file_without_its_end_replaces_no_other(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", {"model": {"a": torch.ones(10_000)}})
    write = torch.save

    def cut(data, file):
        write(data, file)
        file.truncate(20_000)  # in the middle of the tensor

    monkeypatch.setattr(torch, "save", cut)
    with refused(DiskError, "last.pt", "not complete"):
        save(tmp_path / "last.pt", {"model": {"a": torch.zeros(10_000)}})
    assert load(tmp_path / "last.pt")["model"]["a"].all()


def test_temporary_files_of_killed_processes_are_removed_later(tmp_path):
    """Also the temporary files of best.pt, which may never be saved again."""
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
def test_a_hostile_pickle_is_refused(tmp_path, monkeypatch, old_layout):
    monkeypatch.chdir(tmp_path)
    if old_layout:
        Path("bad.pt").write_bytes(pickle.dumps({"format": 1, "model": Hostile()}, protocol=2))
    else:
        torch.save({"format": 1, "model": Hostile()}, "bad.pt")
    with refused(CheckpointError, "bad.pt"):
        load("bad.pt")
    assert not Path("owned").exists()


@pytest.mark.parametrize("module", ["ultralytics.nn.tasks", "models.yolo"])
def test_a_checkpoint_of_ultralytics_is_refused_as_another_architecture(tmp_path, monkeypatch, module):
    kind = type("DetectionModel", (), {"__module__": module})
    for part in (module.partition(".")[0], module):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    sys.modules[module].DetectionModel = kind
    torch.save({"model": kind()}, tmp_path / "yolo11n.pt")
    with refused(CheckpointError, "yolo11n.pt", "Ultralytics", "weights=coco"):
        load(tmp_path / "yolo11n.pt")


def test_files_that_are_not_checkpoints_are_refused_by_name(tmp_path):
    file = tmp_path / "x.pt"
    for garbage in (b"", b"hello, this is text", b"PK\x03\x04 nearly a zip", os.urandom(5000)):
        file.write_bytes(garbage)
        with refused(CheckpointError, "x.pt"):
            load(file)
    torch.save({"model": {"a": torch.ones(1)}}, file)
    with refused(CheckpointError, "x.pt", "weights="):
        load(file)
    torch.save({"format": 3, "model": {}}, file)
    with refused(CheckpointError, "x.pt", "format 3", "format 2"):
        load(file)


def test_an_exported_file_is_refused_with_the_fix(tmp_path):
    (tmp_path / "best.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch")
    with refused(CheckpointError, "best.onnx", ".pt"):
        read(tmp_path / "best.onnx")


def test_the_message_for_a_missing_file_names_the_fix(tmp_path):
    with refused(CheckpointError, tmp_path / "best.pt", "train.py"):
        load(tmp_path / "best.pt")
    save(tmp_path / "best.pt", contents())
    with refused(CheckpointError, tmp_path / "best.pt"):
        load(tmp_path)


def test_another_file_of_a_run_names_its_checkpoint(tmp_path):
    save(tmp_path / "best.pt", {"model": {"a": torch.zeros(1)}})
    (tmp_path / "config.json").write_text("{}")
    with refused(CheckpointError, tmp_path / "config.json", f"did you mean {tmp_path / 'best.pt'}"):
        load(tmp_path / "config.json")


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "a.pt"
    save(file, {"model": {"a": torch.arange(10_000.0)}})
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        data = max(archive.infolist(), key=lambda item: item.file_size)
    for damaged in (whole[: len(whole) // 2], whole[:-1], bytearray(whole)):
        if isinstance(damaged, bytearray):
            damaged[data.header_offset + 5000] ^= 1  # one bit of one weight
        file.write_bytes(damaged)
        with refused(CheckpointError, "a.pt"):
            load(file)


def whole_checkpoint():
    """Contents with everything that a prediction and a resumed run need."""
    made = contents()
    made["config"]["model"] = "yolox_nano"
    made["resume"] |= {
        "meter": {"batches": 1, "seconds": 2.0, "sums": {}},
        "state": {"rows": ({"epoch": 1, "AP": 0.5},)},
    }
    made["resume"] |= {
        "origin": {"user_config": {"epochs": 3}, "fingerprint": {"classes": ["cat", "狗"]}, "trained": None}
    }
    made["resume"]["rates"] = {"power": 0.5, "max_images": 64, "clip": 10.0}
    made["resume"]["course"] = {"max_epochs": 0, "warmup_epochs": 1.0, "no_aug_epochs": 1, "budget": None}
    return made


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("classes", 5),
        ("classes", ["cat\ud800"]),
        ("config.image_size", (10**6, 10**6)),
        ("config.image_size", ...),
        ("config", [1]),
        ("metrics", {"confidence": "1"}),
        ("thresholds", {"cat": float("nan")}),
        ("thresholds", [0.5]),
        ("value_range", [0.5, 1]),
        ("value_range", "01"),
        ("model", {"a": torch.tensor(float("nan"))}),
        ("resume.meter.batches", "1"),
        ("resume.state.rows", {}),
        ("resume.updater", ...),
        ("resume", [1]),
    ],
)
def test_contents_of_a_wrong_type_are_refused(tmp_path, place, value):
    made, path = whole_checkpoint(), tmp_path / "a.pt"
    torch.save(made | {"format": FORMAT}, path)
    for purpose in (None, "prediction", "resuming"):
        assert load(path, purpose)["epoch"] == 3
    *parents, name = place.split(".")
    inside = made
    for parent in parents:
        inside = inside[parent]
    inside[name] = value
    if value is ...:
        del inside[name]
    torch.save(made | {"format": FORMAT}, path)
    with refused(CheckpointError, "a.pt") as caught:
        load(path, "resuming" if "resume" in place else "prediction")
    assert "\n" not in str(caught.value)
