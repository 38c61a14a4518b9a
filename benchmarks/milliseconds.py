"""Milliseconds per image of exported files on a CPU, next to Ultralytics.

    python -m benchmarks.milliseconds peers=PYTHON                     the Python of an environment with ultralytics
    python -m benchmarks.milliseconds models=picodet_s:416 others= rounds=3    the models of Thaw alone

Every model is exported to ONNX in float32, as its own program does it, with post-processing inside. Random weights: batch norms
are adapted to generated images, and the confidence threshold lets `candidates` boxes per image through to NMS. All files load
in one process and take turns, in another order in each round, so that other programs slow all of them. A call is timed from the
input array to the detections: reading, resizing, and in Ultralytics the conversion of the pixels to float32 are outside.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets.demo import draw_image

ROOT = Path(__file__).parents[1]
NMS_IOU, MAX_DETECTIONS = 0.5, 300  # of every file
ADAPT = 4  # generated images
PUBLISHED = {  # AP of models whose weights this program does not download, by their authors (docs of Ultralytics 8.4)
    "yolo11n:640": 39.5,
    "yolo26n:640": 40.1,  # of the head without NMS; with NMS it is 40.9
}
RELEASED = {  # widths of layers in the official weights that differ from those of a new model with 80 classes
    "yolov9_t": {"head.class_convs.0.0.conv.weight": np.empty((80, 1, 1, 1))},
}
HOW = {  # the arguments of the export in Ultralytics, and what the file contains
    "yolo11n": ({"nms": True}, "NMS"),
    "yolo26n": ({"nms": False}, "the best 300, without NMS"),
}


@dataclass(frozen=True)
class Config:
    models: tuple[str, ...] = (  # model:side of the input
        *("yolox_nano:416", "yolox_tiny:416", "picodet_s:320", "picodet_s:416", "picodet_m:416", "picodet_l:640"),
        *("yolov9_t:640", "yolox_s:640", "ppyoloe_s:640", "yolov9_s:640", "yolox_m:640", "ppyoloe_m:640"),
        *("yolov9_m:640", "yolov9_c:640", "ppyoloe_l:640", "yolox_l:640", "ppyoloe_x:640", "yolox_x:640"),
    )
    others: tuple[str, ...] = ("yolo11n:640", "yolo26n:640")  # of Ultralytics
    threads: int = 1
    rounds: int = 15
    seconds: float = 0.2  # of calls per turn; at least one call
    cpu_time: bool = False  # milliseconds of the CPU, for a computer that other programs use; needs threads=1
    candidates: int = 50  # boxes per image before NMS
    peers: str = ""  # the Python of an environment with ultralytics; without it, `others` are skipped
    folder: str = ""  # keeps the exported files for the next call; none: a temporary folder
    kind: str = ""  # internal: the model of Ultralytics that this process exports


def drawn_images(side: int) -> np.ndarray:
    """Returns images of the demo, resized: uint8 [ADAPT, side, side, 3] BGR."""
    import cv2

    return np.stack([cv2.resize(draw_image(number)[0], (side, side)) for number in range(ADAPT)])


def cost(model, side: int) -> dict[str, float]:
    """Returns millions of parameters and GFLOPs (convolutions, a multiply-add counts as two) of a network for inference."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, side, side))
    return {"parameters": sum(p.numel() for p in model.parameters()) / 1e6, "gflops": counter.get_total_flops() / 1e9}


def adapt_batch_norms(model, images) -> None:
    """Sets the batch norms to the statistics of `images`, so that the outputs of random weights vary."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    model.eval()


def threshold(scores, candidates: int) -> float:
    """Returns the score that `candidates` anchor points per image reach on average. `scores`: [B, A]."""
    return float(scores.flatten().sort(descending=True).values[candidates * len(scores)])


def export_ours(cfg: Config, name: str, side: int, file: Path) -> dict[str, float]:
    """Writes a model of Thaw as export.py does, and returns its cost."""
    import torch

    import export
    import nets

    torch.manual_seed(0)
    network = nets.build(name, 80, RELEASED.get(name))
    images = torch.from_numpy(drawn_images(side)).permute(0, 3, 1, 2).float()
    adapt_batch_norms(network, images)
    with torch.no_grad():
        confidence = threshold(network.decode(network(images), (side, side))[1], cfg.candidates)
    about = {"model": name, "classes": [f"class {i}" for i in range(80)], "image_size": (side, side)}
    about |= {"letterbox": network.letterbox, "dynamic_size": False, "outputs": "detections", "half": False}
    about |= {"confidence": confidence, "nms_iou": NMS_IOU, "max_detections": MAX_DETECTIONS}
    export.write(file, network.fuse(), about, batch_size=1, uint8_input=True)
    return cost(network, side)


def export_theirs(cfg: Config, name: str, side: int, file: Path) -> dict[str, float]:
    """Writes a model of Ultralytics with random weights by its own export, and returns its cost."""
    import torch
    from ultralytics import YOLO

    torch.manual_seed(0)
    yolo = YOLO(f"{name}.yaml")
    images = torch.from_numpy(drawn_images(side)).permute(0, 3, 1, 2).flip(1) / 255
    adapt_batch_norms(yolo.model, images)
    arguments, _ = HOW[name]
    if arguments["nms"]:
        with torch.no_grad():
            arguments["conf"] = threshold(yolo.model(images)[0][:, 4:].amax(1), cfg.candidates)
    written = yolo.export(format="onnx", imgsz=side, device="cpu", iou=NMS_IOU, max_det=MAX_DETECTIONS, **arguments)
    Path(written).replace(file)
    return cost(yolo.model.fuse(), side)


def in_peer(cfg: Config, model: str, file: Path) -> dict[str, float]:
    """Runs `export_theirs` in the Python of `peers`."""
    words = [f"kind={model}", f"candidates={cfg.candidates}", f"folder={file.parent}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "false"}
    command = [cfg.peers, "-m", "benchmarks.milliseconds", *words]
    subprocess.run(command, env=env, cwd=file.parent, check=True, stdout=sys.stderr)
    return json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))


def exported(cfg: Config, folder: Path) -> dict[str, dict]:
    """Returns, by model, "file" and cost; files that are in the folder already are used."""
    found = {}
    for model in (*cfg.models, *(cfg.others if cfg.peers else ())):
        name, side = model.split(":")
        file = (folder / f"{name}_{side}.onnx").resolve()
        about = file.with_suffix(".json")
        if not about.exists():
            print(f"exporting {model}", file=sys.stderr)
            costs = export_ours(cfg, name, int(side), file) if model in cfg.models else in_peer(cfg, model, file)
            about.write_text(json.dumps(costs), encoding="utf-8")
        found[model] = {"file": file, **json.loads(about.read_text(encoding="utf-8"))}
    return found


def load(file: Path, side: int, threads: int):
    """Opens a file in onnxruntime -> a function that detects objects in one generated image."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    image, first = drawn_images(side)[:1], session.get_inputs()[0]
    if first.type != "tensor(uint8)":
        image = np.ascontiguousarray(image[..., ::-1].transpose(0, 3, 1, 2), np.float32) / np.float32(255)
    return lambda: session.run(None, {first.name: image})


def turn(detect, seconds: float, clock=time.perf_counter) -> float:
    """Calls `detect` once to fill the caches of the CPU, then for `seconds` -> the median milliseconds of these calls."""
    detect()
    times, begin = [], clock()
    while not times or clock() - begin < seconds:
        start = clock()
        detect()
        times.append(1000 * (clock() - start))
    return statistics.median(times)


def measure(cfg: Config, files: dict[str, dict]) -> dict[str, list[float]]:
    """Returns the milliseconds of every round by model; all take turns, in another order in each round."""
    detectors = {model: load(one["file"], int(model.split(":")[1]), cfg.threads) for model, one in files.items()}
    rounds = {model: [] for model in files}
    order, clock = np.random.default_rng(0), time.process_time if cfg.cpu_time else time.perf_counter
    for number in range(cfg.rounds):
        for model in order.permutation(list(files)):
            rounds[model].append(turn(detectors[model], cfg.seconds, clock))
        print(f"round {number + 1} of {cfg.rounds}", file=sys.stderr)
    return rounds


def published(model: str) -> str:
    """Returns the AP that the authors of a model publish for this side of the input, or nothing."""
    import nets

    name, side = model.split(":")
    if model in PUBLISHED:
        return f"{PUBLISHED[model]:.1f}"
    official = nets.official_file(name, "coco", (int(side), int(side)))
    return f"{100 * official.ap:.1f}" if official and official.image_size == (int(side),) * 2 else ""


def table(cfg: Config, files: dict[str, dict], rounds: dict[str, list[float]]) -> str:
    """Returns the Markdown table, fastest first: medians and half the distance of the quartiles of the rounds."""
    reference = next((model for model in cfg.others if model in files), next(iter(files)))
    head = ["model", "input", "AP", "parameters, M", "GFLOPs", "ms", f"times {reference.split(':')[0]}", "in the file"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * 6 + "---|"]
    for model in sorted(files, key=lambda model: statistics.median(rounds[model])):
        name, side = model.split(":")
        ratio = statistics.median(a / b for a, b in zip(rounds[model], rounds[reference], strict=True))
        low, high = np.percentile(rounds[model], (25, 75))
        cells = [f"`{name}`" if model in cfg.models else f"Ultralytics {name}", side, published(model)]
        cells += [f"{files[model]['parameters']:.2f}", f"{files[model]['gflops']:.1f}"]
        cells += [f"{statistics.median(rounds[model]):.1f} ± {(high - low) / 2:.1f}", f"{ratio:.2f}"]
        lines.append(f"| {' | '.join([*cells, HOW.get(name, ({}, 'NMS'))[1]])} |")
    return "\n".join(lines)


def about(cfg: Config, files: dict[str, dict], load_before: float) -> str:
    """Returns the command, the hardware and the versions of the measurement."""
    import onnxruntime
    import torch

    from benchmarks.table import machine

    torch.set_num_threads(cfg.threads)  # onnxruntime's number, for the line about the machine
    words = [word for word in sys.argv[1:] if not word.startswith(("peers=", "folder="))]
    words += ["peers=PYTHON"] if cfg.peers else []
    versions = sorted({file["ultralytics"] for file in files.values() if "ultralytics" in file})
    cells = [machine(), f"onnxruntime {onnxruntime.__version__}", *(f"ultralytics {version}" for version in versions)]
    cells += [f"load {load_before:.1f} at the start", time.strftime("%Y-%m-%d")]
    return f"`{' '.join(['python -m benchmarks.milliseconds', *words])}`\n\n{', '.join(cells)}."


def main(cfg: Config) -> None:
    """Measures, and prints the table."""
    if cfg.kind:
        from importlib.metadata import version

        name, side = cfg.kind.split(":")
        file = Path(cfg.folder, f"{name}_{side}.onnx")
        costs = export_theirs(cfg, name, int(side), file) | {"ultralytics": version("ultralytics")}
        file.with_suffix(".json").write_text(json.dumps(costs), encoding="utf-8")
        return
    if not cfg.peers:
        print("Ultralytics is skipped; give peers=PYTHON of an environment with ultralytics", file=sys.stderr)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(cfg.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = exported(cfg, folder)
        rounds = measure(cfg, files)
    print(f"{table(cfg, files, rounds)}\n\n{about(cfg, files, load_before)}")


if __name__ == "__main__":
    from utils.config import override

    main(override(Config(), sys.argv[1:]))
