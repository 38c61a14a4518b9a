"""Parts of benchmarks.gpu that train whole runs: where their time goes, their speed, two processes, and an exported file."""

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from unittest import mock

import onnxruntime
import torch

import export
import train
from benchmarks import whole_run
from benchmarks.gpu_parts import attempt
from benchmarks.own_process import run
from benchmarks.peer_task import peer_row
from benchmarks.table import read_rows
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from deploy import exported_model
from deploy.int8 import measure, val_loader
from deploy.load import load
from deploy.standalone.detector import Detector
from utils.config import show
from utils.images import read_image

WHOLE_RUNS = (("yolox_nano", 30), ("yolov9_s", 20))  # model, epochs
WHOLE_RUN_IMAGES = (300, 64)  # training, validation
RUNS = (("yolox_s", 0.5), ("yolov9_s", 0.5), ("yolov9_s", 1.0))  # model, mosaic
PEERS: tuple[tuple[str, str, dict], ...] = (  # trainer, model, options that differ from its defaults
    ("ultralytics", "yolov9s", {}),
    ("ultralytics", "yolov9s", {"cache": "ram"}),  # decoded images, as this trainer caches them
    ("libreyolo", "s", {}),
)
RUN_IMAGES = (640, 40)
DEMO_IMAGES = (160, 40)
EXPORTED = {**train.DEMO, "evaluate_every": 32}  # on the demo images, from scratch: enough for an mAP to compare
PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")  # of onnxruntime-gpu
CALLS = 50  # of an exported file, whose median is its time


def account(cfg, end: float) -> Iterator[dict]:
    """Divides the wall time of whole runs on small data, by benchmarks.whole_run with the real network."""
    images, val_images = WHOLE_RUN_IMAGES
    constants = {"images": images, "val_images": val_images, "batch_size": cfg.batch_size, "image_size": cfg.size}
    constants |= {"images_per_second": 0.0, "device": "auto", "workers": cfg.workers, "wall": True}
    with tempfile.TemporaryDirectory() as name:
        whole_run.draw(Path(name) / "data", images, val_images)
        for model, epochs in WHOLE_RUNS:
            one = whole_run.Config(model=model, epochs=epochs, **constants)
            yield attempt({"model": model}, lambda c=one: account_of(c, Path(name)), end)


def account_of(constants: whole_run.Config, folder: Path) -> dict:
    """Trains, and returns the cells of the row. Its images/s are those of the whole run after its start."""
    cells = whole_run.cells(constants, whole_run.seconds_of_run(constants, folder))
    return cells | {"images/s": round(constants.images * constants.epochs / float(cells["seconds"]))}


@contextmanager
def run_constants(cfg, images: tuple[int, int] = DEMO_IMAGES, **changes) -> Iterator[train.Config]:
    """Yields the constants of a short run from scratch, whose files are deleted afterwards. `images`: how many are drawn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not cfg.data:
            whole_run.draw(folder / "demo", *images)
        data = {"train": cfg.data, "val": cfg.val} if cfg.data else {}
        data = data or {part: f"{folder}/demo/{part}.txt" for part in ("train", "val")}
        sizes = {"image_size": (cfg.size, cfg.size), "batch_size": cfg.batch_size, "freeze_batch_size": cfg.batch_size}
        short = {
            "epochs": 2,
            "freeze_epochs": 0,
            "no_aug_epochs": 0,
            "evaluate_every": 2,
            "weights": None,
            "report": False,
        }
        yield train.Config(**{**data, **sizes, **short, "workers": cfg.workers, "output": f"{folder}/runs", **changes})


def run_speed(constants: train.Config) -> dict:
    """Trains two epochs, and returns the speed that log.csv has for the second."""
    torch.cuda.reset_peak_memory_stats()
    train.main(constants)
    first, last = log_of(constants)
    peak = {"peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
    return {
        "images/s": round(float(last["images_per_second"])),
        "first epoch s": round(float(first["seconds"]), 1),
    } | peak


def log_of(constants: train.Config) -> list[dict[str, str]]:
    """Returns the rows of the log of the only run in a folder."""
    (log,) = Path(constants.output).glob("*/log.csv")
    return read_rows(log)


def runs(cfg, end: float) -> Iterator[dict]:
    """Measures the second epoch of trainings from scratch, with the loader, of this trainer and of others."""
    with run_constants(cfg, RUN_IMAGES) as constants:
        for model, mosaic in RUNS:
            row = {"trainer": "this one", "model": model, "mosaic": mosaic}
            changed = replace(constants, model=model, mosaic=mosaic, output=f"{constants.output}/{model}_{mosaic}")
            yield attempt(row, lambda c=changed: run_speed(c), end)
        for name, model, options in PEERS:
            row = {"trainer": name, "mosaic": 1.0, **options}
            if not cfg.peers:
                yield row | {"error": "left out: peers=PYTHON of an environment with it is not given"}
                continue
            peer = partial(peer_epochs, cfg, constants, name, model, options=options)
            yield attempt(row, lambda p=peer: p(end=end), end)


def peer_epochs(cfg, constants: train.Config, peer: str, model: str, end: float, options: dict | None = None) -> dict:
    """Trains two epochs with another trainer on the same images, and returns the cells of the row."""
    data = read_train_and_val(constants.train, constants.val, read_options(), lambda *_: None)
    made = {"weights": None, "epochs": 2, "image_size": constants.image_size, "seed": 0, "options": options or {}}
    return peer_row(cfg.peers, "epochs", peer, model, data, made, cfg.batch_size, cfg.workers, end)


def ranks(cfg, end: float) -> Iterator[dict]:
    """Runs the same epoch in one process, and in two on one GPU: at a learning rate of 0 rounding does not grow."""
    with run_constants(cfg, epochs=1, amp="none", learning_rate=0.0, min_learning_rate=0.0) as constants:
        for count in (1, 2):
            changed = replace(constants, output=f"{constants.output}/{count}")
            yield attempt({"processes": count}, lambda n=count, c=changed: torchrun(n, c, end), end)


def torchrun(count: int, constants: train.Config, end: float) -> dict:
    """Trains in `count` processes, and returns the cells of the row: how they communicate, seconds of the epoch, losses."""
    usual = asdict(train.Config())
    words = [f"{name}={show(value)}" for name, value in asdict(constants).items() if value != usual[name]]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "train.py"]
    backend = re.search(r"process\w* over (\S+)", run([*launcher, *words], end))
    (row,) = log_of(constants)
    losses = {"loss": f"{float(row['loss']):.6f}", "val loss": f"{float(row['val_loss']):.6f}"}
    return {"backend": backend[1] if backend else "", "seconds": round(float(row["seconds"]), 1)} | losses


def exported(cfg, end: float) -> Iterator[dict]:
    """Compares an exported file on the GPU with PyTorch. Trains only if onnxruntime has one of PROVIDERS."""
    available = onnxruntime.get_available_providers()
    usable = [name for name in PROVIDERS if name in available]
    for name in PROVIDERS:
        if name not in usable:
            reason = f"left out: onnxruntime {onnxruntime.__version__} has only {', '.join(available)}"
            yield {"runtime": name, "error": reason}
    if not usable:
        return
    with run_constants(replace(cfg, data=""), **EXPORTED) as constants:
        checkpoint = train.main(constants).folder / "best.pt"
        file, loaded = export.main(export.Config(checkpoint=str(checkpoint))), load(checkpoint)
        loader = val_loader(constants.val, loaded)
        yield {"runtime": "PyTorch on the CPU", "mAP": round(measure("PyTorch", loaded.model, loader), 4)}
        for name in usable:
            yield attempt({"runtime": name}, lambda n=name: exported_cells(n, file, loader), end)


def exported_cells(provider: str, file: Path, loader) -> dict:
    """Runs a file with a provider of onnxruntime. Returns mAP and milliseconds per image, with letterbox and NMS."""

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, options, providers):
            super().__init__(path, options, providers)
            if provider not in self.get_providers():  # onnxruntime takes the CPU if a library is missing
                raise RuntimeError(f"{provider} does not work here: onnxruntime uses {self.get_providers()}")

    begin = time.perf_counter()
    with mock.patch.object(onnxruntime, "InferenceSession", Session):
        detector = Detector(file, providers=[provider])
    image = read_image(loader.dataset.annotations.path(0))
    detector(image)
    cells, times = {"start s": round(time.perf_counter() - begin, 1)}, []
    for _ in range(CALLS):
        begin = time.perf_counter()
        detector(image)
        times.append(time.perf_counter() - begin)
    with mock.patch.object(exported_model, "Detector", lambda *_, **__: detector):
        model = exported_model.ExportedModel(file)
    cells |= {"ms per image": round(1000 * statistics.median(times), 2)}
    return cells | {"mAP": round(measure(provider, model, loader), 4)}
