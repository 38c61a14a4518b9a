"""A simulated GPU: it computes on the CPU and behaves like CUDA, so that tests of GPU code need no GPU.

    with simulated_gpu() as gpu:
        train.main(cfg)  # device=auto is cuda:0
    assert gpu.waits == []

A tensor on the simulated GPU is a `GPUTensor`, which holds a CPU tensor and whose `device` is cuda:0. As with CUDA, an
operation on a GPU tensor and a CPU tensor raises, copies between the devices are explicit, a copy to the host without
blocking has no values before the program waits, and memory runs out. The simulation records every operation that makes the
host wait for the device, with the line of the project that called it. It cannot show speed, nor the kernels of CUDA.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.utils.clip_grad
import torch.utils._foreach_utils
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parents[1]
DEVICE = torch.device("cuda:0")
GIB = 2**30
aten = torch.ops.aten

# Operations for which CUDA returns values or sizes to the host. `_check` and `_copy` find waits for masks and for copies.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim", "bincount"),
    *("unique_consecutive", "repeat_interleave.Tensor", "nms"),
}
COPIES = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class Wait(NamedTuple):
    """A moment at which the host waited for the GPU."""

    file: str  # relative to the project
    line: int
    function: str
    operation: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.operation}"


class Allocation:
    """Memory of one tensor and of its views, freed with the last of them."""

    def __init__(self, gpu: "SimulatedGPU", size: int):
        self.gpu, self.size = gpu, size
        gpu.allocated += size
        gpu.peak = max(gpu.peak, gpu.allocated)

    def __del__(self):
        self.gpu.allocated -= self.size


class GPUTensor(torch.Tensor):
    """A tensor on the simulated GPU. C++ sees a CPU tensor without data, Python sees the device cuda:0."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, allocation: Allocation):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **layout, dtype=inner.dtype, device="cpu")
        tensor.inner, tensor.allocation = inner, allocation
        return tensor

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on a tensor of the simulated GPU outside of the simulation, or in another thread")

    def __repr__(self) -> str:
        return f"GPUTensor({list(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict) -> "GPUTensor":
        with torch.no_grad():
            copied = self.clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied

    def get_device(self) -> int:
        return DEVICE.index

    def to(self, *args, copy: bool = False, **kwargs) -> Tensor:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        layout = {} if memory_format is None else {"memory_format": memory_format}
        if device is None or device.type == "cuda":
            return super().to(dtype or self.dtype, copy=copy, **layout)
        return aten._to_copy.default(self, dtype=dtype, device=device, non_blocking=non_blocking, **layout)

    def cpu(self, **kwargs) -> Tensor:
        return self.to("cpu", **kwargs)

    def cuda(self, *_, **__) -> Tensor:
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def backward(self, *args, **kwargs) -> None:
        gpu = self.allocation.gpu
        gpu.in_backward = True  # here C++ creates tensors on the device of others, which it takes for the CPU
        try:
            super().backward(*args, **kwargs)
        finally:
            gpu.in_backward = False


class SimulatedGPU(TorchDispatchMode):
    """Runs the operations of the simulated GPU, and records them.

    `waits`: every moment at which the host waited for the device. `operations`: how often each operation ran on the device.
    """

    def __init__(self, memory: int = 8 * GIB):
        super().__init__()
        self.memory, self.allocated, self.peak = memory, 0, 0
        self.device, self.stream = DEVICE, "default"  # the current ones
        self.waits: list[Wait] = []
        self.operations: Counter[str] = Counter()
        self.in_backward = False
        self._arriving: list[tuple[Tensor, Tensor]] = []  # copies to the host without a wait so far

    def wait(self, operation: str) -> None:
        """Records that the host waits for the device. Copies to the host arrive."""
        self.waits.append(Wait(*_place(), operation))
        for target, values in self._arriving:
            target.copy_(values)
        self._arriving.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, _facts(func)
        if facts.composite:  # in inference mode these arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        on_gpu, on_cpu = _split(args, kwargs)
        device = kwargs.get("device")
        if not (on_gpu or self.in_backward or (device is not None and device.type == "cuda")):
            return func(*args, **kwargs)
        if device is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if func in COPIES:
            return self._copy(func, args, kwargs, None if self.in_backward else device)
        self._check(func, facts, args, on_gpu, on_cpu)
        return self._run(func, args, kwargs, on_gpu)

    def _check(self, func, facts: "Facts", args: tuple, on_gpu: list[GPUTensor], on_cpu: list[Tensor]) -> None:
        """Raises for a mix of devices, and records whether the host waits."""
        if facts.waits:
            self.wait(facts.name)
        if func in INDEXING and on_gpu:
            if on_cpu and isinstance(args[0], GPUTensor):
                self.wait(f"{facts.name} with indices on the CPU")
                on_cpu = []
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            if masks and (func is aten.index.Tensor or args[2].numel() != 1):
                self.wait(f"{facts.name} with a mask")
        if on_cpu and on_gpu and (wrong := [x for x in on_cpu if x.dim() > 0 or not facts.takes_numbers]):
            shapes = ", ".join(str(list(x.shape)) for x in wrong)
            where = "{}:{} in {}".format(*_place())
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {facts.name} got cuda:0 and cpu (shape {shapes}), "
                f"at {where}"
            )

    def _run(self, func, args: tuple, kwargs: Mapping, on_gpu: list[GPUTensor]):
        """Runs an operation on the CPU tensors inside, and puts its results on the device."""
        facts = _facts(func)
        self.operations[facts.name] += 1
        results = func(*_unwrap(args), **(kwargs and {name: _unwrap(value) for name, value in kwargs.items()}))
        known = {id(x.inner): x for x in on_gpu}
        if facts.mutable and any(x.shape != x.inner.shape for x in on_gpu):
            raise NotImplementedError(f"{func} changes the shape of a tensor in place")
        shared = on_gpu[0].allocation if on_gpu and facts.view else None
        if shared and torch.is_inference_mode_enabled() and not on_gpu[0].is_inference():
            with torch.inference_mode(False):  # a view is an inference tensor only if its base is one
                return self._wrap(results, known, shared)
        if isinstance(results, list | tuple):
            return type(results)(self._wrap(x, known, shared) for x in results)
        return self._wrap(results, known, shared)

    def _wrap(self, x: Any, known: Mapping[int, GPUTensor], shared: Allocation | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) in known:
            return known[id(x)]
        return GPUTensor(x, shared or self._allocate(x.nbytes))

    def _allocate(self, size: int) -> Allocation:
        if self.allocated + size > self.memory:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes. GPU 0 has {self.memory} bytes, {self.allocated} in use"
            )
        return Allocation(self, size)

    def _copy(self, func, args: tuple, kwargs: Mapping, device: torch.device | None):
        """Copies within the device, to it or from it. Only a copy from or to page-locked memory does not wait."""
        if func is aten._foreach_copy_.default:
            if any(isinstance(a, GPUTensor) != isinstance(b, GPUTensor) for a, b in zip(*args[:2], strict=True)):
                self.wait(f"{func} between devices")
            return self._run(func, args, kwargs, _split(args, {})[0])
        source, target = (args[1], args[0]) if func is aten.copy_.default else (args[0], None)
        to_gpu = isinstance(target, GPUTensor) if target is not None else device is None or device.type == "cuda"
        from_gpu = isinstance(source, GPUTensor)
        blocks = not (kwargs.get("non_blocking", False) or (target is not None and len(args) > 2 and args[2]))
        if to_gpu and not from_gpu and not self.in_backward:
            if blocks:
                self.wait(f"{func} from the host, blocking")
            elif not getattr(source, "pinned", False):
                self.wait(f"{func} from pageable memory of the host")
        elif from_gpu and not to_gpu:
            values = func(*_unwrap(args), **kwargs)
            if blocks or target is not None:
                self.wait(f"{func} to the host")
                return values
            self._arriving.append((poisoned := torch.full_like(values, _garbage(values.dtype)), values))
            return poisoned
        return self._run(func, args, kwargs, _split(args, {})[0])


def _place() -> tuple[str, int, str]:
    """Returns file, line and function in the project that called the current operation; in a test only if in no other file."""
    frame, found = sys._getframe(1), ("?", 0, "?")
    while frame is not None:
        path = _in_project(frame.f_code.co_filename)
        if path:
            found = path, frame.f_lineno, _function(frame)
            if not path.startswith("tests/"):
                break
        frame = frame.f_back
    return found


def _function(frame) -> str:
    """Returns the name of the function of a frame, also from inside of a generator or lambda expression."""
    while frame.f_code.co_name in ("<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>"):
        frame = frame.f_back
    return frame.f_code.co_name


@cache
def _in_project(file: str) -> str:
    """Returns the path of a source file relative to the project, "" for this file and files of packages."""
    path = Path(file)
    if path == Path(__file__) or not path.is_relative_to(ROOT) or "site-packages" in path.parts:
        return ""
    return path.relative_to(ROOT).as_posix()


def _garbage(dtype: torch.dtype) -> float | int | bool:
    """Returns the value of every element of a copy to the host that has not arrived yet."""
    return float("nan") if dtype.is_floating_point else dtype != torch.bool and torch.iinfo(dtype).max


class Facts(NamedTuple):
    """What the simulation knows about an operation."""

    name: str
    composite: bool  # it consists of others, which autograd would see one by one
    waits: bool  # the host waits for its result
    mutable: bool  # it changes an argument
    view: bool  # its results share the memory of its first argument
    takes_numbers: bool  # it takes tensors without dimensions from the CPU


@cache
def _facts(func) -> Facts:
    """Returns what the simulation knows about an operation, from its schema."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    composite = func.namespace == "aten" and func.has_kernel_for_dispatch_key(key)
    base, aliases = func._schema.name.partition("::")[2], [a.alias_info for a in func._schema.arguments]
    waits = base in WAITING or f"{base}.{func._overloadname}" in WAITING
    view = any(alias is not None and not alias.is_write for alias in aliases)
    numbers = torch.Tag.pointwise in func.tags or base.startswith("_foreach")
    return Facts(str(func), composite, waits, func._schema.is_mutable, view, numbers)


def _tensors(values: Iterable) -> Iterator[Tensor]:
    """Yields the tensors among the arguments of an operation, which holds some of them in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (x for x in value if isinstance(x, Tensor))


def _split(args: tuple, kwargs: Mapping) -> tuple[list[GPUTensor], list[Tensor]]:
    """Returns the tensors on the GPU and those on the CPU."""
    on_gpu, on_cpu = [], []
    for x in _tensors((*args, *kwargs.values()) if kwargs else args):
        (on_gpu if type(x) is GPUTensor else on_cpu).append(x)
    return on_gpu, on_cpu


def _unwrap(value: Any) -> Any:
    """Returns the CPU tensors inside of arguments."""
    if type(value) is GPUTensor:
        return value.inner
    return type(value)(map(_unwrap, value)) if isinstance(value, list | tuple) else value


class _Autocast(torch.autocast):
    """torch.autocast, which means the CPU's where the program writes "cuda"."""

    def __init__(self, device_type: str, *args, **kwargs):
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _group_tensors(groups: list[list[Tensor | None]], with_indices: bool = False) -> dict:
    """torch._C._group_tensors_by_device_and_dtype, with the device that Python sees."""
    found: dict = {}
    for i, first in enumerate(groups[0]):
        columns, indices = found.setdefault((first.device, first.dtype), ([[] for _ in groups], []))
        for column, group in zip(columns, groups, strict=True):
            column.extend(group[i : i + 1])  # a group may be empty
        if with_indices:
            indices.append(i)
    return found


def _pin_memory(x: Tensor, *_) -> Tensor:
    pinned = x.clone()
    pinned.pinned = True
    return pinned


def _make_graphed_callables(module: torch.nn.Module, arguments: tuple[Tensor, ...], **_) -> torch.nn.Module:
    """torch.cuda.make_graphed_callables: it runs the module some times, which changes statistics. Nothing is replayed."""
    if torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables does not support the autocast caching")
    for _ in range(3):
        module(*arguments)
    return module


def _cuda_functions(gpu: SimulatedGPU, count: int) -> dict[str, Any]:
    """Returns the replacements of functions of torch.cuda."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: setattr(gpu, "device", torch.device(device)),
        "current_stream": lambda *_: gpu.stream,
        "set_stream": lambda stream: setattr(gpu, "stream", stream),
        "get_device_name": lambda *_: "simulated GPU",
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda *_: gpu.wait("torch.cuda.synchronize"),
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (gpu.memory - gpu.allocated, gpu.memory),
        "memory_reserved": lambda *_: gpu.allocated,
        "memory_allocated": lambda *_: gpu.allocated,
        "max_memory_allocated": lambda *_: gpu.peak,
        "reset_peak_memory_stats": lambda *_: setattr(gpu, "peak", gpu.allocated),
        "make_graphed_callables": _make_graphed_callables,
        "_lazy_init": lambda: None,
    }


ACCELERATOR = {
    "is_available": lambda: True,
    "current_accelerator": lambda *_, **__: torch.device("cuda"),
    "current_device_index": lambda: 0,
    "set_device_index": lambda _: None,
}


@contextmanager
def simulated_gpu(memory: int = 8 * GIB, count: int = 1) -> Iterator[SimulatedGPU]:
    """Context in which torch finds `count` GPUs with `memory` bytes, of which only the first works. Yields what it records."""
    if torch.cuda.is_available():
        torch.cuda.init()  # a real GPU: C++ would remember that the simulated one was initialized
    gpu, foreach = SimulatedGPU(memory), torch.utils._foreach_utils
    only_cpu = torch._C._only_lift_cpu_tensors()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        for name, function in _cuda_functions(gpu, count).items():
            stack.enter_context(patch.object(torch.cuda, name, function))
        for name, function in ACCELERATOR.items():
            stack.enter_context(patch.object(torch.accelerator, name, function))
        stack.enter_context(patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", _pin_memory))
        stack.enter_context(patch.object(torch, "autocast", _Autocast))
        stack.enter_context(patch.object(torch._C, "_group_tensors_by_device_and_dtype", _group_tensors))
        types = [*foreach._foreach_supported_types, GPUTensor]
        stack.enter_context(patch.object(foreach, "_foreach_supported_types", types))
        stack.callback(torch._C._set_only_lift_cpu_tensors, only_cpu)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrite)
        if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):  # else "cuda" without an index needs a driver
            torch._C._ensureCUDADeviceGuardSet()
        torch._C._set_only_lift_cpu_tensors(True)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        with gpu:
            yield gpu
