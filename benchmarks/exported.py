"""Accuracy of exported files compared with PyTorch: official weights on images of COCO.

    python -m benchmarks.exported weights=yolox_nano.pth data=coco_val326/instances.json images=coco_val326/images

`export.py` compares every file with PyTorch on all images, then `evaluate.py` evaluates it. If openvino is installed
(`pip install openvino`), it converts the files, and its outputs are compared with onnxruntime's.
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
from utils.config import override
from utils.images import images_under, letterbox, read_image

FILES = {
    "NMS inside": {},
    "any number, any size": {"batch_size": 0, "dynamic_size": True},
    "raw": {"outputs": "raw", "uint8_input": False},
    "NMS inside, half": {"half": True},
}
SOME = 16  # images for openvino


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # a file; coco: download the official one
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"
    images: str = "val2017"  # the folder of its images


@torch.no_grad()
def main(cfg: Config) -> None:
    """Writes benchmarks/results/exported.md."""
    rows, files = [], {}
    with tempfile.TemporaryDirectory() as folder:
        rows.append(f"| PyTorch | {accuracy(cfg, cfg.weights, folder)} | |")
        for name, options in FILES.items():
            file, printed = f"{folder}/{name.replace(', ', '_')}.onnx", io.StringIO()  # openvino reads commas as a list
            start = export.Config(checkpoint=cfg.weights, model=cfg.model, output=file, images=cfg.images)
            files[name] = file
            with redirect_stdout(printed):
                export.main(
                    override(start, [f"{key}={value}" for key, value in options.items()] + ["check_images=10000"])
                )
            lines = [line for line in printed.getvalue().splitlines() if line.startswith("onnxruntime and PyTorch")]
            compared = "; ".join(line.removeprefix("onnxruntime and PyTorch ") for line in lines)
            rows.append(f"| ONNX, {name} | {accuracy(cfg, file, folder)} | {compared} |")
        if find_spec("openvino"):
            rows += [f"\n{name}: {in_openvino(file, cfg.images)}" for name, file in files.items()]
    text = """# Exported files

The last column is the comparison of `export.py`, which every exported file must pass.

| | AP | AP50 | compared with PyTorch |
|---|---:|---:|---|
"""
    rows.append(f"""
`python -m benchmarks.exported weights={Path(cfg.weights).name} model={cfg.model} data={Path(cfg.data).name}
images={Path(cfg.images).name}`, {time.strftime("%Y-%m-%d")}, {machine()}, onnxruntime {onnxruntime.__version__}.
`export.py` compared on the same images.""")
    (RESULTS / "exported.md").write_text(text + "\n".join(rows) + "\n", encoding="utf-8")
    print(text + "\n".join(rows))


def accuracy(cfg: Config, checkpoint: str, folder: str) -> str:
    """Evaluates a checkpoint or an exported file and returns AP and AP50 as table cells."""
    official = {"model": cfg.model} if not checkpoint.endswith(".onnx") else {}
    words = {"checkpoint": checkpoint, "data": cfg.data, "output": f"{folder}/evaluation", "workers": 0}
    metrics = evaluate.main(evaluate.Config(**words, **official, device="cpu"))
    return f"{metrics['AP']:.5f} | {metrics['AP50']:.5f}"


def in_openvino(file: str, images: str) -> str:
    """The largest difference between the float32 outputs of OpenVINO and of onnxruntime on SOME images."""
    import openvino

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    size, kind = json.loads(about["image_size"]), json.loads(about["letterbox"])
    network = openvino.Core().compile_model(openvino.convert_model(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    differences: dict[str, float] = {}
    for path in images_under(images)[:SOME]:
        image = letterbox(read_image(f"{images}/{path}"), tuple(size), kind)[0][None]
        if session.get_inputs()[0].type != "tensor(uint8)":
            image = np.ascontiguousarray(image.transpose(0, 3, 1, 2), np.float32)
        theirs = list(network([image]).values())
        for output, a, b in zip(session.get_outputs(), session.run(None, {"images": image}), theirs, strict=True):
            name = output.name.rpartition("_")[0] or output.name
            differences[name] = max(differences.get(name, 0.0), float(np.abs(a.astype(np.float64) - b).max()))
    text = ", ".join(f"{name} {value:.2g}" for name, value in differences.items())
    return (
        f"OpenVINO {openvino.__version__.partition('-')[0]} on {SOME} images, largest difference to onnxruntime: {text}"
    )


if __name__ == "__main__":
    cv2.setNumThreads(0)
    main(override(Config(), sys.argv[1:]))
