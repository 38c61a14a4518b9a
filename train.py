"""Trains a detector. Edit the constants below, or override them for one run: python train.py epochs=100 image_size=640,640"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nets
from datasets.classes import with_known_classes
from datasets.dataset import DetectionDataset, source_digest, try_augment
from datasets.formats.read import read_options
from datasets.loader import Loader, TrainSampler, ValSampler, build_loader
from datasets.mirrored import default_flip
from datasets.sources import is_demo, read_train_and_val, val_source, val_text
from datasets.store import Annotations
from datasets.transforms import Augment
from engine import gpu_memory, resume, run_constants, summary
from engine.environment import code_digest
from engine.epoch import Meter, NonFiniteLoss, accelerate, epoch_progress, epoch_row, epoch_text, fit_one_epoch
from engine.evaluation import evaluate, evaluation_row, validate
from engine.final_evaluation import evaluate_best
from engine.gpu_memory import MOST_IMAGES, hardware_warnings, less_memory
from engine.optimizer import EMA, Updater, build_optimizer, usable_amp
from engine.parallel import compile_forward, require_statistics, wrap
from engine.run_folder import Run, best_of, check_name, create, near_run, open_run, run_of
from engine.schedule import (
    CHOSEN_BY_RUN,
    Plan,
    Schedule,
    enough_epochs,
    fill_in_defaults,
    first_fixed_epoch,
    first_no_aug_epoch,
    likeness_of,
)
from engine.time_budget import TimeBudget, step_seconds
from utils import processes, threads
from utils.config import MAX_SEED, ConfigError, check, is_weights, override, require, require_writable, show
from utils.processes import Interrupted, Ranks
from utils.script import command_line, run_script
from utils.signals import StopSignal
from utils.text import amount


@dataclass(frozen=True)
class Config:
    # what everyone edits
    train: str = "data/demo/train.txt"  # annotation file, COCO JSON, YOLO yaml, or the folder of a data set
    val: str = "data/demo/val.txt"  # the same, images that training never sees; .2: a fifth of the training images
    classes: str | None = None  # names that select: cat,dog; or a file, one name per line; none: the names in the data
    model: str = "yolox_nano"  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    weights: str | None = "coco"  # coco, objects365: official; https://HOST: a mirror; a file; none: from scratch
    add_classes: bool = False  # the classes of weights= stay as they are, equal by bits; only new classes are trained
    image_size: tuple[int, int] | None = None  # height, width, or one number; multiples of 32; none: 416 or 640
    epochs: int = 50  # 0: enough for the number of training images; the run prints how many
    hours: float = 0.0  # time limit: trains as many of these epochs as fit, and fits the schedule; 0: none
    batch_size: int = 8  # images per step over all processes; 0: the power of two that fills 80 % of the GPUs
    freeze_epochs: int = 0  # the backbone is frozen in these first epochs: faster, but no gain in mAP
    freeze_batch_size: int = 16  # images per step while frozen: without gradients of the backbone, more of them fit
    learning_rate: float | None = None  # for 64 images per step, scaled by batch size (docs/constants.md); none: chosen
    name: str = "train"  # the run folder is output/name-date-number
    # data
    merge: str | None = None  # classes that become others: truck:car,van:car
    image_root: str | None = None  # folder of the images, unless they are next to the annotations
    bad_boxes: str = "drop"  # without area or outside the image: "drop" lists them and leaves them out, "error" stops
    bad_images: str = "error"  # unreadable: "error" stops with a list, "skip" leaves them out, "repair": cut-off JPEGs
    split_seed: int = 0  # chooses the validation images of val=.2; seed does not change them
    repeat_rare: float = 0.0  # images of classes in less than this fraction of all are drawn more often (LVIS: 0.001)
    # augmentation
    mosaic: float = 0.5  # probability; 1 for thousands of images and hundreds of epochs
    mixup: float = 0.0  # probability; helps only large models in long runs
    flip: float | None = None  # probability; none: .5, or 0 if a mirror turns a class into another (left, right)
    rotation: float = 0.0  # degrees to either side, and 0.4 times as much shear
    scale: tuple[float, float] = (0.5, 1.5)  # smallest, largest size of the image, relative to the letterboxed one
    hsv: tuple[float, float, float] = (5.0, 30.0, 30.0)  # largest change of hue (of 180), saturation and value (of 255)
    multi_scale: float = 0.0  # the input size changes by up to this fraction every 10 steps
    no_aug_epochs: int | None = None  # last epochs: no mosaic or affine, lowest rate; none: a fifth, at most 15
    # optimization
    optimizer: str = "adamw"  # adamw: best below 10,000 steps; sgd: for long runs from scratch; adam
    min_learning_rate: float | None = None  # for 64 images per step; none: a twentieth of learning_rate
    schedule: str = "cosine"  # cosine, step or constant
    warmup_epochs: float | None = None  # quadratic growth of the rate; none: 100 steps, or 1 epoch, or a tenth
    weight_decay: float | None = None  # on convolution weights only; none: .05 for adamw, 5e-4 for sgd and adam
    accumulate: int = 1  # batches per optimizer step
    ema: bool = True  # evaluate and save the moving average of the weights
    amp: str = "fp16"  # mixed precision: fp16, bf16 or none; on a CPU fp16 becomes none
    # hardware
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda:1, mps; cuda:all: DataParallel (torchrun is faster)
    workers: int | None = None  # processes that load images, per training process; none: chosen by device and cores
    compile: bool = False  # torch.compile: minutes at the start of each phase, faster steps on a GPU
    cuda_graphs: bool = True  # on one GPU: launch forward and backward at once, not operation by operation
    sync_bn: bool = True  # batch-norm statistics over all processes
    timeout_minutes: float = 30.0  # how long a process waits for the others
    seed: int = 0  # of new weights, the order of the images and the augmentation; another one shows how results vary
    # run
    output: str = "runs"  # the folder of the run folders
    resume: bool | str = False  # true: the newest run of this name, or a new run if there is none; or a run
    evaluate_every: int = 1  # epochs
    save_every: int = 0  # epochs between checkpoints that are kept; 0: only best.pt and last.pt
    save_minutes: float = 10.0  # minutes between saves of last.pt within an epoch; 0: only after each epoch
    patience: int = 0  # stop after this many epochs without a better mAP; 0: never
    profile_steps: int = 0  # profile this many early steps into the run folder
    report: bool = True  # at the end: classes and mistakes of best.pt, as by evaluate.py; not for large validation sets


def extra_augment(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, rng: np.random.Generator):
    """Your own augmentation, applied to every finished training sample except in the no-augmentation epochs.

    `image`: uint8 [H, W, 3] BGR; `boxes`: float32 [n, 4] xyxy in its pixels; `labels`: int64 [n]. Return an image of the
    same shape with its boxes and labels. Take all randomness from `rng`, so that runs stay reproducible.
    """
    return image, boxes, labels


def on_row(row: dict[str, float], run: Run) -> None:
    """Your own logger: gets the row of log.csv after each epoch, in one process. Examples: docs/runs.md."""


def build_model(
    name: str,
    classes: tuple[str, ...],
    weights: str | None,
    optional: bool,
    saved: dict | None,
    ranks: Ranks,
    log: Callable,
    add_classes: bool,
) -> tuple[nets.DetectionModel, nets.Pretraining | None]:
    """Returns the model on its device, with the same weights in all processes, and what they were trained on.

    `saved`: a run to resume, whose weights are loaded later; None: load the pretrained `weights`. For `optional` and
    `add_classes` see nets.build_pretrained.
    """
    if saved:
        model, pretraining = nets.build(name, len(classes), saved["model"]), None
    else:
        model, pretraining = nets.build_pretrained(name, classes, weights, ranks, log, optional, add_classes)
    model = model.to(ranks.device, memory_format=torch.channels_last)
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
DEMO = dict(
    image_size=(224, 224), epochs=32, batch_size=8, freeze_epochs=4, freeze_batch_size=8, learning_rate=0.0113,
    min_learning_rate=0.00035, name="demo", mosaic=0.0, scale=(0.8, 1.2), no_aug_epochs=4, warmup_epochs=1.0, workers=0,
)  # fmt: skip

MINIMUM = {
    **{field.name: 0 for field in fields(Config) if field.type not in (str, str | None, bool, bool | str)},
    **{"accumulate": 1, "evaluate_every": 1, "scale": 0.01, "timeout_minutes": 0.05},
}
MAXIMUM = {
    **dict.fromkeys(("mosaic", "mixup", "flip", "multi_scale", "repeat_rare"), 1),
    "seed": MAX_SEED,
    "split_seed": MAX_SEED,
}
CHOICES = {
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
    *("epochs", "hours", "name", "compile", "cuda_graphs", "evaluate_every", "save_every", "save_minutes"),
    *("timeout_minutes", "patience", "profile_steps", "report"),
}


def main(
    constants: Config, extra_augment: Callable = extra_augment, on_row: Callable = on_row, parts: Parts = Parts()
) -> float:
    """Trains a detector and returns the best mAP50-95 of the run."""
    cfg = checked(constants)  # as written; `settings` also has the values that the run chooses
    budget = TimeBudget(cfg.hours, cfg.evaluate_every, parts.clock)
    ranks = processes.start(cfg.device, cfg.timeout_minutes)
    log = print if ranks.is_main else lambda *_: None
    trained = None
    if cfg.add_classes:  # model= and image_size= come from the trained model
        trained = ranks.on_main(
            lambda: (
                resume.trained_before(cfg.resume, cfg.output, cfg.name)
                or nets.trained_model(cfg.model, cfg.weights, log)
            )
        )
        if cfg.model not in (Config.model, trained.model):
            raise ConfigError(
                f"model={cfg.model}: weights={cfg.weights} is a {trained.model}, and add_classes=true adds to this model: "
                f"leave out model="
            )
        cfg = replace(cfg, model=trained.model, image_size=cfg.image_size or trained.image_size)
    image_size = cfg.image_size or nets.official_size(cfg.model)
    workers = loader_workers(cfg.workers, cfg.batch_size, cfg.freeze_batch_size, cfg.freeze_epochs, image_size, ranks)
    threads.set_threads(ranks.device, workers, len(ranks.node_ranks))
    torch.manual_seed(cfg.seed)
    phases = batch_sizes_of_phases(cfg.batch_size, cfg.freeze_batch_size, cfg.epochs, cfg.freeze_epochs)
    coarsest = nets.coarsest_stride(cfg.model)
    ranks.on_main(lambda: require_statistics(phases, image_size, ranks, cfg.sync_bn, coarsest))
    ranks.once_per_node(lambda: require_output(cfg.resume, cfg.output))

    # The data, and the run to resume.
    def read() -> tuple[Annotations, Annotations]:
        options = read_options(cfg.classes, cfg.merge, cfg.image_root, cfg.bad_boxes, cfg.bad_images)
        options = replace(options, known=trained.classes if trained else ())
        data = parts.read_data(cfg.train, cfg.val, cfg.split_seed, options, log)
        return with_classes_of(trained, *data, options.select, log) if trained else data

    train_data, val_data = ranks.once_per_node(read)
    fixed = fixed_constants(cfg, image_size, train_data, extra_augment, parts)
    ranks.check_same(fixed | common_constants(cfg, val_data))
    previous = resume.find(cfg.resume, cfg.output, cfg.name, fixed, ranks)
    train_data, val_data = resume.with_saved_range(previous.saved, train_data, val_data)

    # The model.
    model, pretraining = parts.build_model(
        name=cfg.model,
        classes=train_data.classes,
        weights=cfg.weights,
        optional=is_demo(cfg.train),
        saved=previous.saved,
        ranks=ranks,
        log=log,
        add_classes=cfg.add_classes,
    )
    val_criterion = parts.criterion(model, torch.ones_like)  # normalizer 1: losses are sums, which `evaluate` divides
    freeze_epochs, weights = cfg.freeze_epochs, cfg.weights
    if previous.saved:
        freeze_epochs, weights = previous.saved["freeze_epochs"], previous.saved.get("weights", weights)
    elif cfg.weights and pretraining is None:  # the demo's download failed, so nothing is worth freezing
        freeze_epochs, weights = 0, None

    # Images per step, which must fit the memory of a GPU, and the numbers of steps and epochs.
    flip = cfg.flip
    if flip is None:
        flip = default_flip(train_data.classes[model.first_class :])
    augment = Augment.of(cfg.mosaic, cfg.mixup, flip, cfg.rotation, cfg.scale, cfg.hsv)
    most_boxes = augment.most_images * train_data.most_boxes
    step_bytes = gpu_memory.probe(model, val_criterion, image_size, cfg.multi_scale, most_boxes, cfg.amp, ranks)
    batch_sizes = {"freeze_batch_size": cfg.freeze_batch_size, "batch_size": cfg.batch_size}
    batch_sizes = gpu_memory.choose_batch_sizes(
        batch_sizes, previous.batch_sizes, step_bytes, len(train_data), cfg.accumulate, ranks
    )
    epochs = cfg.epochs or enough_epochs(len(train_data), batch_sizes["batch_size"] * cfg.accumulate)
    longest = Plan.of(len(train_data), epochs, freeze_epochs, **batch_sizes, accumulate=cfg.accumulate)
    thawed_bytes = gpu_memory.check_thawed_step(step_bytes, batch_sizes, longest, cfg.accumulate, ranks)

    # The validation. Initial weights that were trained on classes of the data are evaluated before training.
    val_set = parts.dataset(val_data, model.letterbox)
    val_loader = build_val_loader(val_set, batch_sizes["batch_size"], image_size, workers, ranks)
    first_row, likeness = {}, 0.0
    if pretraining is not None and pretraining.known > 0:
        budget.lap()
        metrics = evaluate(model, val_loader, ranks, val_criterion)
        first_row = {"epoch": 0} | evaluation_row(metrics, model.first_class)
        budget.lap("evaluation")
        likeness = likeness_of(pretraining, first_row["AP"], nets.expected_ap(cfg.model, image_size))

    # The defaults that depend on all this and on the number of epochs.
    defaults_of = partial(
        fill_in_defaults,
        learning_rate=cfg.learning_rate,
        min_learning_rate=cfg.min_learning_rate,
        warmup_epochs=cfg.warmup_epochs,
        no_aug_epochs=cfg.no_aug_epochs,
        weight_decay=cfg.weight_decay,
        optimizer=cfg.optimizer,
        sgd=nets.sgd_defaults(cfg.model),
        pretrained=pretraining is not None,
        likeness=likeness,
    )

    # What trains a model.
    amp = usable_amp(cfg.amp, ranks.device)

    def build_updater(model: nets.DetectionModel, plan: Plan, defaults: Mapping[str, float]) -> Updater:
        schedule = build_schedule(parts.schedule, plan, cfg.schedule, defaults)
        optimizer = parts.build_optimizer(cfg.optimizer, model, defaults["weight_decay"])
        ema = EMA(model, plan.total_steps, cfg.ema)
        return parts.updater(model, optimizer, schedule, ema, amp=amp, accumulate=cfg.accumulate, clip=defaults["clip"])

    # What it trains on.
    no_aug_from = torch.tensor(epochs).share_memory_()  # with the workers of the loader: a time limit changes it
    rare = cfg.repeat_rare
    train_set = parts.dataset(train_data, model.letterbox, augment, no_aug_from, cfg.seed, extra_augment, rare)
    if warning := ranks.on_main(lambda: try_augment(train_set, image_size)):
        log(f"WARNING: {warning}")
    loader = build_train_loader(
        train_set,
        batch_sizes["batch_size"],
        image_size,
        cfg.multi_scale,
        coarsest,
        cfg.seed,
        cfg.accumulate,
        workers,
        ranks,
    )
    sampler = loader.batch_sampler

    # The number of epochs that fit into the time limit.
    if cfg.hours:
        budget.load_state_dict((previous.saved or {}).get("time_budget"))
        budget.probe(
            partial(
                step_seconds,
                model,
                build_updater=lambda trial: build_updater(
                    trial, longest, defaults_of(plan=longest, saved=previous.saved or {})
                ),
                build_criterion=parts.criterion,
                loader=loader,
                batch_sizes=batch_sizes,
                ranks=ranks,
                sync_bn=cfg.sync_bn,
                cuda_graphs=cfg.cuda_graphs,
                clock=parts.clock,
            ),
            longest,
            len(val_data),
        )
        epochs = budget.choose(longest, previous.epochs, ranks)
    plan = longest.cut(epochs)
    defaults = defaults_of(plan=plan, saved=previous.saved or {})
    first_no_aug = max(epochs - defaults["no_aug_epochs"], 0)
    no_aug_from.fill_(first_no_aug)

    # `settings` has the values of all constants.
    chosen = {name: defaults[name] for name in CHOSEN_BY_RUN}
    settings = replace(cfg, image_size=image_size, workers=workers, weights=weights, **batch_sizes, **chosen)
    settings = replace(settings, epochs=epochs, freeze_epochs=freeze_epochs, flip=flip)

    # The state of the run to resume.
    updater = build_updater(model, plan, defaults)
    state, saved_meter = resume.restore(previous.saved, model, updater)
    previous.saved = None  # frees the tensors of last.pt, which may take gigabytes

    log_summary(cfg, settings, train_data, val_data, model, updater, first_row, likeness, thawed_bytes, ranks, log)
    done = state.done(epochs, cfg.patience)
    if cfg.hours and not done:
        log(budget.text(longest, state.epoch))
    if done:
        more = "a larger patience=, or patience=0,"
        if state.epoch >= epochs:
            more = "a larger hours=" if epochs < longest.epochs else "a larger epochs="
        log(f"nothing to do: {done}; {more} extends the run")
        log(f"{previous.folder}  best mAP50-95 {state.best:.4f}")
        ranks.stop()
        return state.best
    if saved_meter:
        log(f"resuming {previous.folder} after epoch {state.epoch} and {saved_meter['batches']} batches")
    if cfg.compile:
        log(compile_forward(model, cfg.multi_scale > 0, ranks, cfg.sync_bn))

    # The run folder, and what is saved there.
    folder = previous.folder or create(cfg.output, cfg.name, ranks)
    val = val_source(cfg.val, cfg.train, folder, (train_data, val_data), ranks.is_node_main, cfg.add_classes)
    config = asdict(settings) | {"val": val}  # for config.json and checkpoints
    marks = summary.curve_marks(plan, settings.no_aug_epochs)
    images, written = len(train_data), asdict(cfg)
    run = open_run(folder, config, ranks, marks=marks, rows=state.rows, training_images=images, written=written)
    everything = f"all {len(config)} constants are in config.json; python train.py --help explains them"
    log(f"run folder {folder}: {everything}\n")
    kept = {"constants": fixed, "freeze_epochs": freeze_epochs, "weights": weights}
    if trained:  # a resumed run does not need the file of weights=
        kept["trained"] = trained._asdict()
    stop = StopSignal(advice=partial(resume.to_continue, __file__, folder, ranks))
    save = resume.Saver(
        run,
        ranks,
        updater,
        stop,
        config,
        data=(train_data, val_data),
        resume=defaults | kept | {"batch_sizes": tuple(batch_sizes.values())},
        budget=budget,
        save_every=cfg.save_every,
        save_minutes=cfg.save_minutes,
        defaults=asdict(Config()),
        thresholds=trained.thresholds if trained else {},
    )

    network, meter, first_epoch = None, Meter(saved_meter), state.epoch
    with stop, closing(run) if run else nullcontext():  # draws the curves at the end, also of a run that was stopped
        try:
            if first_row:  # best.pt holds the initial weights until training beats them
                state = state.after(first_row)
                save.after_epoch(state)
                if ranks.is_main:
                    on_row(state.rows[-1], run)
                log(epoch_text(first_row, epochs, best=False))
            elif cfg.hours:
                save.within_epoch(state, meter)  # the number of epochs, before a step depends on it
            for epoch in range(first_epoch, longest.epochs):
                frozen = epoch < plan.freeze_epochs
                sampler.batch_size = settings.freeze_batch_size if frozen else settings.batch_size
                sampler.epoch, sampler.start = epoch, meter.batches
                fixed_statistics = settings.weights is None and epoch >= first_fixed_epoch(epochs, first_no_aug)
                if network is None or (frozen, fixed_statistics) != (model.frozen, model.fixed_statistics):
                    model.freeze_backbone(frozen)
                    model.fix_statistics(fixed_statistics)
                    network = wrap(model, ranks, cfg.sync_bn)
                    network = accelerate(network, sampler, updater, cfg.cuda_graphs, log)
                static = settings.weights is None and epoch < epochs // 3  # as in the official recipes of PP-YOLOE
                criterion = parts.criterion(model, ranks.normalizer, no_aug=epoch >= first_no_aug, static=static)
                profile = cfg.profile_steps if epoch == first_epoch else 0
                budget.lap()
                steps_before = updater.step_number
                with epoch_progress(loader, epoch, epochs, meter, updater, run, profile) as (batches, update_bar):
                    on_log = (update_bar, partial(save.between_steps, state))
                    fit_one_epoch(network, criterion, batches, updater, ranks, meter, on_log, stop)
                budget.lap("frozen" if frozen else "thawed", updater.step_number - steps_before)
                row = epoch_row(epoch, meter, updater, sampler.samples)
                if cfg.hours:  # a run that falls behind keeps its last epochs, those without augmentation
                    least = epoch + 2 if epoch < first_no_aug < epochs else epoch + 1
                    before, epochs = epochs, budget.fit(longest, least, epoch + 1, ranks)
                    if epochs != before:
                        log(
                            f"hours={cfg.hours:g}: {amount(epochs, 'epoch')} instead of {before}, from the measured time"
                        )
                        plan = longest.cut(epochs)
                        first_no_aug = first_no_aug_epoch(epochs, cfg.no_aug_epochs, first_no_aug, epoch + 1)
                        no_aug_from.fill_(first_no_aug)
                        defaults["no_aug_epochs"] = epochs - first_no_aug
                        updater.schedule = build_schedule(parts.schedule, plan, cfg.schedule, defaults)
                        updater.ema.set_length(plan.total_steps)
                        changed = {"epochs": epochs, "no_aug_epochs": epochs - first_no_aug}
                        save.change(changed, summary.curve_marks(plan, epochs - first_no_aug))
                if (epoch + 1) % cfg.evaluate_every == 0 or epoch + 1 == epochs:
                    row |= parts.validate(updater, val_loader, val_criterion, ranks, run, epoch, stop)
                    budget.lap("evaluation")
                state, meter = state.after(row), Meter()
                done = state.done(epochs, cfg.patience)
                save.after_epoch(state, last=bool(done))
                if ranks.is_main:
                    on_row(state.rows[-1], run)
                left, memory = budget.left(plan, epoch + 1, epoch + 1), gpu_memory.reserved_bytes(ranks.device)
                log(epoch_text(row, epochs, state.best_epoch == epoch + 1, left, memory))
                budget.lap("save")
                if done:
                    break
        except Interrupted:
            save.within_epoch(state, meter, last=True)
            where = f"epoch {state.epoch + 1} after {meter.batches} of {len(loader)} batches"
            log(f"\nstopped in {where}; everything is saved. {resume.to_continue(__file__, folder, ranks)}")
        except NonFiniteLoss as error:
            raise SystemExit(error.text(train_data)) from error
        except torch.cuda.OutOfMemoryError as error:
            raise SystemExit(f"CUDA out of memory: {less_memory(batch_sizes, cfg.accumulate, model.frozen)}") from error
    if done := state.done(epochs, cfg.patience):
        log(f"done: {done}")
        lines = []
        if cfg.report and state.best > 0:
            lines = evaluate_best(folder, updater.ema.model, val_loader, ranks, budget.seconds("evaluation"))
        has_test = all("test" in data.other_splits for data in (train_data, val_data))
        test = cfg.train if has_test else None
        log(summary.next_steps(folder, cfg.output, state.best, state.best_epoch, lines, test))
    elif not stop.received:
        raise SystemExit("another process was asked to stop; everything is saved, and torchrun may restart this run")
    ranks.stop()
    return state.best


def checked(cfg: Config) -> Config:
    """Returns the constants with their declared types. Raises ConfigError that names the constant and the fix."""
    cfg = check(cfg)
    require(cfg, MINIMUM, MAXIMUM, CHOICES)
    nets.check_size(cfg.image_size or nets.official_size(cfg.model))
    check_name(cfg.name)
    if cfg.weights not in (None, "coco", "objects365"):
        cfg = replace(cfg, weights=weights_of_run(cfg.weights, cfg.output))
    if cfg.scale[0] > cfg.scale[1]:
        raise ConfigError(f"scale={show(cfg.scale)}: write the smallest size first: scale={show(cfg.scale[::-1])}")
    given = None not in (cfg.learning_rate, cfg.min_learning_rate)
    if given and cfg.schedule != "constant" and cfg.min_learning_rate > cfg.learning_rate:
        rates = f"min_learning_rate={show(cfg.min_learning_rate)} is above learning_rate={show(cfg.learning_rate)}"
        raise ConfigError(f"{rates}: lower it too, as in min_learning_rate={show(cfg.learning_rate / 20)}")
    if cfg.add_classes and cfg.weights is None:
        raise ConfigError("add_classes=true adds to a trained model: write weights=FILE or weights=coco")
    if cfg.add_classes and cfg.freeze_epochs:
        raise ConfigError(
            f"freeze_epochs={cfg.freeze_epochs}: add_classes=true freezes all that exists, for the whole run: leave it out"
        )
    if cfg.device == "cuda:all" and cfg.amp == "bf16":  # autocast in the threads of DataParallel supports fp16 only
        raise ConfigError("amp=bf16 does not work with device=cuda:all: use torchrun, or amp=fp16")
    return cfg


def weights_of_run(weights: str, output: str) -> str:
    """Returns the best.pt of a run that `weights` names, or `weights`. Raises ConfigError for a name that is nearly a run's."""
    if best := best_of(output, weights):
        return str(best)
    if not os.path.isfile(weights) and not is_weights(weights):
        if run := run_of(output, weights):
            raise ConfigError(f"weights={weights}: {run} has no best.pt: resume it, or write weights={run / 'last.pt'}")
        if not os.path.exists(weights) and (near := near_run(output, weights)):
            raise ConfigError(f"weights={weights}: there is no such file or run; did you mean weights={near}?")
    return weights


def with_classes_of(
    trained: nets.Trained, train: Annotations, val: Annotations, are_chosen: bool, log: Callable
) -> tuple[Annotations, Annotations]:
    """Returns the annotations of both splits with the classes and the range of 16-bit values of a trained model first."""
    *data, notes = with_known_classes(trained.classes, train, val, are_chosen)
    outside = []
    for number, split in enumerate(data):
        data[number], more = split.with_range(trained.value_range)
        outside += more
    for note in notes + outside:
        log(f"note: {note}")
    return tuple(data)


def require_output(resumed: bool | str, output: str) -> None:
    """Raises ConfigError if the run folder cannot be written: before the data are read, which may take minutes."""
    if not isinstance(resumed, str):
        require_writable(f"output={output}", output)
    elif os.path.isdir(resumed):
        require_writable(f"resume={resumed}", resumed)


def batch_sizes_of_phases(batch_size: int, freeze_batch_size: int, epochs: int, freeze_epochs: int) -> dict[str, int]:
    """Returns {name of the constant: images per step} of the phases that a run has. `epochs`: 0 is automatic."""
    sizes = {"freeze_batch_size": freeze_batch_size} if freeze_epochs else {}
    if not 0 < epochs <= freeze_epochs:
        sizes["batch_size"] = batch_size
    return sizes


def loader_workers(
    workers: int | None,
    batch_size: int,
    freeze_batch_size: int,
    freeze_epochs: int,
    image_size: tuple[int, int],
    ranks: Ranks,
) -> int:
    """Returns the number of processes that load images for this process: `workers`, or what fits the batches (0: automatic)."""
    if workers is not None:
        return workers
    images = larger_batch(batch_size, freeze_batch_size, freeze_epochs) or MOST_IMAGES * ranks.world_size
    node = len(ranks.node_ranks)
    return threads.choose_workers(ranks.device, node, -(-images * node // ranks.world_size), image_size)


def larger_batch(batch_size: int, freeze_batch_size: int, freeze_epochs: int) -> int:
    """Returns the images per step of the phase that has more of them."""
    if freeze_epochs:
        return max(batch_size, freeze_batch_size)
    return batch_size


def fixed_constants(
    cfg: Config, image_size: tuple[int, int], data: Annotations, extra_augment: Callable, parts: Parts
) -> dict:
    """Returns what a resumed run must have in common with the run before: constants, data, extra_augment and parts.

    It takes the whole `cfg`, because a constant that is added later counts, too, unless MAY_CHANGE names it.
    """
    constants = {name: value for name, value in asdict(cfg).items() if name not in MAY_CHANGE}
    of_data = {"training data": data.digest(), "contents of the images": data.image_digest()}
    replaced = ",".join(f"{name}:{digest}" for name, digest in parts.replaced().items())
    code = {"extra_augment": source_digest(extra_augment), "parts": replaced}
    return constants | {"image_size": image_size} | of_data | code | {"classes": list(data.classes)}


def common_constants(cfg: Config, val: Annotations) -> dict[str, str]:
    """Returns what the processes of one run must have in common besides `fixed_constants`, as text.

    It takes the whole `cfg`, because a constant that is added later counts, too, unless PER_NODE names it.
    """
    other = {"code": code_digest(Path(__file__).parent), "torch": torch.__version__, "validation data": val.digest()}
    return {name: show(value) for name, value in asdict(cfg).items() if name not in PER_NODE} | other


def build_schedule(schedule: Callable, plan: Plan, kind: str, defaults: Mapping[str, float]):
    """Builds the schedule of the learning rate for the whole run. `defaults`: see `fill_in_defaults`."""
    return schedule(
        plan=plan,
        kind=kind,
        learning_rate=defaults["learning_rate"],
        min_learning_rate=defaults["min_learning_rate"],
        warmup_epochs=defaults["warmup_epochs"],
        no_aug_epochs=defaults["no_aug_epochs"],
        power=defaults["rate_power"],
        max_images=defaults["max_images"],
    )


def build_train_loader(
    dataset: DetectionDataset,
    batch_size: int,
    image_size: tuple[int, int],
    multi_scale: float,
    coarsest: int,
    seed: int,
    accumulate: int,
    workers: int,
    ranks: Ranks,
) -> Loader:
    """Builds the loader of this process's training batches. Its sampler gets the epoch, and the batch size of the phase."""
    sampler = TrainSampler(
        length=len(dataset),
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        multi_scale=multi_scale,
        rank=ranks.rank,
        world=ranks.world_size,
        accumulate=accumulate,
        repeats=dataset.repeats,
        coarsest=coarsest,
    )
    return build_loader(dataset, sampler, workers, ranks.device.type == "cuda")


def build_val_loader(
    dataset: DetectionDataset, batch_size: int, image_size: tuple[int, int], workers: int, ranks: Ranks
) -> Loader:
    """Builds the loader of this process's shard of the validation images."""
    sampler = ValSampler(len(dataset), min(batch_size, 32), image_size, ranks.rank, ranks.world_size)
    return build_loader(dataset, sampler, workers, ranks.device.type == "cuda")


def log_summary(
    cfg: Config,
    settings: Config,
    train_data: Annotations,
    val_data: Annotations,
    model: nets.DetectionModel,
    updater: Updater,
    first_row: Mapping[str, Any],
    likeness: float,
    thawed_bytes: int,
    ranks: Ranks,
    log: Callable,
) -> None:
    """Logs what the run will do: constants, initial weights, model, data, warnings and memory.

    It takes all constants, as written and with the values of the run, because its table shows both.
    """
    derived = summary.derived(settings.batch_size, settings.workers, updater, ranks)
    log(summary.constants_text(asdict(settings), asdict(Config()), asdict(cfg)))
    log("\n".join(f"{name:20}{show(value)}" for name, value in derived.items()))
    if first_row:
        rates = {"written": cfg.learning_rate, "rate": settings.learning_rate}
        sgd = nets.sgd_defaults(cfg.model)
        log(summary.initial_text(first_row["AP"], likeness, **rates, optimizer=cfg.optimizer, sgd=sgd))
    log(summary.model_text(model, cfg.model, settings.image_size, updater.schedule.plan))
    log(f"validation {val_text(cfg.val, cfg.train, val_data.source)}")
    first = model.first_class
    if first:
        log(summary.added_text(train_data.classes, first))
    log(summary.data_text(train_data, val_data, first))
    notes = (
        summary.flip_note(cfg.flip, train_data.classes[first:]),
        summary.size_note(train_data, settings.image_size, model.letterbox),
    )
    for note in notes:
        if note:
            log(note)
    images = larger_batch(settings.batch_size, settings.freeze_batch_size, settings.freeze_epochs)
    warnings = [
        *summary.schedule_warnings(settings.epochs, settings.freeze_epochs, settings.no_aug_epochs, settings.weights),
        *summary.data_warnings(train_data, val_data, cfg.repeat_rare, first),
        *hardware_warnings(settings.workers, images, settings.image_size, ranks),
    ]
    for warning in warnings:
        log(f"WARNING: {warning}")
    if thawed_bytes:
        log(f"memory     {thawed_bytes / 2**30:.1f} GiB for a thawed step")


def from_command_line(argv: list[str]) -> Config:
    """Returns the constants. The command line overrides the constants of the run to resume, or else DEMO (only for the demo)."""
    words = {"train": os.path.exists}
    cfg = override(Config(), argv, words)
    if demo := is_demo(cfg.train):
        constants = DEMO
        if cfg.weights is None or cfg.add_classes:  # a frozen random backbone learns nothing
            constants = DEMO | {"freeze_epochs": 0}
        cfg = override(replace(Config(), **constants), argv, words)
    if cfg.resume and (run := resume.run_here(cfg.resume, cfg.output, cfg.name)):
        cfg = run_constants.with_constants_of(run, Config(), argv, words)
        return cfg if cfg.resume is True else replace(cfg, resume=str(run))
    if demo:
        run_constants.refuse_demo(cfg.resume, cfg.output, cfg.name, argv)
        if os.environ.get("RANK", "0") == "0":
            print("demo: with the constants DEMO in train.py, which are not for your own data")
    return cfg


if __name__ == "__main__":
    again = resume.with_resume(sys.argv[1:])
    stopped = f"stopped. To continue from what was saved:\n{command_line(__file__, again)}"
    run_script(lambda: main(from_command_line(sys.argv[1:])), stopped, memory_advice="lower batch_size= or image_size=")
