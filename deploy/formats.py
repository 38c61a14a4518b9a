"""The formats of export.py in one table, and the converters, which run in a process of their own."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deploy.onnx_graph import VERSION, RawGraph
from deploy.standalone import converters
from nets.model import DetectionModel

METADATA = "metadata.json"  # in the folder of an export, or in a ZIP file at the end of a .tflite file
TIMEOUT = 1800.0  # seconds after which a converter is ended


class ExportError(ValueError):
    """A file could not be written, or differs from PyTorch; the message gives the reason."""


class Format(NamedTuple):
    """A format of export.py: how its files are called, what writes them, and what runs them."""

    suffix: str  # of the file or folder, after the name of the checkpoint
    packages: tuple[str, ...]  # of the converter, in the versions that were tested
    runtime: str  # the package that runs the file, in the version that was tested
    use: str
    half: bool = True  # whether half=true is possible
    torch: str = ""  # the versions of PyTorch that the converter needs, if not all
    needs_mac: bool = False  # the file runs on no other computer, and so cannot be compared there


FORMATS = {  # onnx is written by this program, with more options; converters.py writes the others
    "onnx": Format(".onnx", ("onnx", "onnxscript"), "onnxruntime", "all computers"),
    "openvino": Format("_openvino", ("openvino==2026.4.1",), "openvino==2026.4.1", "Intel CPUs, GPUs and NPUs"),
    "litert": Format(
        ".tflite", ("litert-torch==0.10.0",), "ai-edge-litert==2.3.0", "Android, Raspberry Pi", False, "<2.15"
    ),
    "ncnn": Format("_ncnn", ("pnnx==20261020",), "ncnn==1.0.20261020", "phones and small boards, in C++"),
    "coreml": Format(".mlpackage", ("coremltools==9.0",), "coremltools==9.0", "iPhones and Macs", needs_mac=True),
}
SUFFIXES = tuple(row.suffix for row in FORMATS.values())
UNCHECKED = "_unchecked"  # at the end of the name of a file that could not be compared


def is_exported(path: Path) -> bool:
    """Returns whether a file or a folder is, by its name or content, one of export.py."""
    folder = (path / METADATA).is_file() and any(path.glob("*.bin"))  # photo albums of Google have metadata.json, too
    return (path.suffix in SUFFIXES and path.exists()) or folder


def convert(kind: str, model: DetectionModel, about: Mapping[str, Any], target: Path) -> None:
    """Writes a model, whose layers are fused, as a file or folder of a format of FORMATS but onnx.

    It has the raw outputs of the network, which detector.py decodes. `about`: its metadata. Raises ExportError.
    """
    python = python_for(kind)
    graph = RawGraph(model, False, about["image_size"]).eval()
    about = {"version": VERSION, **about, "format": kind, "outputs": "raw", **graph.about}
    if not target.suffix:
        target.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        network, metadata = Path(folder, "network.pt2"), Path(folder, METADATA)
        metadata.write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
        with torch.no_grad():
            torch.export.save(torch.export.export(graph, (torch.zeros(1, 3, *about["image_size"]),)), network)
        run_converter(python, kind, [str(network), str(target), str(metadata)])
        if target.is_dir():
            shutil.copyfile(metadata, target / METADATA)
        else:
            with zipfile.ZipFile(target, "a") as end:  # runtimes ignore what is behind the model
                end.write(metadata, METADATA)


def run_converter(python: list[str], kind: str, words: list[str]) -> None:
    """Runs converters.py in a process of its own. Raises ExportError with a fix if it fails, or takes longer than TIMEOUT."""
    command = [*python, converters.__file__, kind, *words]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(TIMEOUT)
            why = f"ended with code {code}"
        except subprocess.TimeoutExpired:
            code, why = 1, f"took longer than {TIMEOUT:g} seconds"
        finally:
            end(process)
        if code == 0:
            return
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    last = lines[-1][:300] if lines else "it printed nothing"
    fix = "choose another format"
    if not FORMATS[kind].torch:  # else uv has installed the tested versions
        fix = f"it was tested with these versions: pip install {' '.join(FORMATS[kind].packages)}"
    raise ExportError(f"the converter {why} ({last}); {fix}")


def end(process: subprocess.Popen) -> None:
    """Ends a process with the processes that it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def python_for(kind: str) -> list[str]:
    """Returns the command of a Python that has the converter of a format: this one, or one that uv makes for this call.

    Raises ExportError if packages are missing. A converter that needs another PyTorch than the newest one runs in an environment
    of its own, unless it is installed here.
    """
    row = FORMATS[kind]
    own = bool(row.torch) and not is_here(row.packages[0])
    needed = [row.runtime] if own else [*row.packages, row.runtime]
    places = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    uv = shutil.which("uv", path=os.pathsep.join(places))
    missing = [package for package in dict.fromkeys(needed) if not is_here(package)]
    if own and uv is None:
        missing.append("uv")
    if missing:
        raise ExportError(f"packages are missing: pip install {' '.join(missing)}")
    if uv is None or not own:
        return [sys.executable]
    packages = [word for package in (*row.packages, f"torch{row.torch}") for word in ("--with", package)]
    print(
        f"format={kind} runs in an environment of its own, which uv keeps; the first time it downloads some gigabytes"
    )
    return [uv, "run", "--quiet", "--isolated", "--no-project", "--python", sys.executable, *packages, "python"]


def is_here(package: str) -> bool:
    """Returns whether a package of pip, such as litert-torch==0.10.0, can be imported."""
    return importlib.util.find_spec(package.partition("=")[0].replace("-", "_")) is not None


def metadata_of(path: Path) -> dict[str, Any]:
    """Reads the metadata of a file or folder of any format but onnx."""
    if path.is_dir():
        return json.loads((path / METADATA).read_text(encoding="utf-8"))
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(METADATA))
