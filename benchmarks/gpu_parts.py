"""The parts of benchmarks.gpu. Each yields rows (column -> cell) and ends before `end`, a value of time.monotonic()."""

import csv
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

import nets
import train
from benchmarks import step
from benchmarks.small_data import write_task
from datasets import demo
from datasets.dataset import DetectionDataset
from datasets.flips import default_flip
from datasets.formats.options import read_options
from datasets.loader import TrainSampler
from datasets.sources import read_train_and_val
from datasets.transforms import Augment
from engine.evaluation import evaluate
from engine.memory import StepProbe
from engine.network import accelerate
from engine.optimizer import Updater
from engine.parallel import compile_criterion, compile_forward, graphed
from utils.config import show
from utils.processes import Ranks

ROOT = Path(__file__).parents[1]
MARGIN = 4.0  # seconds that a part leaves unused: its process has to end, too
WARM_UP = 3  # steps that are not measured: memory and algorithms are chosen in the first ones


def one_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def attempt(row: dict, measure: Callable[[], dict], end: float) -> dict:
    """Returns the row with the measured cells, or with an error if the measurement fails or no time is left for it."""
    if time.monotonic() > end - MARGIN:
        return row | {"error": "left out: the time budget of the part is used up"}
    try:
        return row | measure()
    except Exception as error:
        return row | {"error": one_line(error)}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def run(command: list[str], end: float) -> str:
    """Runs a program and returns what it prints. Raises an error with its last line if it fails or takes too long."""
    limit = end - MARGIN - time.monotonic()
    environment = {**os.environ, "YOLO_OFFLINE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not done after {limit:.0f} s, when the time of the part ended") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout


def settings(cfg, model: str, amp: str) -> step.Config:
    """Returns the constants of benchmarks.step for a model on the GPU."""
    return step.Config(model=model, size=cfg.size, batch_size=cfg.batch_size, device="cuda:0", amp=amp)


def trainer(
    cfg, model: str, amp: str, graphs: bool = True, compiled: bool = False, log: Callable[[str], None] = print
) -> tuple[Updater, Callable[[], None]]:
    """Returns an updater, and a function that performs a thawed training step on a fixed batch, as train.py does.

    `log` gets the reason if CUDA graphs or torch.compile do not work. With both, the compiled passes are captured, which
    train.py does not do."""
    constants = settings(cfg, model, amp)
    updater, criterion = step.start(constants)
    images, boxes, labels = (x.to(updater.device) for x in step.random_batch(constants))
    if compiled:
        if "NOT active" in (message := compile_forward(updater.model, False, Ranks(device=updater.device))):
            log(message)
        criterion = compile_criterion(criterion)
    sampler = TrainSampler(1000, cfg.batch_size, (cfg.size, cfg.size), seed=0)
    network = accelerate(updater.model, sampler, updater, graphs, log).train()
    if compiled and graphs:
        network = graphed(updater.model, tuple(images.shape), updater.autocast, log).train()

    def one_step() -> None:
        with updater.autocast():
            predictions = network(images)
        updater.step(criterion(predictions, boxes, labels, (cfg.size, cfg.size))["total"])

    return updater, one_step


def steps(cfg, model: str, amp: str, graphs: bool = True, compiled: bool = False) -> dict:
    """Measures training steps. Returns the cells of a row."""
    torch.cuda.reset_peak_memory_stats()
    begin, messages = time.perf_counter(), []
    updater, one_step = trainer(cfg, model, amp, graphs, compiled, messages.append)
    cells = {"note": messages[0]} if messages else {}
    one_step()
    torch.cuda.synchronize()
    cells["first step s"] = round(time.perf_counter() - begin, 1)
    begin, count = time.perf_counter(), -WARM_UP
    while count <= 0 or time.perf_counter() - begin < cfg.seconds:
        if count == 0:
            begin = time.perf_counter()
        for _ in range(WARM_UP):
            one_step()
        torch.cuda.synchronize()
        count += WARM_UP
    each = (time.perf_counter() - begin) / count
    cells |= {"ms per step": round(1000 * each, 1), "images/s": round(cfg.batch_size / each)}
    return cells | {
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "skipped steps": int(updater.skipped),
    }


def tests(cfg, end: float) -> Iterator[dict]:
    """Runs the tests that need a GPU: one row with their summary, and one per failure."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n4", "--dist=load", "-q", "-p", "no:cacheprovider"]
    limit = end - MARGIN - time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    lines = done.stdout.strip().splitlines()
    yield {"result": lines[-1] if lines else f"exit status {done.returncode}"}
    yield from ({"result": line[:200]} for line in lines if line.startswith(("FAILED", "ERROR")))


def speed(cfg, end: float) -> Iterator[dict]:
    """Measures steps of every model in every precision, and without CUDA graphs in fp16."""
    for model in cfg.models:
        for amp in cfg.amps:
            for graphs in (True, False) if amp == "fp16" else (True,):
                row = {"model": model, "amp": amp, "CUDA graphs": "yes" if graphs else "no"}
                yield attempt(row, lambda m=model, a=amp, g=graphs: steps(cfg, m, a, g), end)


def compiled(cfg, end: float) -> Iterator[dict]:
    """Measures steps of compiled models and of the same models without torch.compile, with and without CUDA graphs."""
    for model in cfg.compiled:
        for compile, graphs in ((False, False), (False, True), (True, False), (True, True)):
            words = {"compile": "yes" if compile else "no", "CUDA graphs": "yes" if graphs else "no"}
            row = {"model": model, "amp": "fp16", **words}
            yield attempt(row, lambda m=model, g=graphs, c=compile: steps(cfg, m, "fp16", g, c), end)


def waits(cfg, end: float) -> Iterator[dict]:
    """Counts operations, and the places at which a step after the first ones waits for the GPU."""
    for model in cfg.compiled:
        for amp in cfg.amps:
            yield attempt({"model": model, "amp": amp}, lambda m=model, a=amp: waits_of(cfg, m, a), end)


def waits_of(cfg, model: str, amp: str) -> dict:
    """Counts the waits of one step by place, and the operations of a frozen and of a thawed step."""
    _, one_step = trainer(cfg, model, amp)
    for _ in range(WARM_UP):
        one_step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            one_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # Another warning, that the mode is a prototype, comes from turning it on.
    waiting = [w for w in caught if "called a synchronizing" in str(w.message)]
    places = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in waiting)
    counts = {phase: counter.count for phase, counter in step.operations(settings(cfg, model, amp)).items()}
    found = ", ".join(f"{place} ({count})" for place, count in places.items())
    return {"waits": sum(places.values()), "where": found, **{f"operations, {p}": n for p, n in counts.items()}}


@contextmanager
def run_constants(cfg, **changes) -> Iterator[train.Config]:
    """Yields the constants of a short run from scratch, whose files are deleted afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not cfg.data:
            demo.draw(folder / "demo")
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


def made_data(constants: train.Config, ranks: Ranks) -> tuple:
    """Returns the training loader and the validation loader that a run with YOLOX has."""
    sources = (constants.train, constants.val, constants.split_seed)
    train_data, val_data = read_train_and_val(*sources, read_options(), lambda *_: None)
    flip = default_flip(train_data.classes)
    vertical, rotation = constants.flip_vertical, constants.rotation
    augment = Augment.of(constants.mosaic, constants.mixup, flip, vertical, rotation, constants.scale, constants.hsv)
    train_set = DetectionDataset(train_data, "corner", augment, constants.epochs, constants.seed)
    val_set = DetectionDataset(val_data, "corner")
    train_loader = train.build_train_loader(constants, train_set, nets.coarsest_stride(constants.model), ranks)
    return train_loader, train.build_val_loader(constants, val_set, ranks)


def loader(cfg, end: float) -> Iterator[dict]:
    """Measures images per second of the loader, of the network, and of a run, which needs both."""
    with run_constants(cfg) as constants:
        batches, _ = made_data(constants, Ranks(device=torch.device("cuda:0")))
        row = {"what": f"loader, {cfg.workers} workers on {os.cpu_count()} cores"}
        yield attempt(row, lambda: loader_speed(cfg, batches), end)
        yield attempt({"what": "training steps of yolox_nano, fp16"}, lambda: steps(cfg, "yolox_nano", "fp16"), end)
        yield attempt({"what": "train.py, second epoch of yolox_nano, fp16"}, lambda: run_speed(constants), end)


def loader_speed(cfg, batches) -> dict:
    """Reads whole epochs until the time is over. The first epoch starts the workers and does not count."""
    begin, images, epoch = time.perf_counter(), 0, 0
    while epoch < 2 or time.perf_counter() - begin < cfg.seconds:
        batches.batch_sampler.epoch = epoch
        for batch in batches:
            images += len(batch.images)
        if epoch == 0:
            begin, images = time.perf_counter(), 0
        epoch += 1
    return {"images/s": round(images / (time.perf_counter() - begin))}


def run_speed(constants: train.Config) -> dict:
    """Trains two epochs, and returns the speed that log.csv has for the second."""
    torch.cuda.reset_peak_memory_stats()
    train.main(constants)
    (log,) = Path(constants.output).glob("*/log.csv")
    with open(log, encoding="utf-8") as file:
        first, last = csv.DictReader(file)
    peak = {"peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
    return {
        "images/s": round(float(last["images_per_second"])),
        "first epoch s": round(float(first["seconds"]), 1),
    } | peak


def evaluation(cfg, end: float) -> Iterator[dict]:
    """Evaluates random weights, with few detections and with as many as an evaluation keeps."""
    ranks = Ranks(device=torch.device("cuda:0"))
    with run_constants(cfg) as constants:
        _, batches = made_data(constants, ranks)
        model = nets.build("yolox_s", len(batches.dataset.annotations.classes)).to(
            ranks.device, memory_format=torch.channels_last
        )
        for confidence in (0.001, 1e-6):
            row = {"model": "yolox_s", "confidence": confidence}
            yield attempt(row, lambda c=confidence: evaluation_speed(model, batches, ranks, c), end)


def evaluation_speed(model, batches, ranks: Ranks, confidence: float) -> dict:
    """Measures the second of two evaluations: in the first, workers start and cuDNN chooses algorithms."""
    evaluate(model, batches, ranks, confidence=confidence)
    begin = time.perf_counter()
    found = evaluate(model, batches, ranks, confidence=confidence)["detections"]
    seconds, images = time.perf_counter() - begin, len(batches.dataset)
    return {"images": images, "detections": len(found), "s": round(seconds, 2), "images/s": round(images / seconds)}


def memory(cfg, end: float) -> Iterator[dict]:
    """Compares the memory that the probe of a run measures with the peak of real steps."""
    for model in cfg.models:
        for amp in ("none", "fp16"):
            yield attempt({"model": model, "amp": amp}, lambda m=model, a=amp: memory_of(cfg, m, a), end)


def memory_of(cfg, name: str, amp: str) -> dict:
    """Probes a step, then runs a few. Returns the cells of a row."""
    model = nets.build(name, 80).to("cuda:0", memory_format=torch.channels_last)
    boxes = settings(cfg, name, amp).boxes
    probed = StepProbe(model, nets.criterion(model), (cfg.size, cfg.size), boxes, amp).bytes(cfg.batch_size)
    del model
    updater, one_step = trainer(cfg, name, amp, graphs=False)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):
        one_step()
    peak = torch.cuda.max_memory_allocated()
    return {
        "probe GiB": round(probed / 2**30, 2),
        "peak GiB": round(peak / 2**30, 2),
        "probe / peak": round(probed / peak, 3),
    }


def ranks(cfg, end: float) -> Iterator[dict]:
    """Trains an epoch with one process and with two on the same GPU. With learning rate 0 both log the same losses."""
    still = {"epochs": 1, "evaluate_every": 1, "learning_rate": 0.0, "min_learning_rate": 0.0, "amp": "none"}
    for processes in (1, 2):
        with run_constants(cfg, **still, workers=2) as constants:
            row = {"processes": processes}
            yield attempt(row, lambda p=processes, c=constants: ranks_of(c, p, end), end)


def ranks_of(constants: train.Config, processes: int, end: float) -> dict:
    """Runs train.py with one process or through torchrun, and returns metrics of its log."""
    changed = {name: value for name, value in vars(constants).items() if value != getattr(train.Config(), name)}
    words = [f"{name}={show(value)}" for name, value in changed.items()]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    run([sys.executable, *launcher, "train.py", *words], end)
    (log,) = Path(constants.output).glob("*/log.csv")
    with open(log, encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    return {name: last[name] for name in ("loss", "val_loss", "AP")}


def runs(cfg, end: float) -> Iterator[dict]:
    """Measures the second epoch of trainings from scratch, with the loader, of this trainer and of others."""
    with run_constants(cfg) as constants:
        for model, mosaic in (("yolox_s", 0.5), ("yolov9_s", 0.5), ("yolov9_s", 1.0)):
            row = {"trainer": "this one", "model": model, "mosaic": mosaic}
            changed = replace(constants, model=model, mosaic=mosaic, output=f"{constants.output}/{model}_{mosaic}")
            yield attempt(row, lambda c=changed: run_speed(c), end)
        for name in ("ultralytics", "libreyolo"):
            if not cfg.peers:
                yield {"trainer": name, "error": "left out: peers=PYTHON of an environment with it is not given"}
                continue
            yield attempt({"trainer": name, "mosaic": 1.0}, lambda n=name: peer_epochs(cfg, constants, n, end), end)


def peer_epochs(cfg, constants: train.Config, peer: str, end: float) -> dict:
    """Trains two epochs with another trainer on the same images, and returns the cells of the row."""
    sources = (constants.train, constants.val, constants.split_seed)
    data = read_train_and_val(*sources, read_options(), lambda *_: None)
    made = {"weights": None, "epochs": 2, "image_size": constants.image_size, "seed": 0}
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name), peer, *data, made)
        words = ["epochs", f"{name}/task.json", str(cfg.batch_size), str(cfg.workers)]
        return json.loads(run([cfg.peers, str(ROOT / "benchmarks" / "peers.py"), *words], end).splitlines()[-1])


def peers(cfg, end: float) -> Iterator[dict]:
    """Measures steps of this trainer and of others that are installed in the environment `peers`, in fp16."""
    for model in ("yolox_s", "yolov9_s"):
        row = {"trainer": "this one", "model": model, "amp": "fp16"}
        yield attempt(row, lambda m=model: steps(cfg, m, "fp16"), end)
    for name in ("ultralytics", "libreyolo"):
        if not cfg.peers:
            yield {"trainer": name, "error": "left out: peers=PYTHON of an environment with it is not given"}
            continue
        words = [name, str(cfg.size), str(cfg.batch_size), "fp16", str(cfg.seconds)]
        command = [cfg.peers, str(ROOT / "benchmarks" / "peers.py"), "steps", *words]
        yield attempt({"trainer": name}, lambda c=command: json.loads(run(c, end).splitlines()[-1]), end)
