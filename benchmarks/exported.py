"""Whether exported files find what PyTorch finds: official weights on pictures of COCO.

    python -m benchmarks.exported weights=yolox_nano.pth data=coco_val326/instances.json pictures=coco_val326/images

Every file is compared with PyTorch on all pictures by `export.py`, then evaluated by `evaluate.py`. Where openvino is installed
(`pip install openvino`, no dependency), it converts the files, and its outputs are compared with those of onnxruntime.
"""

import io
import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import torch

import evaluate
import export
from benchmarks.table import RESULTS, machine
from datasets.images import pictures_under, read_image
from datasets.transforms import letterbox
from utils.config import override

FILES = {
    "NMS inside": {},
    "any number, any size": {"batch_size": 0, "dynamic_size": True},
    "raw": {"outputs": "raw", "pictures_in": False},
    "NMS inside, half": {"half": True},
}
SOME = 16  # pictures for openvino


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # coco: fetch the official file; a file
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"
    pictures: str = "val2017"  # the folder of its pictures


def main(cfg: Config) -> None:
    """Writes benchmarks/results/exported.md."""
    rows, files = [], {}
    with tempfile.TemporaryDirectory() as folder:
        rows.append(f"| PyTorch | {figures(cfg, cfg.weights, folder)} | |")
        for name, options in FILES.items():
            file, said = f"{folder}/{name.replace(', ', '_')}.onnx", io.StringIO()  # openvino takes commas for a list
            start = export.Config(checkpoint=cfg.weights, model=cfg.model, output=file, pictures=cfg.pictures)
            files[name] = file
            with redirect_stdout(said):
                export.main(
                    override(start, [f"{key}={value}" for key, value in options.items()] + ["check_pictures=10000"])
                )
            lines = [line for line in said.getvalue().splitlines() if line.startswith("onnxruntime and PyTorch")]
            compared = "; ".join(line.removeprefix("onnxruntime and PyTorch ") for line in lines)
            rows.append(f"| ONNX, {name} | {figures(cfg, file, folder)} | {compared} |")
        if find_spec("openvino"):
            rows += [f"\n{name}: {in_openvino(file, cfg.pictures)}" for name, file in files.items()]
    text = f"""# Exported files

`python -m benchmarks.exported weights={Path(cfg.weights).name} model={cfg.model} data={Path(cfg.data).name}`,
{time.strftime("%Y-%m-%d")}, {machine()}, onnxruntime {onnxruntime.__version__}.
The last column is what `export.py` compares before it keeps a file.

| | AP | AP50 | compared with PyTorch |
|---|---:|---:|---|
"""
    (RESULTS / "exported.md").write_text(text + "\n".join(rows) + "\n", encoding="utf-8")
    print(text + "\n".join(rows))


def figures(cfg: Config, checkpoint: str, folder: str) -> str:
    """AP and AP50 as cells."""
    official = {"model": cfg.model} if not checkpoint.endswith(".onnx") else {}
    words = {"checkpoint": checkpoint, "data": cfg.data, "output": f"{folder}/evaluation", "workers": 0}
    found = evaluate.main(evaluate.Config(**words, **official, device="cpu"))
    return f"{found['AP']:.5f} | {found['AP50']:.5f}"


def in_openvino(file: str, pictures: str) -> str:
    """How far OpenVINO's float32 outputs are from those of onnxruntime, at most, on some pictures."""
    import openvino

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    size, kind = json.loads(about["image_size"]), json.loads(about["letterbox"])
    network = openvino.Core().compile_model(openvino.convert_model(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    apart: dict[str, float] = {}
    for path in pictures_under(pictures)[:SOME]:
        image = letterbox(read_image(f"{pictures}/{path}"), tuple(size), kind)[0][None]
        if session.get_inputs()[0].type != "tensor(uint8)":
            image = np.ascontiguousarray(image.transpose(0, 3, 1, 2), np.float32)
        theirs = list(network([image]).values())
        for output, a, b in zip(session.get_outputs(), session.run(None, {"images": image}), theirs, strict=True):
            name = output.name.rpartition("_")[0] or output.name
            apart[name] = max(apart.get(name, 0.0), float(np.abs(a.astype(np.float64) - b).max()))
    said = ", ".join(f"{name} {far:.2g}" for name, far in apart.items())
    return f"OpenVINO {openvino.__version__.partition('-')[0]} on {SOME} pictures, largest distance from onnxruntime: {said}"


if __name__ == "__main__":
    cv2.setNumThreads(0)
    torch.set_grad_enabled(False)
    main(override(Config(), sys.argv[1:]))
