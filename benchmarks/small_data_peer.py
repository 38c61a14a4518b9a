"""Trains another trainer with its own defaults and writes its detections: run by benchmarks.small_data_peers.

    PYTHON benchmarks/small_data_peer.py TASK.json

PYTHON is that of an environment with libreyolo and ultralytics; nothing of this project is imported. TASK.json names the
peer, the data, the length of the run and the file for the result: the versions, the minutes of the training (Ultralytics
evaluates once at its end), and boxes xyxy, scores, labels and image numbers of all detections of the last weights (the EMA,
where there is one), with the same confidence threshold, NMS and number of detections per image for every trainer.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

LIMITS = {"conf": 0.001, "iou": 0.65, "max_det": 300}


def libreyolo(task: dict) -> tuple[Callable, Callable]:
    """YOLOX-nano of LibreYOLO from the same weights -> functions that train, and that load the last weights."""
    from libreyolo import LibreYOLOX

    model, result = LibreYOLOX(task["weights"], size="n"), {}

    def train() -> None:
        result.update(model.train(**common(task), eval_interval=0))

    return train, lambda: LibreYOLOX(result["last_checkpoint"], size="n")


def ultralytics(task: dict) -> tuple[Callable, Callable]:
    """YOLO11n of Ultralytics from scratch -> functions that train, and that load the last weights."""
    from ultralytics import YOLO

    model = YOLO("yolo11n.yaml")

    def train() -> None:
        model.train(**common(task), val=False, plots=False)

    return train, lambda: YOLO(str(Path(task["folder"]) / "run" / "weights" / "last.pt"))


TRAINERS = {"libreyolo": libreyolo, "ultralytics": ultralytics}


def common(task: dict) -> dict:
    """Returns the arguments that both trainers take: data, length and places; everything else has its default."""
    names = {name: task[name] for name in ("data", "epochs", "imgsz", "seed")}
    return {**names, "workers": 0, "project": task["folder"], "name": "run"}


def detections(model, paths: list[str], size: int) -> Iterator[tuple[int, list[float], float, int]]:
    """Yields image number, box xyxy, score and label of each detection."""
    for number, path in enumerate(paths):
        result = model.predict(path, imgsz=size, **LIMITS)
        boxes = (result[0] if isinstance(result, list) else result).boxes
        columns = (boxes.xyxy.tolist(), boxes.conf.tolist(), boxes.cls.tolist())
        for box, score, label in zip(*columns, strict=True):
            yield number, box, score, int(label)


def main(path: str) -> None:
    """Trains, predicts, and writes the result."""
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    train, load = TRAINERS[task["peer"]](task)
    begin = time.perf_counter()
    train()
    minutes = (time.perf_counter() - begin) / 60
    found = list(detections(load(), task["images"], task["imgsz"]))
    names = ("numbers", "boxes", "scores", "labels")
    columns = dict(zip(names, zip(*found, strict=True), strict=True)) if found else dict.fromkeys(names, [])
    versions = {"version": version(task["peer"]), "torch": version("torch")}
    result = {**versions, "minutes": minutes, **columns}
    Path(task["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
