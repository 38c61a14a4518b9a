"""Reads `.pdparams` files of PaddlePaddle: pickles of NumPy arrays. The pickle is interpreted here and runs no code.

The pickle module would call what a file names, take the memory that a file asks for, and hash what a file nests. So this module
executes the instructions itself. It knows those that PaddlePaddle writes, and raises ValueError for all others.
"""

import mmap
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from utils.file_checks import walk

MAX_STEPS = 1_000_000  # instructions in a file; the largest model has less than a tenth of them
NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"}  # types of the numbers in arrays
NAMES = {  # what a file may name, in all versions of Python and NumPy -> the same in one word
    **{f"numpy.{core}.multiarray _reconstruct": "reconstruct" for core in ("core", "_core")},
    **{f"{builtins} tuple": "tuple" for builtins in ("builtins", "__builtin__")},
    **{"numpy ndarray": "ndarray", "numpy dtype": "dtype", "_codecs encode": "encode"},
}
VALUES = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINFLOAT"}
VALUES |= {"BININT", "BININT1", "BININT2", "LONG1"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}


class Name(NamedTuple):
    """A name of NAMES in the file: of a function or a class."""

    word: str


class NumberType:
    """A NumPy dtype, which a file builds in two steps. The second one has the byte order."""

    def __init__(self, name: Any):
        if type(name) is not str or name not in NUMBERS:
            raise ValueError("an array of other values than numbers")
        self.name = name

    def build(self, state: Any) -> None:
        """Checks the byte order: little-endian, or none for bytes."""
        if state[1] not in ("<", "|"):
            raise ValueError("numbers of another byte order")


class Array:
    """A NumPy array, which a file builds in two steps. The second one has its shape, its type and its bytes."""

    numbers: np.ndarray | None = None
    tensor: torch.Tensor | None = None

    def build(self, state: Any) -> None:
        """Takes the state that NumPy writes, without a copy of the bytes."""
        _, shape, kind, by_columns, data = state
        sides_fit = type(shape) is tuple and all(type(side) is int and side >= 0 for side in shape)
        if not sides_fit or not isinstance(kind, NumberType) or type(data) is not bytes:
            raise ValueError("an array without numbers")
        self.numbers = np.frombuffer(data, kind.name).reshape(shape, order="F" if by_columns else "C")


def read(path: Path) -> Any:
    """Returns the contents of a `.pdparams` file: dicts, lists, numbers and text, with tensors for arrays. Raises ValueError.

    Newer versions store a tensor as a pair of its name and its array: the array is returned.
    """
    machine = Machine(room=2 * path.stat().st_size)
    # Unlike a file, mapped memory allocates no more than it holds when more is read.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
        for step, (opcode, value, _) in enumerate(pickletools.genops(program)):
            if step > MAX_STEPS:
                raise ValueError("it has too many instructions")
            if opcode.name == "STOP":
                contents = machine.stack.pop()
                for _ in walk(contents):  # bounds the number of values, which may be shared
                    pass
                return machine.plain(contents)
            machine.execute(opcode.name, value)
    raise ValueError("it is cut off")


class Machine:
    """The machine that a pickle is a program for: a stack, marks on it, and a memory of values."""

    def __init__(self, room: int):
        self.room = room  # bytes that copies may take
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def execute(self, name: str, value: Any) -> None:
        """Executes one instruction."""
        stack = self.stack
        if name in VALUES:
            stack.append(value)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memory[value] = stack[-1]
        elif name == "MEMOIZE":
            self.memory[len(self.memory)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memory[value])
        elif name == "GLOBAL":
            stack.append(named(value))
        elif name == "STACK_GLOBAL":
            module, attribute = self.pop(2)
            stack.append(named(f"{module} {attribute}"))
        elif name == "REDUCE":
            function, arguments = self.pop(2)
            stack.append(self.call(function, arguments))
        elif name == "BUILD":
            target, state = self.pop(2)
            target.build(state)
            stack.append(target)
        elif name not in ("PROTO", "FRAME"):
            self.fill(name)

    def fill(self, name: str) -> None:
        """Executes an instruction that makes a tuple, or fills a list or a dict."""
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self.stack.append(tuple(self.pop(int(name[-1]))))
        elif name == "TUPLE":
            self.stack.append(tuple(self.pop()))
        elif name in ("APPEND", "APPENDS"):
            items = self.pop(1 if name == "APPEND" else None)
            self.stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.pop(2 if name == "SETITEM" else None)
            if not all(type(key) in (str, int) for key in items[::2]):
                raise ValueError("a key that is neither text nor a number")
            self.stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError(f"{name}, which PaddlePaddle does not write")

    def pop(self, count: int | None = None) -> list[Any]:
        """Takes `count` values from the stack, or those above the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        values = self.stack[start:]
        if count not in (None, len(values)):
            raise ValueError("too few values")
        del self.stack[start:]
        return values

    def call(self, function: Any, arguments: Any) -> Any:
        """Returns what a function of NAMES would return."""
        if function == Name("reconstruct"):
            return Array()
        if function == Name("dtype"):
            return NumberType(arguments[0])
        if function == Name("tuple") and type(arguments[0]) is tuple:
            return arguments[0]
        if function == Name("encode") and type(arguments[0]) is str and arguments[1] == "latin1":
            self.take(len(arguments[0]))
            return arguments[0].encode("latin1")  # bytes that protocol 2 stores as text
        raise ValueError("Python objects")

    def take(self, size: int) -> None:
        """Takes room for a copy: a file may refer to the same bytes many times."""
        self.room -= size
        if self.room < 0:
            raise ValueError("it asks for more memory than it fills")

    def plain(self, value: Any) -> Any:
        """Returns nested containers with tensors for arrays."""
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Array):
            value = value[1]
        if isinstance(value, Array):
            return self.tensor(value)
        if isinstance(value, Name | NumberType):
            raise ValueError("Python objects")
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value

    def tensor(self, array: Array) -> torch.Tensor:
        """Returns the tensor of an array, the same one each time that a file refers to it."""
        if array.numbers is None:
            raise ValueError("an array without numbers")
        if array.tensor is None:
            self.take(array.numbers.nbytes)
            array.tensor = torch.from_numpy(np.array(array.numbers, order="C"))
        return array.tensor


def named(name: str) -> Name:
    """Returns a name of NAMES. Raises ValueError for others."""
    if name not in NAMES:
        raise ValueError(f"Python objects ({name[:80].replace(' ', '.')})")
    return Name(NAMES[name])
