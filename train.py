"""Trains a detector. Edit the constants below, or override them for one run: python train.py epochs=100 image_size=640,640"""

from utils import start  # before PyTorch is imported

# isort: split
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import nets
from datasets.cache import fits_in_memory
from datasets.dataset import DetectionDataset, try_augment
from datasets.flips import default_flip
from datasets.loader import Loader, TrainSampler, ValSampler, build_loader
from datasets.sources import is_demo, read_train_and_val, val_source
from datasets.store import Annotations
from datasets.transforms import Augment
from engine import resume, run_constants, summary
from engine.clock import Clock
from engine.course import Course
from engine.environment import code_digest, source_digest
from engine.epoch import Meter, NonFiniteLoss, epoch_progress, epoch_row, fit_one_epoch
from engine.evaluation import Initial, validate
from engine.final_report import MAX_IMAGES as MAX_REPORT_IMAGES
from engine.final_report import evaluate_best, is_complete
from engine.memory import MAX_IMAGES, StepMemory
from engine.network import WrappedModel, step_seconds
from engine.optimizer import EMA, Updater, build_optimizer, usable_amp
from engine.origin import Origin
from engine.rates import Rates, given_or, usual_rate
from engine.run_folder import Run, open_run
from engine.run_store import require_store, run_root
from engine.runs import check_name, create, require_common, weights_file
from engine.saving import Saver
from engine.schedule import Schedule
from engine.state import Outcome, State
from engine.time_budget import TimeBudget
from utils import processes, threads
from utils.config import MAX_SEED, ConfigError, Constants, check, override, require, require_writable, show
from utils.processes import Interrupted, Ranks
from utils.remote import exists
from utils.remote_cache import shown
from utils.script import command_line, run_script, without_old_garbage
from utils.signals import StopSignal

IMPORTS = time.perf_counter() - start.BEGAN  # seconds


@dataclass(frozen=True)
class Config(Constants):
    # what everyone edits
    train: str = "data/demo/train.txt"  # annotation file, COCO JSON, YOLO yaml, or a data set's folder; A,B: several
    val: str = "data/demo/val.txt"  # the same, images that training never sees; .2: a fifth of train; 1/5: a fold
    classes: str | None = None  # names that select: cat,dog; or a file, one name per line; none: the names in the data
    model: str = "yolox_nano"  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    weights: str | None = "coco"  # coco, objects365: official; https://HOST: a mirror; a file; none: from scratch
    add_classes: bool = False  # the classes of weights= stay as they are, bit-identical; only new classes are trained
    image_size: tuple[int, int] | None = None  # height, width, or one number; multiples of 32; none: 416 or 640
    epochs: int = 50  # 0: enough for the number of training images; the run prints how many
    hours: float = 0.0  # time limit: trains as many of these epochs as fit, and fits the schedule; 0: none
    batch_size: int = 8  # images per batch over all processes; 0: the power of two that fills 80 % of the GPUs
    freeze_epochs: int = 0  # the backbone is frozen in these first epochs: faster, but no gain in mAP
    freeze_batch_size: int = 16  # images per step while frozen: without gradients of the backbone, more of them fit
    learning_rate: float | None = None  # for 64 images per step; none: by optimizer, lower if the weights know the data
    name: str = "train"  # the run folder is output/name-date-number
    # data
    merge: str | None = None  # classes that become others: truck:car,van:car
    image_root: str | None = None  # folder of the images, unless they are next to the annotations
    bad_boxes: str = "drop"  # without area or outside the image: "drop" lists them and leaves them out, "error" stops
    bad_images: str = "error"  # unreadable: "error" stops with a list, "skip" leaves them out, "repair": cut-off JPEGs
    all_labeled: bool = False  # train=A,B: true: each annotates all classes; false: mAP does not count what it lacks
    ignore_regions: str | None = None  # no loss there: crowd (crowd regions, difficult boxes) or a class: crowd,ignore
    split_by: str | None = None  # what val=.2 keeps together: folders, or a pattern of names; (.+)_\d+: frames of clips
    repeat_rare: float = 0.0  # images of classes in less than this fraction of all are drawn more often (LVIS: 0.001)
    # augmentation
    mosaic: float = 0.5  # probability; 1 for thousands of images and hundreds of epochs
    mixup: float = 0.0  # probability; helps only large models in long runs
    flip: float | None = None  # probability; none: .5, or 0 if a mirror turns a class into another (left, right)
    flip_vertical: float = 0.0  # probability; .5 for images without a top, such as aerial and microscope images
    rotation: float = 0.0  # degrees to either side, and 0.4 times as much shear
    scale: tuple[float, float] = (0.5, 1.5)  # smallest, largest size of the image, relative to the letterboxed one
    hsv: tuple[float, float, float] = (5.0, 30.0, 30.0)  # largest change of hue (of 180), saturation and value (of 255)
    multi_scale: float = 0.0  # the input size changes by up to this fraction every 10 steps
    no_aug_epochs: int | None = None  # last epochs: no mosaic or affine, lowest rate; none: a fifth, at most 15
    # optimization
    optimizer: str = "adamw"  # adamw: better in short runs; sgd: for long runs from scratch; adam
    min_learning_rate: float | None = None  # for 64 images per step; none: a twentieth of learning_rate
    schedule: str = "cosine"  # cosine, step or constant
    warmup_epochs: float | None = None  # quadratic growth of the rate; none: 100 steps, or 1 epoch, or a tenth
    weight_decay: float | None = None  # on convolution weights only; none: .05 for adamw, 5e-4 for sgd and adam
    accumulate: int = 1  # batches per optimizer step
    amp: str = "fp16"  # mixed precision: fp16, bf16 or none; on a CPU fp16 becomes none
    # hardware
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda:1, mps; cuda:all: DataParallel (torchrun is faster)
    workers: int | None = None  # processes that load images, per training process; none: chosen by device and cores
    sync_bn: bool = True  # batch-norm statistics over all processes
    timeout_minutes: float = 30.0  # how long a process waits for the others
    seed: int = 0  # of new weights, the order of the images and the augmentation; another one shows how results vary
    # run
    output: str = "runs"  # the folder of the run folders
    resume: bool | str = False  # true: the newest run of this name, or a new run if there is none; or a run
    evaluate_every: int = 1  # epochs between two evaluations on val
    save_every: int = 0  # epochs between checkpoints that are kept; 0: only best.pt and last.pt
    save_minutes: float = 10.0  # max minutes between saves of last.pt, which take 2 % of the time; 0: after each epoch
    patience: int = 0  # stop after this many epochs without a better mAP; 0: never
    report: bool = True  # at the end: classes and mistakes of best.pt, as by evaluate.py; not for large validation sets

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return self.image_size or nets.official_size(self.model)


def extra_augment(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, rng: np.random.Generator):
    """Your own augmentation, applied to every finished training sample except in the no-augmentation epochs.

    `image`: uint8 [H, W, 3] BGR; `boxes`: float32 [n, 4] xyxy in its pixels; `labels`: int64 [n]. Return an image of the
    same shape with its boxes and labels. Take all randomness from `rng`, so that runs stay reproducible.
    """
    return image, boxes, labels


def on_row(row: dict[str, float], run: Run) -> None:
    """Your own logger: gets the row of log.csv after each epoch, in one process. Examples: docs/integrations.md."""


def build_model(
    name: str, classes: tuple[str, ...], origin: Origin, ranks: Ranks
) -> tuple[nets.DetectionModel, nets.Pretraining | None]:
    """Returns the model on its device, with the same weights in all processes, and what they were trained on.

    Without a run to resume, whose weights are loaded later, it has the initial weights of `origin`.
    """
    if origin.last:
        model, pretraining = nets.build(name, len(classes), origin.saved["model"]), None
    else:
        options = {"optional": origin.is_optional, "add_classes": origin.add_classes}
        options["image_size"] = origin.user_config.image_size
        model, pretraining = nets.build_pretrained(name, classes, origin.weights, ranks, ranks.log, **options)
    model = model.to(ranks.device).to(memory_format=torch.channels_last)
    ranks.broadcast_model(model)
    return model, pretraining


@dataclass(frozen=True)
class Parts:
    """The functions and classes that a training is made of. From Python: main(cfg, parts=Parts(build_optimizer=mine)).

    docs/extend.md lists their arguments. A resumed run must have the same parts.
    """

    read_data: Callable = read_train_and_val
    dataset: Callable = DetectionDataset
    build_model: Callable = build_model
    criterion: Callable = nets.criterion
    build_optimizer: Callable = build_optimizer
    schedule: Callable = Schedule
    updater: Callable = Updater
    validate: Callable = validate
    clock: Callable = time.monotonic

    def replaced(self) -> dict[str, str]:
        """Returns the digests of the sources of replaced parts, by name."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: source_digest(part) for name, part in parts.items() if part is not vars(Parts)[name]}


# Only for data/demo, 200 generated images: minutes on two CPU cores, also from scratch if there are no official weights.
DEMO: dict[str, Any] = dict(
    image_size=(224, 224), epochs=32, batch_size=8, learning_rate=0.0113, min_learning_rate=0.00035, name="demo",
    mosaic=0.0, scale=(0.8, 1.2), no_aug_epochs=4, warmup_epochs=1.0, workers=0,
)  # fmt: skip

MINIMUM: dict[str, float] = {
    **{field.name: 0 for field in fields(Config) if field.type not in (str, str | None, bool, bool | str)},
    **{"accumulate": 1, "evaluate_every": 1, "scale": 0.01, "timeout_minutes": 0.05},
}
MAXIMUM: dict[str, float] = {
    **dict.fromkeys(("mosaic", "mixup", "flip", "flip_vertical", "multi_scale", "repeat_rare"), 1),
    "scale": 10,
    "hsv": 255,
    "seed": MAX_SEED,
}
CHOICES: dict[str, Sequence[str]] = {
    "model": tuple(nets.model_names()),
    "bad_boxes": ("error", "drop"),
    "bad_images": ("error", "skip", "repair"),
    "optimizer": ("adamw", "sgd", "adam"),
    "schedule": ("cosine", "step", "constant"),
    "amp": ("fp16", "bf16", "none"),
}

# The nodes of one run may differ in these: where files are, and what the hardware can do.
PER_NODE = {"train", "val", "classes", "image_root", "output", "weights", "workers", "device", "resume"}

# A resumed run may change these constants, too. A change of any other constant would make it a different training.
MAY_CHANGE = PER_NODE | {
    *("epochs", "hours", "name", "evaluate_every", "save_every", "save_minutes"),
    *("timeout_minutes", "patience", "report"),
}


def main(
    constants: Config, extra_augment: Callable = extra_augment, on_row: Callable = on_row, parts: Parts = Parts()
) -> Outcome:
    """Trains a detector, and returns the best mAP50-95 of the run, its folder and the rows of its log.

    First it builds the objects that decide, in the order in which things become known. last.pt keeps the states of `origin`,
    the model, `rates`, `course` and `updater`; the others have none.

    - `clock`: where the time of the run goes
    - `origin`: where the weights come from, and the saved states if a run is resumed
    - `memory`: images per step
    - `rates`: learning rates, weight decay and clipping of gradients
    - `course`: the epochs, what each of them does, and the schedule of the learning rate
    - `updater`: the optimizer, mixed precision, and the moving average of the weights (EMA)
    - `wrapped_model`: freezes and thaws the model, and wraps it for several GPUs
    - `saver`: log.csv, best.pt and last.pt

    Then comes the loop over the epochs.
    """
    clock = Clock(IMPORTS if __name__ == "__main__" else 0.0, parts.clock)
    user_config = checked(constants)
    budget = TimeBudget(user_config.hours, parts.clock)  # the time of hours= begins here
    ranks = processes.start(user_config.device, user_config.timeout_minutes)
    require_output(user_config.resume, user_config.output, ranks)

    # ---- Where the run begins: at a run to resume, a model that gets new classes, weights, or random weights.
    # `cfg` has the user's constants; a none or 0 that means "chosen by the run" is replaced as soon as the value is known.
    origin = Origin(user_config, ranks)
    cfg = origin.resolved_config(user_config)
    cfg = replace(cfg, workers=loader_workers(cfg, ranks))
    threads.set_threads(ranks.device, loader_workers(cfg, ranks), len(ranks.node_ranks))
    torch.manual_seed(cfg.seed)

    # ---- The data and the model.
    data = read_and_check_data(cfg, origin, extra_augment, parts, ranks)
    clock.enter("model")
    model = origin.build_model(parts.build_model, cfg.model, data.train.classes)  # with its weights
    cfg = with_flip(origin.without_weights(cfg), data.train.classes[model.first_class :])
    val_criterion = parts.criterion(model, normalizer=torch.ones_like)  # sums, which `validate` divides by their total

    # ---- How it is trained: images per step, learning rate, epochs, optimizer. `restore` registers an object whose state
    # last.pt keeps, and loads the saved state when a run is resumed.
    memory = StepMemory(cfg, model, val_criterion, boxes_per_sample(cfg, data.train), len(data.train), ranks)
    cfg = replace(cfg, **memory.batch_sizes)
    val_loader = build_val_loader(cfg, parts.dataset(data.val, model.letterbox), ranks)
    expected = nets.expected_ap(cfg.model, cfg.input_size)
    with clock.during("evaluation"):  # of the weights
        initial = Initial(origin.pretraining, expected, model, val_loader, val_criterion, ranks)
    rates = origin.restore("rates", Rates(cfg, initial.pretrained, initial.domain_similarity))
    course = origin.restore("course", Course(cfg, len(data.train), rates, budget, parts.schedule))
    updater = origin.restore("updater", build_updater(cfg, model, course, rates, parts, ranks))  # the optimizer
    state, begun_meter = origin.progress()  # epoch 0, or where the run to resume has stopped
    train_loader = build_train_loader(cfg, data.train, model, course, extra_augment, parts, ranks)
    wrapped_model = WrappedModel(cfg, model, updater, train_loader.batch_sampler, ranks)
    measure_step = partial(step_seconds, wrapped_model, parts.criterion, train_loader, parts.clock)
    course.choose_epochs(measure_step, len(data.val), state.epoch, ranks, (updater,))  # only with hours=
    # All values are known; a late run with hours= is shortened.
    cfg = replace(cfg, **rates.constants, **course.constants)

    # ---- What the run will do, and the folder that it saves to.
    end_reason = course.done(state)
    initial_text = summary.initial_text(initial, rates, user_config.learning_rate is None)
    about = summary.run_summary(user_config, cfg, data, updater, course, initial_text, ranks)
    for text in (*about, memory.text(), course.time_text):
        ranks.log(text)
    if end_reason and origin.folder and is_finished(origin.folder, state, cfg, data, ranks):
        ranks.log(summary.nothing_to_do(end_reason, course, origin.folder, state))
        ranks.stop()
        return Outcome(state.best, origin.folder, state.rows)
    warn_if_boxes_are_lost(train_loader.dataset, cfg, ranks)
    ranks.log(summary.resumed_text(origin.folder, state, begun_meter))
    folder, run = open_folder(cfg, data, origin, course, state, ranks, clock)  # `run`: None except on rank 0
    meter = Meter(begun_meter)  # of the current epoch
    how_to_continue = partial(resume.to_continue, __file__, folder, ranks)
    stop = StopSignal(advice=how_to_continue)
    saver = Saver(cfg, run, origin, stop, data, ranks, on_row)
    clock.enter("steps")

    # ---- The loop.
    with resume.noting(how_to_continue), closing(saver), without_old_garbage():  # the run is uploaded at the end, too
        with stop:
            try:
                state = saver.begin(state, meter, initial.row)
                while not (end_reason := course.done(state)):
                    phase = course.phase(state.epoch)  # frozen, augmented, ...: what this epoch does
                    # Batches of the epoch that a resumed run has trained are skipped.
                    step_model = wrapped_model.begin(phase, meter.batches)
                    criterion = parts.criterion(model, ranks.normalizer, no_aug=phase.no_aug, static=phase.static)
                    progress = epoch_progress(train_loader, phase.epoch, course.epochs, meter, updater, run, clock)
                    with progress as (batches, update_bar):
                        on_log = (update_bar, partial(saver.between_steps, state))
                        fit_one_epoch(step_model, criterion, batches, updater, ranks, meter, on_log, stop)
                    row = epoch_row(phase.epoch, meter, updater, train_loader.batch_sampler.samples)
                    course.shorten_if_late(phase.epoch + 1, ranks, (updater, saver))  # only with hours=
                    if phase.epoch + 1 < course.epochs:  # the workers load while the model is evaluated
                        wrapped_model.set_sampler(course.phase(phase.epoch + 1))
                        train_loader.begin()
                    if course.evaluates_after(phase.epoch):
                        with clock.during("evaluation"):
                            row |= parts.validate(updater, val_loader, val_criterion, ranks, run, phase.epoch, stop)
                    state, meter = saver.finish(state, row), Meter()
            except Interrupted:
                saver.within_epoch(state, meter, last=True)
                where = f"epoch {state.epoch + 1}, batches trained: {meter.batches}"
                ranks.log(f"\nstopped in {where}; everything is saved. {how_to_continue()}")
            except NonFiniteLoss as error:
                error.args = (error.text(data.train),)
                raise
            except torch.cuda.OutOfMemoryError as error:
                error.args = (f"CUDA out of memory: {memory.advice(model.frozen)}",)
                raise
        if not end_reason and not stop.received:
            why = "another process was asked to stop"
            raise SystemExit(f"{why}; everything is saved, and torchrun may restart this run")
        clock.enter("end")
        report: list[str] = []
        if end_reason:  # the reason; None after a stop
            ranks.log(f"done: {end_reason}")
            report = evaluate_best(folder, updater.ema.model, val_loader, ranks) if cfg.report else []
    if end_reason:
        ranks.log(clock.text(course.epochs, cfg.evaluate_every))
        ranks.log(summary.next_steps(folder, cfg.output, state, report, unused_test_split(cfg, data)))
    ranks.stop()
    return Outcome(state.best, folder, state.rows)


class Data(NamedTuple):
    """The annotations of a run."""

    train: Annotations
    val: Annotations


def read_and_check_data(cfg: Config, origin: Origin, extra_augment: Callable, parts: Parts, ranks: Ranks) -> Data:
    """Reads the data. Raises ConfigError if they differ between the ranks, or from those of the run to resume."""
    data = Data(*ranks.once_per_node(lambda: origin.read(parts.read_data)))
    fingerprint = fingerprint_of(cfg, data, extra_augment, parts)
    ranks.check_same(fingerprint | common_constants(cfg))
    return Data(*origin.checked_against_run(data, fingerprint, MAY_CHANGE))


def with_flip(cfg: Config, trained_classes: Sequence[str]) -> Config:
    """Returns the constants with flip: 0 if a horizontal flip turns one of the classes into another, such as left and right."""
    return replace(cfg, flip=given_or(cfg.flip, default_flip(trained_classes)))


def augmentation(cfg: Config) -> Augment:
    """Returns the settings of the augmentation."""
    assert cfg.flip is not None  # `with_flip` has chosen it
    translate = 0.1
    if cfg.rotation == 0 and cfg.scale == (1.0, 1.0):  # single images that keep angle and size are not shifted either
        translate = 0.0
    shape = (cfg.rotation, cfg.scale, translate, 0.4 * cfg.rotation)  # the last one is the shear
    return Augment(cfg.mosaic, cfg.mixup, cfg.flip, *shape, cfg.hsv, cfg.flip_vertical)


def boxes_per_sample(cfg: Config, data: Annotations) -> int:
    """Returns the largest number of boxes that a training sample can have."""
    return augmentation(cfg).max_images_per_sample * data.max_boxes


def build_updater(
    cfg: Config, model: nets.DetectionModel, course: Course, rates: Rates, parts: Parts, ranks: Ranks
) -> Updater:
    """Builds what performs the training steps."""
    optimizer = parts.build_optimizer(cfg.optimizer, model, rates.weight_decay)
    ema = EMA(model, course.plan.total_steps)
    amp = usable_amp(cfg.amp, ranks.device)
    return parts.updater(model, optimizer, course.schedule, ema, amp=amp, accumulate=cfg.accumulate, clip=rates.clip)


def build_train_loader(
    cfg: Config,
    data: Annotations,
    model: nets.DetectionModel,
    course: Course,
    extra_augment: Callable,
    parts: Parts,
    ranks: Ranks,
) -> Loader[TrainSampler]:
    """Builds the loader of this process's training batches. `WrappedModel.begin` sets its epoch, and the batch size of the phase.

    Its workers share `course.no_aug_from`, because hours= may change it.
    """
    settings = (augmentation(cfg), course.no_aug_from, cfg.seed, extra_augment, cfg.repeat_rare)
    dataset = parts.dataset(data, model.letterbox, *settings)
    sampler = TrainSampler(
        length=len(dataset),
        batch_size=cfg.batch_size,
        image_size=cfg.input_size,
        seed=cfg.seed,
        multi_scale=cfg.multi_scale,
        rank=ranks.rank,
        world=ranks.world_size,
        accumulate=cfg.accumulate,
        repeats=dataset.repeats,
        coarsest=nets.coarsest_stride(cfg.model),
    )
    return build_loader(dataset, sampler, loader_workers(cfg, ranks), ranks.device.type == "cuda")


def warn_if_boxes_are_lost(train_set: DetectionDataset, cfg: Config, ranks: Ranks) -> None:
    """Logs a warning if `extra_augment` loses most boxes."""
    if warning := ranks.on_main(lambda: try_augment(train_set, cfg.input_size)):
        ranks.log(f"WARNING: {warning}")


def open_folder(
    cfg: Config, data: Data, origin: Origin, course: Course, state: State, ranks: Ranks, clock: Clock
) -> tuple[Path, Run | None]:
    """Makes the run folder, or opens that of the run to resume. Returns it, and on rank 0 what writes to it."""
    folder = origin.folder or create(cfg.output, cfg.name, ranks)
    val_path = val_source(cfg.val, cfg.train, folder, data, ranks.is_main, cfg.add_classes)
    config = asdict(cfg) | {"val": val_path}  # for config.json and checkpoints
    facts = {"processes": ranks.world_size, "training_images": len(data.train)}
    progress = {"rows": state.rows, "saved_at": origin.saved_at}  # what this start has read
    run = open_run(folder, config, ranks, **progress, marks=course.marks, facts=facts, clock=clock)
    about = f"all {len(config)} constants are in config.json; python train.py --help explains them"
    ranks.log(f"run folder {shown(str(folder))}: {about}\n")
    return folder, run


def is_finished(folder: Path, state: State, cfg: Config, data: Data, ranks: Ranks) -> bool:
    """Returns whether a run that has trained all epochs has written all its files: it may have been stopped in its report."""
    has_report = cfg.report and len(data.val) <= MAX_REPORT_IMAGES
    return ranks.on_main(lambda: is_complete(folder, state, has_report))


def unused_test_split(cfg: Config, data: Data) -> str | None:
    """Returns the data set if it has a test split, which the run does not use; None otherwise."""
    has_test = all("test" in split.other_splits for split in data)
    return cfg.train if has_test else None


def checked(cfg: Config) -> Config:
    """Returns the constants with their declared types. Raises ConfigError that names the constant and the fix."""
    cfg = check(cfg)
    require(cfg, MINIMUM, MAXIMUM, CHOICES)
    nets.check_size(cfg.input_size)
    check_name(cfg.name)
    if cfg.weights not in (None, "coco", "objects365"):
        cfg = replace(cfg, weights=weights_file(cfg.weights, cfg.output))
    if cfg.scale[0] > cfg.scale[1]:
        raise ConfigError(f"scale={show(cfg.scale)}: write the smallest size first: scale={show(cfg.scale[::-1])}")
    if 0 < max(cfg.hsv) <= 1:  # as in other programs; here it would be no change of colors
        pixels = [180 * cfg.hsv[0], 255 * cfg.hsv[1], 255 * cfg.hsv[2]]
        fix = f"write hsv={show(pixels)} for these fractions, or hsv=0,0,0 for unchanged colors"
        raise ConfigError(f"hsv={show(cfg.hsv)}: hue is of 180, saturation and value are of 255: {fix}")
    low = cfg.min_learning_rate
    high = given_or(cfg.learning_rate, usual_rate(cfg.optimizer, nets.sgd_defaults(cfg.model)))
    if low is not None and low > high and cfg.schedule != "constant":
        rates = f"min_learning_rate={show(low)} is above learning_rate={show(high)}"
        raise ConfigError(f"{rates}: it is no fraction; lower it too, as in min_learning_rate={show(high / 20)}")
    if cfg.add_classes and cfg.weights is None:
        raise ConfigError("add_classes=true adds to a trained model: write weights=FILE or weights=coco")
    if cfg.add_classes and cfg.freeze_epochs:
        raise ConfigError(
            f"freeze_epochs={cfg.freeze_epochs}: add_classes=true freezes all that exists, for the whole run: leave it out"
        )
    if cfg.device == "cuda:all" and cfg.amp == "bf16":  # autocast in the threads of DataParallel supports fp16 only
        raise ConfigError("amp=bf16 does not work with device=cuda:all: use torchrun, or amp=fp16")
    return cfg


def require_output(resumed: bool | str, output: str, ranks: Ranks) -> None:
    """Raises ConfigError if the run folder cannot be written, or is another one on another node: before the data are read,
    which may take minutes."""

    def check() -> None:
        if not isinstance(resumed, str):
            require_writable(f"output={output}", run_root(output))
            require_store(output)
        elif os.path.isdir(resumed):
            require_writable(f"resume={resumed}", resumed, "correct its permissions, or copy it and resume the copy")

    ranks.once_per_node(check)
    folder = run_root(output)
    if isinstance(resumed, str) and os.path.isdir(resumed):
        folder = Path(resumed)
    require_common(folder, ranks)


def loader_workers(cfg: Config, ranks: Ranks) -> int:
    """Returns the number of processes that load images for this process: `workers`, or what fits the largest batch."""
    if cfg.workers is not None:
        return cfg.workers
    images = max(cfg.batch_size, cfg.freeze_batch_size) if cfg.freeze_epochs else cfg.batch_size
    images = images or MAX_IMAGES * ranks.world_size  # automatic
    node = len(ranks.node_ranks)
    return threads.choose_workers(ranks.device, node, -(-images * node // ranks.world_size), cfg.input_size)


def fingerprint_of(cfg: Config, data: Data, extra_augment: Callable, parts: Parts) -> dict[str, Any]:
    """Returns what a resumed run must have in common with the run before, besides the constants as written."""
    replaced = ",".join(f"{name}:{digest}" for name, digest in parts.replaced().items())
    return {
        "model": cfg.model,
        "image_size": cfg.image_size,
        "classes": list(data.train.classes),
        "training data": data.train.digest(),
        "contents of the images": data.train.image_digest(),
        "validation data": data.val.digest(),  # which choose best.pt
        "extra_augment": source_digest(extra_augment),
        "parts": replaced,
    }


def common_constants(cfg: Config) -> dict[str, str]:
    """Returns what the processes of one run must have in common besides `fingerprint_of`, as text.

    A constant that is added later counts, too, unless PER_NODE names it.
    """
    other = {"code": code_digest(Path(__file__).parent), "torch": torch.__version__}
    return {name: show(value) for name, value in asdict(cfg).items() if name not in PER_NODE} | other


def build_val_loader(cfg: Config, dataset: DetectionDataset, ranks: Ranks) -> Loader[ValSampler]:
    """Builds the loader of this process's shard of the validation images, in batches of up to 32 images.

    They are loaded once if they fit into the memory.
    """
    sampler = ValSampler(len(dataset), min(cfg.batch_size, 32), cfg.input_size, ranks.rank, ranks.world_size)
    keeps = fits_in_memory(3 * math.prod(cfg.input_size) * len(sampler.indices))
    return build_loader(dataset, sampler, loader_workers(cfg, ranks), ranks.device.type == "cuda", keeps)


def from_command_line(argv: list[str]) -> Config:
    """Returns the constants. The command line overrides the constants of the run to resume, or else DEMO (only for the demo)."""
    words = {"train": exists}
    cfg = override(Config(), argv, words)
    if demo := is_demo(cfg.train):
        cfg = override(replace(Config(), **DEMO), argv, words)
    if cfg.resume and (run := resume.run_to_resume(cfg.resume, cfg.output, cfg.name)):
        cfg = run_constants.with_constants_of(run, Config(), argv, words)
        return cfg if cfg.resume is True else replace(cfg, resume=str(run))
    if demo:
        run_constants.refuse_demo(cfg.resume, cfg.output, cfg.name, argv)
        if os.environ.get("RANK", "0") == "0":
            print("demo: with the constants DEMO in train.py, which are not for your own data")
    return cfg


if __name__ == "__main__":
    stopped = f"stopped; this start has saved nothing. To start again:\n{command_line(__file__, sys.argv[1:])}"
    run_script(lambda: main(from_command_line(sys.argv[1:])), stopped, memory_advice="lower batch_size= or image_size=")
