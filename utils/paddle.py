"""Reads `.pdparams` files of PaddlePaddle: pickles of NumPy arrays. The unpickler finds only what such arrays need.

So no code of a file runs. As with PyTorch's own files, the memory and the time that a hostile file takes are not bounded.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")  # types of the values in arrays
FOUND = {  # everything that a pickle may name, in all versions of Python and NumPy -> the method of Unpickler
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "new_array" for core in ("core", "_core")},
    **{(builtins, "tuple"): "same_tuple" for builtins in ("builtins", "__builtin__")},
    ("numpy", "dtype"): "new_type",
    ("numpy", "ndarray"): "new_array",  # only an argument of _reconstruct
    ("_codecs", "encode"): "encode",
}


class NumberType:
    """Stands for a NumPy dtype. The second step of its pickle has the byte order."""

    def __init__(self, name: str):
        if name not in NUMBERS:
            raise ValueError("an array of other values than numbers")
        self.name = name

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError("numbers of another byte order")


class Array:
    """Stands for a NumPy array. The second step of its pickle has the shape, the type and the bytes."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if type(data) is not bytes:
            raise ValueError("an array without numbers")
        numbers = np.frombuffer(data, kind.name).reshape(shape, order="F" if by_columns else "C")
        self.tensor = torch.from_numpy(np.array(numbers, order="C"))


class Unpickler(pickle.Unpickler):
    """Unpickles containers, numbers, text and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Callable:
        """Returns a new function for a name of FOUND: a pickle may change attributes of what it gets. Raises ValueError."""
        if (module, name) not in FOUND:
            raise ValueError(f"Python objects ({module}.{name})"[:100])
        functions: dict[str, Callable] = {
            "new_array": lambda *_: Array(),
            "new_type": lambda name, *_: NumberType(name),
            "same_tuple": lambda values: tuple(values),  # a pair of a name and an array
            "encode": lambda text, _: text.encode("latin1"),  # protocol 2 stores bytes as text
        }
        return functions[FOUND[module, name]]


def read(path: Path) -> Any:
    """Returns the contents of a `.pdparams` file: dicts, lists, numbers and text, with tensors for arrays. Raises ValueError."""
    with open(path, "rb") as file:
        return plain(Unpickler(file).load())


def plain(value: Any) -> Any:
    """Returns nested containers with tensors for arrays, and for the pairs of name and array of newer versions."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Array):
        value = value[1]
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value) not in (type(None), bool, int, float, str, bytes):
        raise ValueError("Python objects")
    return value
