"""Other trainers, Ultralytics and LibreYOLO: the Python of an environment with them runs this file for other benchmarks.

    PYTHON benchmarks/peers.py train TASK.json           for benchmarks.small_data
    PYTHON benchmarks/peers.py epochs TASK.json 32 8     for benchmarks.gpu

It imports nothing of this project. Each function takes what is the peer's own: model, loss, augmentation, defaults.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

# ---- whole trainings: the result has the versions, the minutes and all detections of the last weights

LIMITS = {"conf": 0.001, "iou": 0.65, "max_det": 300}  # the same for every trainer


def libreyolo_training(task: dict) -> tuple[Callable, Callable]:
    """YOLOX-nano of LibreYOLO from the same weights -> functions that train, and that load the last weights."""
    from libreyolo import LibreYOLOX

    model, result = LibreYOLOX(task["weights"], size="n"), {}

    def train() -> None:
        result.update(model.train(**common(task), eval_interval=0))

    return train, lambda: LibreYOLOX(result["last_checkpoint"], size="n")


def ultralytics_training(task: dict) -> tuple[Callable, Callable]:
    """YOLO11n of Ultralytics from scratch -> functions that train, and that load the last weights."""
    from ultralytics import YOLO

    model = YOLO("yolo11n.yaml")

    def train() -> None:
        model.train(**common(task), val=False, plots=False)  # it evaluates once, at its end

    return train, lambda: YOLO(str(Path(task["folder"]) / "run" / "weights" / "last.pt"))


def common(task: dict) -> dict:
    """Returns the arguments of the trainer: data, length, folders and options; everything else has its default."""
    names = {name: task[name] for name in ("data", "epochs", "imgsz", "seed")}
    return {**names, "workers": 0, "project": task["folder"], "name": "run", **task["options"]}


def detections(model, paths: list[str], size: int) -> Iterator[tuple[int, list[float], float, int]]:
    """Yields image number, box xyxy, score and label of each detection."""
    for number, path in enumerate(paths):
        result = model.predict(path, imgsz=size, **LIMITS)
        boxes = (result[0] if isinstance(result, list) else result).boxes
        columns = (boxes.xyxy.tolist(), boxes.conf.tolist(), boxes.cls.tolist())
        for box, score, label in zip(*columns, strict=True):
            yield number, box, score, int(label)


def train(path: str) -> None:
    """Trains as the JSON file `path` tells, and writes the result to the file that it names."""
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    start, load = {"libreyolo": libreyolo_training, "ultralytics": ultralytics_training}[task["peer"]](task)
    begin = time.perf_counter()
    start()
    minutes = (time.perf_counter() - begin) / 60
    found = list(detections(load(), task["images"], task["imgsz"]))
    names = ("numbers", "boxes", "scores", "labels")
    columns = dict(zip(names, zip(*found, strict=True), strict=True)) if found else dict.fromkeys(names, [])
    result = {"version": version(task["peer"]), "torch": version("torch"), "minutes": minutes, **columns}
    Path(task["result"]).write_text(json.dumps(result), encoding="utf-8")


# ---- the first epochs of whole trainings, with the loader of the trainer

LONG = 100  # epochs of the training, of which two run: the last epochs of these trainers have less augmentation


class Enough(SystemExit):
    """Ends a training after its second epoch."""


class Stopwatch:
    """Prints a row after the second epoch, and ends the training."""

    def __init__(self, peer: str, model: str, images: int):
        self.cells, self.images, self.seconds = {"trainer": f"{peer} {version(peer)}", "model": model}, images, []

    def add(self, seconds: float) -> None:
        """Takes the time of an epoch, without evaluation."""
        import torch

        self.seconds.append(seconds)
        if len(self.seconds) == 2:
            speed = {"images/s": round(self.images / seconds), "first epoch s": round(self.seconds[0], 1)}
            print(json.dumps({**self.cells, **speed, "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}))
            raise Enough(0)


def ultralytics_epochs(task: dict, options: dict) -> None:
    """Trains YOLOv9-s of Ultralytics from scratch, with its defaults."""
    import torch
    import ultralytics.engine.trainer as trainer
    from ultralytics import YOLO

    trainer.check_amp = lambda model: True  # the check downloads another model to compare two images
    watch, begin, model = Stopwatch("ultralytics", "yolov9s", task["train_images"]), [0.0], YOLO("yolov9s.yaml")

    def started(_) -> None:
        begin[0] = time.perf_counter()

    def ended(_) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        watch.add(time.perf_counter() - begin[0])

    model.add_callback("on_train_epoch_start", started)
    model.add_callback("on_train_epoch_end", ended)
    model.train(**options, val=False, plots=False, save=False)


def libreyolo_epochs(task: dict, options: dict) -> None:
    """Trains YOLOX-s of LibreYOLO from scratch, with its defaults."""
    from libreyolo import LibreYOLOX

    watch = Stopwatch("libreyolo", "yolox_s", task["train_images"])

    class Callback:
        def on_train_epoch_end(self, event) -> None:
            watch.add(event.epoch_seconds)

    LibreYOLOX(None, size="s").train(**options, eval_interval=0, callbacks=Callback())


def epochs(path: str, batch: int, workers: int) -> None:
    """Trains two epochs on the data of the task, and prints the row."""
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    options = {**common(task), "epochs": LONG, "batch": batch, "workers": workers, "amp": True}
    {"ultralytics": ultralytics_epochs, "libreyolo": libreyolo_epochs}[task["peer"]](task, options)


if __name__ == "__main__":
    task, path, *numbers = sys.argv[1:]
    if task == "train":
        train(path)
    else:
        epochs(path, *map(int, numbers))
