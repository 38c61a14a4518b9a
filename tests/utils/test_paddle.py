"""utils/paddle.py: files of PaddlePaddle are read, and pickles of other things are refused without running anything."""

import contextlib
import io
import os
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from refused import refused

from utils import checkpoint, paddle
from utils.file_checks import CheckpointError

DATA = Path(__file__).parents[1] / "data"


def written(path: Path, value, protocol: int = 4) -> Path:
    """Pickles a value as `paddle.save` does."""
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("name", ["tiny_protocol2", "tiny_protocol4", "tiny_nested"])
def test_files_of_paddle_are_read_without_paddle(name):
    contents = checkpoint.read(DATA / f"{name}.pdparams")
    state = contents.get("model", contents)
    assert state["backbone.conv1.conv.weight"].shape == (16, 3, 3, 3)
    assert state["backbone.conv1.conv.weight"].dtype == torch.float32
    others = checkpoint.read(DATA / "tiny_protocol4.pdparams")
    for key, value in others.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(state[key], value) and value.abs().sum() > 0
    assert sum(isinstance(value, torch.Tensor) for value in others.values()) > 15


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_keep_shape_type_and_order(tmp_path, protocol):
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(3, 4, 5)), "by columns": np.asfortranarray(rng.normal(size=(4, 7)))}
    arrays |= {str(kind): rng.normal(0, 9, (2, 3)).astype(kind) for kind in ("f2", "f4", "i1", "i8", "u1", "?")}
    arrays["scalar"] = np.array(2.5)
    contents = {"state": arrays, "rest": [1, -1, 2**40, 0.5, None, True, "text", b"bytes", []]}
    read = paddle.read(written(tmp_path / "a.pdparams", contents, protocol))
    assert read["rest"] == contents["rest"] and read["state"].keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(read["state"][name].numpy(), array), name


class Call:
    """Runs a command when it is unpickled."""

    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


HOSTILE = {
    "a command": lambda: Call(os.mkdir, "owned"),
    "an object": lambda: np.random.default_rng(0),
    "objects in an array": lambda: np.array([Call(os.mkdir, "owned")], dtype=object),
    "numbers of another byte order": lambda: np.arange(4, dtype=">f4"),
    "text in an array": lambda: np.array(["a", "b"]),
    "a set": lambda: {1, 2},
    "a function": lambda: tuple,
}


def test_nothing_else_is_found():
    """Whatever a pickle names: only what stands for the parts of an array, new for each file."""
    found, unpickler = set(), paddle.Unpickler(io.BytesIO())
    for name, module in list(sys.modules.items()):
        for attribute in list(vars(module)) if isinstance(module, types.ModuleType) else ():
            with contextlib.suppress(ValueError):
                unpickler.find_class(name, attribute)
                found.add((name, attribute))
    assert found <= set(paddle.FOUND) and ("builtins", "tuple") in found
    for module, name in paddle.FOUND:  # a pickle may change the attributes of what it gets
        assert unpickler.find_class(module, name) is not unpickler.find_class(module, name)


@pytest.mark.parametrize("name", HOSTILE)
def test_other_pickles_are_refused_and_run_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "a.pdparams", {"weight": HOSTILE[name]()})
    with refused(CheckpointError, path, "PaddlePaddle"):
        checkpoint.read(path)
    assert not Path("owned").exists()


def test_arrays_that_a_file_names_twice_are_one_tensor(tmp_path):
    array = np.arange(100_000.0)
    read = paddle.read(written(tmp_path / "a.pdparams", {str(i): array for i in range(9)}))
    assert torch.equal(read["8"], torch.arange(100_000.0).double()) and read["8"] is read["0"]


def test_flipped_and_cut_bytes_are_one_clean_error_or_numbers(tmp_path):
    data, rng = (DATA / "tiny_protocol2.pdparams").read_bytes(), np.random.default_rng(0)
    path, refusals = tmp_path / "a.pdparams", 0
    for trial in range(60):
        spoiled = bytearray(data[: rng.integers(len(data))] if trial % 3 == 0 else data)
        for place in rng.integers(0, min(len(spoiled), 600), 2):
            spoiled[place] = rng.integers(256)
        path.write_bytes(spoiled)
        try:
            checkpoint.read(path)
        except CheckpointError as error:
            refusals += 1
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 400
    assert refusals > 30
