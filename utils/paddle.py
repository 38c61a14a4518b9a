"""Reads `.pdparams` files of PaddlePaddle: pickles of NumPy arrays. Their unpickler finds nothing but what such arrays need.

So no code of a file runs. As with PyTorch's own files, the memory and the time that a hostile file takes are not bounded.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.file_checks import walk

NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"}  # types of the numbers in arrays


class NumberType:
    """A NumPy dtype, which a pickle builds in two steps. The second one has the byte order."""

    __slots__ = ("name",)

    def __init__(self, name: Any):
        if type(name) is not str or name not in NUMBERS:
            raise ValueError("an array of other values than numbers")
        self.name = name

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError("numbers of another byte order")


class Array:
    """A NumPy array, which a pickle builds in two steps. The second one has its shape, its type and its bytes."""

    __slots__ = ("tensor",)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if not isinstance(kind, NumberType) or type(data) is not bytes:
            raise ValueError("an array without numbers")
        numbers = np.frombuffer(data, kind.name).reshape(shape, order="F" if by_columns else "C")
        self.tensor = torch.from_numpy(np.array(numbers, order="C"))


class Call:
    """What stands for a function that a pickle calls. It has no attributes that a pickle could change."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        raise NotImplementedError


class NewArray(Call):
    """Stands for numpy.core.multiarray._reconstruct."""

    __slots__ = ()

    def __call__(self, *_: Any) -> Array:
        return Array()


class NewType(Call):
    """Stands for numpy.dtype."""

    __slots__ = ()

    def __call__(self, name: Any, *_: Any) -> NumberType:
        return NumberType(name)


class Tuple(Call):
    """Stands for tuple, which PaddlePaddle calls for a pair of a name and an array."""

    __slots__ = ()

    def __call__(self, values: Any) -> tuple:
        if type(values) is not tuple:
            raise ValueError("a tuple of other values")
        return values


class Encode(Call):
    """Stands for _codecs.encode: protocol 2 stores bytes as text."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise ValueError("text that is no bytes")
        return text.encode("latin1")


FOUND = {  # everything that a pickle may name, in all versions of Python and NumPy
    **{(f"numpy.{core}.multiarray", "_reconstruct"): NewArray() for core in ("core", "_core")},
    **{("numpy", "dtype"): NewType(), ("_codecs", "encode"): Encode()},
    ("numpy", "ndarray"): None,  # an argument of _reconstruct
    **{(builtins, "tuple"): Tuple() for builtins in ("builtins", "__builtin__")},
}


class Unpickler(pickle.Unpickler):
    """Unpickles containers, numbers, text and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a name of FOUND. Raises ValueError for others."""
        if (module, name) not in FOUND:
            raise ValueError(f"Python objects ({module}.{name})"[:100])
        return FOUND[module, name]


def read(path: Path) -> Any:
    """Returns the contents of a `.pdparams` file: dicts, lists, numbers and text, with tensors for arrays. Raises ValueError.

    Newer versions store a tensor as a pair of its name and its array: the array is returned.
    """
    data = path.read_bytes()
    require_small_numbers(data)
    contents = Unpickler(io.BytesIO(data)).load()
    for _ in walk(contents):  # bounds the number of values, which may be shared
        pass
    return plain(contents)


def require_small_numbers(data: bytes) -> None:
    """Raises ValueError for instructions of a pickle that take more memory or time in Python's reader than in PyTorch's.

    Large integers may have one hash, so that a dict of them takes quadratic time, and the reader makes room for all places of its
    memory up to the one that an instruction names.
    """
    for step, (opcode, value, _) in enumerate(pickletools.genops(data)):
        if opcode.name in ("INT", "LONG", "LONG1", "LONG4") and abs(value) >= 2**60:
            raise ValueError("numbers that no weights have")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and value > step:
            raise ValueError("a place in the memory that does not exist")


def plain(value: Any) -> Any:
    """Returns nested containers with tensors for arrays."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Array):
        value = value[1]
    if isinstance(value, Array) and hasattr(value, "tensor"):
        return value.tensor
    if isinstance(value, dict):
        if not all(type(key) in (str, int) for key in value):
            raise ValueError("a key that is neither text nor a number")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value) not in (type(None), bool, int, float, str, bytes):
        raise ValueError("Python objects")
    return value
