"""Other trainers, Ultralytics and LibreYOLO: the Python of an environment with them runs this file for other benchmarks.

    PYTHON benchmarks/peers.py train TASK.json                        for benchmarks.small_data
    PYTHON benchmarks/peers.py steps ultralytics 640 32 fp16 8        for benchmarks.gpu
    PYTHON benchmarks/peers.py epochs TASK.json 32 8                  for benchmarks.gpu

It imports nothing of this project. Each function takes what is the peer's own: model, loss, augmentation, defaults.
"""

import copy
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


# ---- training steps on random images and boxes. Without a GPU the same calls run on the CPU, to see that they fit the
# installed versions; the page never shows such rows.

BOXES = 20  # per image
WARM_UP = 3  # steps, also between two looks at the clock, as in gpu_parts.py


def random_targets(size: int, batch_size: int, device) -> tuple:
    """Returns images [B, 3, H, W] 0-255, boxes [B, M, 4] (center and size, 0-1) and labels [B, M]."""
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch_size, 3, size, size), generator=generator).float()
    center, side = (torch.rand(batch_size, BOXES, 2, generator=generator) for _ in range(2))
    boxes = torch.cat([center, 8 / size * (size / 16) ** side], -1)
    labels = torch.randint(0, 80, boxes.shape[:2], generator=generator)
    return images.to(device), boxes.to(device), labels.to(device)


def ultralytics_loss(size: int, batch_size: int, device):
    """Returns the name, the model and its loss on a fixed batch, of YOLOv9-s of Ultralytics."""
    import torch
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov9s.yaml", nc=80, verbose=False).to(device).train()
    model.args = get_cfg()
    images, boxes, labels = random_targets(size, batch_size, device)
    index = torch.arange(batch_size, device=device).repeat_interleave(BOXES)
    batch = {"img": images / 255, "cls": labels.view(-1, 1).float(), "bboxes": boxes.view(-1, 4), "batch_idx": index}
    return "yolov9s", model, lambda: model(batch)[0].sum()


def libreyolo_loss(size: int, batch_size: int, device):
    """Returns the name, the model and its loss on a fixed batch, of YOLOX-s of LibreYOLO."""
    import torch
    from libreyolo.models.yolox.nn import LibreYOLOXModel

    model = LibreYOLOXModel("s", nb_classes=80).to(device).train()
    images, boxes, labels = random_targets(size, batch_size, device)
    targets = torch.cat([labels[..., None].float(), boxes * size], -1)
    return "yolox_s", model, lambda: model(images, targets)["total_loss"]


def steps(peer: str, size: int, batch_size: int, amp: str, seconds: float) -> dict:
    """Trains for `seconds` after a warm-up and returns the cells of a row.

    Forward pass and loss are the peer's own; optimizer, clipping and EMA are plain PyTorch.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    name, model, loss_of = {"ultralytics": ultralytics_loss, "libreyolo": libreyolo_loss}[peer](
        size, batch_size, device
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, 0.9, nesterov=True)
    scaler, averaged = torch.amp.GradScaler(device.type, enabled=amp == "fp16"), copy.deepcopy(model).eval()
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=amp != "none"):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            new = model.state_dict()
            for key, value in averaged.state_dict().items():
                if value.is_floating_point():
                    value.lerp_(new[key], 1e-4)

    def several() -> float:
        """Runs WARM_UP steps, waits for the device and returns the time."""
        for _ in range(WARM_UP):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    begin = several()
    end, count = begin, 0
    while not count or end - begin < seconds:
        end, count = several(), count + WARM_UP
    each = (end - begin) / count
    return {
        "trainer": f"{peer} {version(peer)}",
        "model": name,
        "amp": amp,
        "ms per step": round(1000 * each, 1),
        "images/s": round(batch_size / each),
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


# ---- data sets of training samples, for benchmarks.loader


def ultralytics_samples(folder: Path, size: int, batch_size: int) -> tuple:
    """Returns the training data set of Ultralytics with its buffer of 8 batches, and its collate function."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset

    names = dict(enumerate((folder / "classes.txt").read_text().split("\n")[:-1]))
    data = {"names": names, "nc": len(names), "channels": 3}
    found = YOLODataset(str(folder / "images"), size, augment=True, hyp=get_cfg(), batch_size=batch_size, data=data)
    return found, YOLODataset.collate_fn


def libreyolo_samples(folder: Path, size: int, batch_size: int) -> tuple:
    """Returns the data set of LibreYOLO's YOLOX trainer, which keeps no images, and its collate function."""
    from libreyolo.data.dataset import YOLODataset, yolox_collate_fn
    from libreyolo.training.augment import MosaicMixupDataset, TrainTransform
    from libreyolo.training.config import YOLOXConfig

    cfg = YOLOXConfig()
    images = sorted((folder / "images").iterdir())
    labels = [folder / "labels" / f"{path.stem}.txt" for path in images]
    preproc = TrainTransform(max_labels=50, flip_prob=cfg.flip_prob, hsv_prob=cfg.hsv_prob)
    plain = YOLODataset(img_files=images, label_files=labels, img_size=(size, size), preproc=preproc)
    names = ("degrees", "translate", "mosaic_scale", "mixup_scale", "shear", "mosaic_prob", "mixup_prob")
    ranges = {name: getattr(cfg, name) for name in names}
    found = MosaicMixupDataset(plain, (size, size), mosaic=True, preproc=preproc, enable_mixup=True, **ranges)
    return found, yolox_collate_fn


SAMPLES = {"ultralytics": ultralytics_samples, "libreyolo": libreyolo_samples}


# ---- prediction, for benchmarks.predict


def ultralytics_model(name: str):
    """Returns a model of Ultralytics with random weights; its network is `.model`."""
    from ultralytics import YOLO

    return YOLO(f"{name}.yaml")


def ultralytics_predictor(yolo, size: int, confidence: float, batch: int, rect: bool) -> Callable[[list], int]:
    """Returns a function from images, or the paths of all files of a folder, to the number of detections."""
    settings = {"imgsz": size, "conf": confidence, "iou": 0.5, "batch": batch, "rect": rect}

    def predict(source: list) -> int:
        blocks = [source[i : i + batch] for i in range(0, len(source), batch)]
        if isinstance(source[0], str):  # it opens all files of a list at once, but the files of a folder batch by batch
            blocks = [str(Path(source[0]).parent)]
        return sum(len(one.boxes) for b in blocks for one in yolo.predict(b, device="cpu", verbose=False, **settings))

    return predict


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    if task == "train":
        train(*arguments)
    elif task == "epochs":
        epochs(arguments[0], *map(int, arguments[1:]))
    else:
        peer, size, batch_size, amp, seconds = arguments
        print(json.dumps(steps(peer, int(size), int(batch_size), amp, float(seconds))))
