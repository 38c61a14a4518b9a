"""Other trainers, Ultralytics and LibreYOLO: the Python of an environment with them runs this file for other benchmarks.

    PYTHON benchmarks/peers.py train TASK.json           for benchmarks.small_data
    PYTHON benchmarks/peers.py epochs TASK.json yolov9s 32 8     for benchmarks.gpu and benchmarks.cpu
    PYTHON benchmarks/peers.py account TASK.json yolo11n 8 0     for benchmarks.whole_run

It imports nothing of this project. Each function takes what is the peer's own: model, loss, augmentation, defaults.
"""

import json
import os
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


# ---- the first epochs of whole trainings from scratch, with the loader of the trainer

LONG = 100  # epochs of the training, of which two run: the last epochs of these trainers have less augmentation


class Enough(SystemExit):
    """Ends a training after its second epoch."""


class Stopwatch:
    """Prints a row after the second epoch, and ends the training. The time is wall time on a GPU, and CPU time otherwise."""

    def __init__(self, task: dict, model: str):
        self.cells = {"trainer": f"{task['peer']} {version(task['peer'])}", "model": model}
        self.images, self.seconds, self.begin = task["train_images"], [], self.now()

    def now(self) -> float:
        """Returns seconds, when the GPU has done its work."""
        import torch

        if not torch.cuda.is_available():
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def started(self, *_) -> None:
        """An epoch begins."""
        self.begin = self.now()

    def ended(self, *_) -> None:
        """An epoch has ended; what follows, such as saving, does not count."""
        import torch

        self.seconds.append(self.now() - self.begin)
        if len(self.seconds) == 2:
            speed = {"images/s": round(self.images / self.seconds[1], 2), "first epoch s": round(self.seconds[0], 1)}
            self.cells |= {**speed, "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
            print(json.dumps({**self.cells, "threads": torch.get_num_threads()}))
            raise Enough(0)


def prepared_ultralytics(name: str):
    """Returns a new model of Ultralytics. Its check of mixed precision would download another model to compare two images.

    Ultralytics takes one thread less than there are cores, whatever the environment says; here it has as many as the others.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count())  # before the import, which sets the variable
    import torch
    import ultralytics.engine.trainer as trainer
    from ultralytics import YOLO

    trainer.check_amp = lambda model: next(model.parameters()).device.type == "cuda"  # as the check decides on a CPU
    model = YOLO(f"{name}.yaml")
    model.add_callback("on_train_start", lambda *_: torch.set_num_threads(threads))
    return model


def ultralytics_epochs(task: dict, name: str, options: dict) -> None:
    """Trains a model of Ultralytics, such as yolov9s, with its defaults."""
    model = prepared_ultralytics(name)
    from ultralytics.utils.torch_utils import get_flops

    watch = Stopwatch(task, name)
    model.add_callback("on_train_start", lambda it: watch.cells.update(GFLOP=get_flops(it.model, task["imgsz"])))
    model.add_callback("on_train_epoch_start", watch.started)
    model.add_callback("on_train_epoch_end", watch.ended)
    model.train(**options, val=False, plots=False, save=False)


def libreyolo_epochs(task: dict, size: str, options: dict) -> None:
    """Trains a YOLOX of LibreYOLO, of the size s, n, ..., with its defaults."""
    from libreyolo import LibreYOLOX
    from libreyolo.training.trainer import BaseTrainer

    watch, model, train_epoch = Stopwatch(task, f"yolox_{size}"), LibreYOLOX(None, size=size), BaseTrainer._train_epoch

    def timed(*arguments, **options):
        watch.started()
        result = train_epoch(*arguments, **options)
        watch.ended()
        return result

    BaseTrainer._train_epoch = timed
    model.train(**options, eval_interval=0)


def epochs(path: str, model: str, batch: int, workers: int) -> None:
    """Trains two epochs on the data of the task, and prints the row."""
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    options = {**common(task), "epochs": LONG, "batch": batch, "workers": workers, "amp": True}
    {"ultralytics": ultralytics_epochs, "libreyolo": libreyolo_epochs}[task["peer"]](task, model, options)


# ---- where the time of a whole training goes


class Account:
    """Divides wall time by which function of the trainer runs; `start` is what comes before the first epoch."""

    def __init__(self):
        self.seconds, self.part, self.since, self.threads = {}, "start", time.perf_counter(), 0

    def enter(self, part: str) -> str:
        """Ends the current part and begins another one. Returns the name of the part before."""
        import torch

        if part == "steps":
            self.threads = torch.get_num_threads()
        now, before = time.perf_counter(), self.part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self.since
        self.part, self.since = part, now
        return before

    def count(self, owner: type, name: str, part: str) -> None:
        """Replaces a method by one whose time counts as a part."""
        method = getattr(owner, name)

        def counted(*arguments, **options):
            before = self.enter(part)
            try:
                return method(*arguments, **options)
            finally:
                self.enter("log" if before == "start" else before)

        setattr(owner, name, counted)


def account(path: str, model: str, batch: int, workers: int) -> None:
    """Trains from scratch with the trainer's defaults, and prints the seconds of each part."""
    task, parts = json.loads(Path(path).read_text(encoding="utf-8")), Account()
    options = {**common(task), "batch": batch, "workers": workers}
    if task["peer"] == "libreyolo":
        from libreyolo import LibreYOLOX
        from libreyolo.training.trainer import BaseTrainer

        parts.count(BaseTrainer, "_train_epoch", "steps")  # an evaluation is a part within it
        parts.count(BaseTrainer, "_validate_epoch", "evaluation")
        parts.count(BaseTrainer, "_save_checkpoint", "saving")
        LibreYOLOX(None, size=model).train(**options)
    else:
        network = prepared_ultralytics(model)
        import ultralytics.engine.trainer as trainer

        parts.count(trainer.BaseTrainer, "validate", "evaluation")
        parts.count(trainer.BaseTrainer, "save_model", "saving")
        parts.count(trainer.BaseTrainer, "final_eval", "end")
        network.add_callback("on_train_epoch_start", lambda *_: parts.enter("steps"))
        network.add_callback("on_train_epoch_end", lambda *_: parts.enter("log"))
        network.train(**options)
    parts.enter("end")
    name = f"{task['peer']} {version(task['peer'])}"
    print(json.dumps({"trainer": name, "seconds": parts.seconds, "threads": parts.threads}))


if __name__ == "__main__":
    task, path, *rest = sys.argv[1:]
    if task == "train":
        train(path)
    else:
        model, batch, workers = rest
        {"epochs": epochs, "account": account}[task](path, model, int(batch), int(workers))
