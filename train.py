"""Trains a detector. Edit the constants, or change them for one run: python train.py epochs=100 image_size=640,640"""

import os
import sys

# Before torch is imported: threads that wait spinning can starve each other where other programs need the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

import nets
from datasets import demo, formats, images
from datasets.annotations import Annotations, DataError
from datasets.dataset import DetectionDataset
from datasets.loader import TrainSampler, ValSampler, build_loader
from datasets.mosaic import Augment
from nets import pretrained
from utils import checkpoint, distributed, memory, report, resume, script
from utils.compiler import compile_forward
from utils.config import ConfigError, check, override, require, show, table
from utils.fit import Meter
from utils.interrupt import Watch
from utils.optim import EMA, LARGEST_NORM, Plan, Schedule, Updater, build_optimizer
from utils.run import Run, check_name, code, create, last_number, started
from utils.saver import Saver
from utils.training import Training


@dataclass(frozen=True)
class Config:
    # what everyone edits
    train: str = "data/demo/train.txt"  # annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder
    val: str = "data/demo/val.txt"  # the same; pictures that training never sees
    classes: str | None = None  # a file with one name a line; none: the data say
    model: str = "yolox_nano"  # yolox_nano, yolox_tiny, yolox_s, _m, _l, _x; yolov9_t, _s, _m, _c
    nms_free: bool | str = False  # detections need no NMS; head: only what that needs is trained, of finished weights
    weights: str | None = "coco"  # coco: official weights; https://HOST: a mirror of them; a file; none: from scratch
    image_size: tuple[int, int] = (416, 416)  # height, width; multiples of 32
    epochs: int = 50
    batch_size: int = 16  # images a step over all processes; 0: the power of two that fills 80 % of the GPUs
    freeze_epochs: int = 10  # the backbone stays frozen so long; 0: never
    freeze_batch_size: int = 32  # images a step while it is frozen: no gradients, so more fit
    learning_rate: float = 4e-3  # for 64 images a step; scaled with the images of a step
    name: str = "train"  # the run folder is output/name-date-number
    # data
    image_root: str | None = None  # where the pictures of a COCO JSON lie, if not beside it
    bad_boxes: str = "error"  # boxes without area: "error" names them, "drop" leaves them out and counts
    skip_bad_images: bool = False  # pictures that cannot be read: an error, or left out of the whole run
    # augmentation
    mosaic: float = 0.5  # probability; 1 for thousands of pictures and hundreds of epochs
    mixup: float = 0.0  # probability; helps large models in long runs only
    flip: float = 0.5  # probability; 0 where left and right or letters matter
    rotation: float = 5.0  # degrees to either side, and 0.4 of it as shear
    scale: tuple[float, float] = (0.5, 1.5)  # smallest, largest
    hsv: tuple[float, float, float] = (5.0, 30.0, 30.0)  # hue of 180, saturation and value of 255
    multi_scale: float = 0.0  # the input changes its size by up to this share, every 10 steps
    plain_epochs: int = 10  # the last ones: no mosaic, mixup or affine, L1 loss (YOLOX), lowest learning rate
    # optimisation
    optimizer: str = "adamw"  # adamw: best below 10,000 steps; sgd (learning_rate=.01 weight_decay=5e-4); adam
    min_learning_rate: float = 2e-4  # for 64 images a step
    schedule: str = "cosine"  # cosine, step or constant
    warmup_epochs: float = 1.0  # the learning rate grows from 0, quadratically
    weight_decay: float = 0.05  # on weights of convolutions only
    accumulate: int = 1  # batches that make one optimiser step
    ema: bool = True  # evaluate and keep the moving average of the weights
    amp: str = "fp16"  # fp16 or bf16 on a GPU, none; on a CPU fp16 becomes none
    # machine
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda:1, mps; cuda:all: DataParallel (torchrun is faster)
    workers: int = 4  # processes that read pictures; on a CPU they take cores from the network
    compile: bool = False  # torch.compile: minutes at the start of each phase, faster steps on a GPU
    sync_bn: bool = True  # batch norm over all processes
    timeout_minutes: float = 30.0  # how long a process waits for the others
    seed: int = 0
    # run
    output: str = "runs"
    resume: bool | str = False  # true: the newest run of this name, a new one if there is none; or a run folder
    evaluate_every: int = 1  # epochs
    save_every: int = 0  # epochs between checkpoints that are kept; 0: only best.pt and last.pt
    save_minutes: float = 10.0  # minutes between savings of last.pt within an epoch; 0: only after each epoch
    patience: int = 0  # stop after so many epochs without a better mAP; 0: never
    profile_steps: int = 0  # so many early steps are traced into the run folder


# The demo draws 200 small pictures and, where the weights cannot be had, learns from nothing, in minutes on two CPU cores:
# small pictures, many small steps, a high learning rate and little augmentation. Only for data/demo.
DEMO = {
    "image_size": (224, 224),
    "epochs": 32,
    "batch_size": 8,
    "freeze_epochs": 4,
    "freeze_batch_size": 8,
    "learning_rate": 0.032,
    "min_learning_rate": 0.001,
    "name": "demo",
    "mosaic": 0.0,
    "rotation": 0.0,
    "scale": (0.8, 1.2),
    "plain_epochs": 4,
    "workers": 0,
}

LEAST = {
    **dict.fromkeys(("epochs", "accumulate", "evaluate_every"), 1),
    **dict.fromkeys(("freeze_epochs", "plain_epochs", "warmup_epochs", "workers", "save_every", "patience", "seed"), 0),
    **dict.fromkeys(("batch_size", "freeze_batch_size", "save_minutes", "profile_steps"), 0),
    **{"timeout_minutes": 0.05},
    **dict.fromkeys(("mosaic", "mixup", "flip", "rotation", "hsv", "multi_scale"), 0),
    **dict.fromkeys(("learning_rate", "min_learning_rate", "weight_decay"), 0),
    "scale": 0.01,
}
MOST = dict.fromkeys(("mosaic", "mixup", "flip", "multi_scale"), 1)
CHOICES = {
    "model": tuple(nets.MODELS),
    "nms_free": (False, True, "head"),
    "bad_boxes": ("error", "drop"),
    "optimizer": ("adamw", "sgd", "adam"),
    "schedule": ("cosine", "step", "constant"),
    "amp": ("fp16", "bf16", "none"),
}

# A resumed run may change these; any other constant would make it another training.
MAY_CHANGE = {
    *("train", "val", "classes", "image_root", "epochs", "workers", "device", "output", "name", "resume"),
    *("evaluate_every", "save_every", "save_minutes", "timeout_minutes", "patience", "weights"),
    *("compile", "profile_steps"),
}

# Machines of one run may differ in these: where things lie there, and what it can do.
OF_A_MACHINE = {"train", "val", "classes", "image_root", "output", "weights", "workers", "device", "resume"}


def main(cfg: Config) -> float:
    """Trains as `cfg` says -> the best mAP50-95."""
    cfg = checked(cfg)
    ranks = distributed.start(cfg.device, cfg.timeout_minutes)
    say = print if ranks.is_main else lambda *_: None
    distributed.share_cores(ranks.device, cfg.workers, len(ranks.machine))
    torch.backends.cudnn.benchmark = cfg.multi_scale == 0  # it would search again for every new size
    torch.manual_seed(cfg.seed)

    train_data, val_data = ranks.once_a_machine(lambda: open_data(cfg, say))
    ranks.agree(what_must_agree(cfg, train_data, val_data))
    constants = what_is_trained(cfg, train_data)
    folder, earlier = resume.find(cfg.resume, cfg.output, cfg.name, constants, ranks)
    model, freeze_epochs = make_model(cfg, train_data.classes, earlier, ranks, say)
    model = model.to(ranks.device, memory_format=torch.channels_last)
    ranks.copy_from_main(model)
    cfg = with_batch_sizes(cfg, model, train_data, earlier, ranks)
    plan = make_plan(cfg, len(train_data), freeze_epochs)
    needed = memory_of_a_step(cfg, model, train_data, plan, ranks)
    updater = make_updater(cfg, model, plan)
    state, begun = resume.restore(earlier, model, updater)
    train_set, val_loader = make_data(cfg, model, train_data, val_data, ranks)
    introduce(cfg, model, train_data, val_data, plan, updater, ranks, needed, say)
    if why := state.done(cfg.epochs, cfg.patience):
        say(f"nothing to do: {why}\n{folder}  best mAP50-95 {state.best:.4f}")
        ranks.stop()
        return state.best
    run = open_run(cfg, folder, plan, state, begun, ranks, say)
    if cfg.compile:
        say(compile_forward(model, cfg.multi_scale > 0, ranks.world))
    fixed = {"constants": constants, "freeze_epochs": freeze_epochs}
    with Watch() as watch:
        training = make_training(cfg, model, updater, fixed, train_set, val_loader, ranks, run, watch, say)
        try:
            state = training(state, Meter(begun))
        finally:
            if run:
                run.close()  # draws the curves, also of a run that is stopped
        return finish(cfg, run, state, watch, ranks, say)


def checked(cfg: Config) -> Config:
    """The constants, each of its type and such that training makes sense; else an error that names it and the cure."""
    cfg = check(cfg)
    require(cfg, LEAST, MOST, CHOICES)
    nets.check_size(cfg.image_size)
    check_name(cfg.name)
    if cfg.device == "cuda:all" and cfg.amp == "bf16":  # the threads of DataParallel know of fp16 only
        raise ConfigError("amp=bf16 does not work with device=cuda:all: use torchrun, or amp=fp16")
    return cfg


def pin_memory(ranks: distributed.Ranks) -> bool:
    """Page-locked batches pay where they are copied to a GPU."""
    return ranks.device.type == "cuda"


def open_data(cfg: Config, say: Callable) -> tuple[Annotations, Annotations]:
    """Reads and checks both parts. Draws the demo data set where it is asked for and missing."""
    if is_demo(cfg):
        demo.draw(Path(cfg.train).parent)
    elif cfg.val == Config.val:
        raise ConfigError(f"train={cfg.train}, but val= still names the demo: give pictures of your own as val=")
    classes = formats.read_classes(cfg.classes) if cfg.classes else None
    parts = []
    for part, source in (("train", cfg.train), ("val", cfg.val)):
        data = formats.read(source, part, classes, cfg.image_root, cfg.bad_boxes)
        if len(data) == 0:
            raise DataError(f"{source}: no pictures; {part}= names an annotation file or a folder with pictures")
        if part == "train" and len(data.labels) == 0:
            raise DataError(f"{source}: {len(data)} pictures, but no boxes; a line is: path x1,y1,x2,y2,class ...")
        data, notes = images.prepare(data, cfg.skip_bad_images, cfg.bad_boxes)
        for note in notes:
            say(f"note: {note}")
        classes = data.classes  # val has the classes of train, in the same order
        parts.append(data)
    return parts[0], parts[1]


def what_is_trained(cfg: Config, data: Annotations) -> dict:
    """What a resumed run must have in common with the one before."""
    constants = {name: value for name, value in asdict(cfg).items() if name not in MAY_CHANGE}
    return constants | {"classes": list(data.classes), "training data": data.digest()}


def what_must_agree(cfg: Config, train: Annotations, val: Annotations) -> dict:
    """What the processes of a run must have in common; -> name: text."""
    constants = {name: show(value) for name, value in asdict(cfg).items() if name not in OF_A_MACHINE}
    data = {"classes": show(train.classes), "training data": train.digest(), "validation data": val.digest()}
    return constants | data | {"code": code(Path(__file__).parent), "torch": torch.__version__}


def is_demo(cfg: Config) -> bool:
    """Whether the data are the drawn ones that `train.py` starts with."""
    return Path(cfg.train) == Path(Config.train)


def frozen_parts(cfg: Config, frozen: bool) -> tuple[str, ...]:
    """The parts of the model that learn nothing: while it is frozen the backbone, or always all but the selector."""
    return ("backbone", "neck", "head") if cfg.nms_free == "head" else ("backbone",) * frozen


def make_model(
    cfg: Config, classes: tuple[str, ...], earlier: dict | None, ranks, say: Callable
) -> tuple[nets.DetectionModel, int]:  # fmt: skip
    """-> the model that a run starts with, with room for its weights in all processes and the weights in the first, and
    the number of frozen epochs. For a run that goes on: as before, without weights."""
    if earlier:
        return nets.build(cfg.model, len(classes), earlier["model"]), earlier["freeze_epochs"]
    made = []

    def load():
        state, names, freeze_epochs = first_weights(cfg, say)
        alone = cfg.nms_free == "head"
        if alone and not state:
            raise ConfigError("nms_free=head trains on top of finished weights: weights=runs/RUN/best.pt")
        if not cfg.nms_free:
            state = {name: value for name, value in state.items() if not name.startswith("selector.")}
        made.append(nets.build(cfg.model, len(classes), state))
        if state:
            state = pretrained.adapt_classes(state, names, classes, made[0])
            say(checkpoint.load_matching(made[0], state).require(backbone=0.8, neck=0.8 * alone).text())
        if cfg.nms_free and not made[0].selector:
            made[0].add_selector()
        return 0 if alone else freeze_epochs, {name: value.to("meta") for name, value in made[0].state_dict().items()}

    freeze_epochs, like = ranks.once(load)
    return made[0] if made else nets.build(cfg.model, len(classes), like), freeze_epochs


def first_weights(cfg: Config, say: Callable) -> tuple[dict, tuple[str, ...] | None, int]:
    """What `weights` names -> its tensors, the classes of its rows, and the number of frozen epochs: none for the demo where
    the weights cannot be had."""
    if cfg.weights is None:
        if cfg.freeze_epochs:
            say(f"WARNING: freeze_epochs={cfg.freeze_epochs} without weights: a frozen random backbone learns nothing")
        return {}, None, cfg.freeze_epochs
    try:
        mirror = cfg.weights if "://" in cfg.weights else None
        official = mirror or cfg.weights == "coco"
        path = pretrained.fetch(cfg.model, mirror) if official else Path(cfg.weights)
    except pretrained.PretrainedError as error:
        if not is_demo(cfg):
            raise
        say(f"\n*** {error}\n*** The demo goes on FROM SCRATCH and without freezing; own data deserve the weights.\n")
        return {}, None, 0
    say(f"weights    {path}")
    return *pretrained.read(path, cfg.model), cfg.freeze_epochs


def make_plan(cfg: Config, length: int, freeze_epochs: int) -> Plan:
    """Steps and images a step of both phases. `length`: training pictures."""
    images_a_step = [size * cfg.accumulate for size in (cfg.freeze_batch_size, cfg.batch_size)]
    steps = [-(-length // size) for size in images_a_step]
    return Plan(cfg.epochs, min(freeze_epochs, cfg.epochs), *steps, *images_a_step)


def make_updater(cfg: Config, model: torch.nn.Module, plan: Plan) -> Updater:
    """Optimiser, schedule and moving average for the whole run."""
    schedule = Schedule(
        plan, cfg.schedule, cfg.learning_rate, cfg.min_learning_rate, cfg.warmup_epochs, cfg.plain_epochs
    )
    optimizer = build_optimizer(cfg.optimizer, model, cfg.weight_decay)
    on_gpu = next(model.parameters()).device.type == "cuda"
    amp = "none" if cfg.amp == "fp16" and not on_gpu else cfg.amp
    ema = EMA(model, plan.before(cfg.epochs), cfg.ema)
    return Updater(model, optimizer, schedule, ema, amp, cfg.accumulate, clip=LARGEST_NORM)


def make_data(cfg: Config, model: torch.nn.Module, train: Annotations, val: Annotations, ranks: distributed.Ranks):
    """-> the training data set, and the loader of the validation pictures."""
    moved = cfg.rotation > 0 or cfg.scale != (1.0, 1.0)  # otherwise single pictures stay where they are
    affine = {"rotation": cfg.rotation, "scale": cfg.scale, "translate": 0.1 * moved, "shear": 0.4 * cfg.rotation}
    augment = Augment(cfg.mosaic, cfg.mixup, cfg.flip, hsv=cfg.hsv, **affine)
    train_set = DetectionDataset(train, model.letterbox, augment, max(cfg.epochs - cfg.plain_epochs, 0), cfg.seed)
    sampler = ValSampler(len(val), min(cfg.batch_size, 32), cfg.image_size, ranks.rank, ranks.world)
    return train_set, build_loader(DetectionDataset(val, model.letterbox), sampler, cfg.workers, pin_memory(ranks))


def make_training(
    cfg: Config, model, updater: Updater, fixed: dict, train_set: DetectionDataset, val_loader, ranks, run, watch, say
) -> Training:  # fmt: skip
    """The epochs, ready to begin. `fixed`: what a run that goes on must find unchanged."""
    fixed = fixed | {"batch_sizes": (cfg.freeze_batch_size, cfg.batch_size)}
    classes = list(train_set.classes)
    save = Saver(run, ranks, updater, asdict(cfg), classes, fixed, cfg.save_every, equalise=not cfg.sync_bn)

    @lru_cache(maxsize=1)  # what changes at the thaw
    def phase(frozen: bool):
        model.freeze(*frozen_parts(cfg, frozen))
        batch_size = cfg.freeze_batch_size if frozen else cfg.batch_size
        place = (ranks.rank, ranks.world, cfg.accumulate)
        sampler = TrainSampler(len(train_set), batch_size, cfg.image_size, cfg.seed, cfg.multi_scale, *place)
        return ranks.wrap(model, cfg.sync_bn), build_loader(train_set, sampler, cfg.workers, pin_memory(ranks))

    return Training(
        updater=updater,
        phase=phase,
        criterion=nets.criterion,
        val_loader=val_loader,
        ranks=ranks,
        run=run,
        save=save,
        watch=watch,
        say=say,
        epochs=cfg.epochs,
        plain_epochs=cfg.plain_epochs,
        evaluate_every=cfg.evaluate_every,
        patience=cfg.patience,
        save_minutes=cfg.save_minutes,
        profile_steps=cfg.profile_steps,
    )


def open_run(cfg: Config, folder: Path | None, plan: Plan, state: resume.State, begun, ranks, say) -> Run | None:
    """The run folder, for the processes that write: rank 0, and the first process of every machine with a disk of its own."""
    if folder is None:
        after = max(ranks.gather(last_number(cfg.output, cfg.name)))
        folder = Path(cfg.output) / ranks.once(lambda: create(cfg.output, cfg.name, after).name)
    elif state.epoch or begun:
        say(f"going on in {folder} after epoch {state.epoch}" + (f", {begun['batches']} batches" if begun else ""))
    folder.mkdir(parents=True, exist_ok=True)
    thaw, plain = plan.freeze_epochs, max(cfg.epochs - cfg.plain_epochs, 0)
    marks = {"thaw and plain": thaw + 1} if thaw == plain else {"thaw": thaw + 1, "plain": plain + 1}
    marks = {name: epoch for name, epoch in marks.items() if 1 < epoch <= cfg.epochs}
    start = (folder, asdict(cfg), ranks.device, marks)
    run = Run(*start, state.rows, resume.run_id()) if ranks.is_main else None
    first = ranks.gather(run and run.id)[0]
    if ranks.is_first_here and not ranks.is_main and started(folder, "id") != first:
        run = Run(*start, None, resume.run_id())
    say(f"run folder {folder}\n")
    return run


def introduce(
    cfg: Config, model, train, val, plan: Plan, updater: Updater, ranks, needed: int, say: Callable
) -> None:  # fmt: skip
    """Says what the run will do. `needed`: bytes for a step on a GPU."""
    step = {
        "images a process": f"{-(-cfg.batch_size // ranks.world)} of {cfg.batch_size}, {ranks.world} process(es)",
        "steps an epoch": f"{plan.frozen_steps} frozen, {plan.steps} thawed" if plan.freeze_epochs else plan.steps,
        "learning rate": rates(cfg.learning_rate, plan),
        "lowest": rates(cfg.min_learning_rate, plan),
        "ema decay": f"{updater.ema.decay:.5f}, tau {updater.ema.tau:.0f} steps",
        "mixed precision": updater.amp,
        "device": f"{ranks.device}, {torch.get_num_threads()} thread(s), {cfg.workers} worker(s)",
    }
    say(table(cfg, Config(), step))
    phases = (plan.freeze_epochs, frozen_parts(cfg, True)), (cfg.epochs, frozen_parts(cfg, False))
    say(report.model_text(model, cfg.model, cfg.image_size, phases))
    say(report.data_text(train, val))
    warnings = report.phase_warnings(cfg.epochs, plan.freeze_epochs, cfg.plain_epochs) + report.data_warnings(
        train, val
    )
    for warning in warnings:
        say(f"WARNING: {warning}")
    if needed:
        say(f"memory     {needed / 2**30:.1f} GiB for a thawed step")
    largest = max(cfg.batch_size, cfg.freeze_batch_size)
    for advice in (
        distributed.gpu_advice(sys.argv, ranks.all_gpus),
        report.shared_memory_warning(cfg.workers, largest, cfg.image_size),
    ):
        if advice:
            say(f"WARNING: {advice}")


def rates(rate: float, plan: Plan) -> str:
    """A learning rate as it is quoted, and what it is for the steps of each phase."""
    sizes = ([plan.frozen_images] if plan.freeze_epochs else []) + [plan.images]
    return f"{rate:g} for 64 images = " + ", then ".join(
        f"{rate * size / 64:g} for {size}" for size in dict.fromkeys(sizes)
    )


def with_batch_sizes(cfg: Config, model, data: Annotations, earlier: dict | None, ranks) -> Config:
    """A copy of `cfg` with a number where batch_size or freeze_batch_size is 0: that of before for a run that goes on,
    otherwise what fits into the memory of the smallest GPU, times the number of GPUs."""
    names = [name for name in ("freeze_batch_size", "batch_size") if getattr(cfg, name) == 0]
    if not names:
        return cfg
    if earlier:
        before = dict(zip(("freeze_batch_size", "batch_size"), earlier["batch_sizes"], strict=True))
        return replace(cfg, **{name: before[name] for name in names})
    if ranks.device.type != "cuda":
        raise ConfigError(f"{names[-1]}=0 asks a GPU how much it holds; on {ranks.device} choose one, such as 16")
    gpus = torch.cuda.device_count() if ranks.all_gpus else ranks.world
    chosen = {}
    for name in names:
        step = partial(memory_of_images, cfg, model, data, frozen=name == "freeze_batch_size")
        fits = min(ranks.gather(memory.largest_batch(step, -(-len(data) // gpus), ranks.device)))
        if fits == 0:
            raise ConfigError(f"{name}=0: not even one image fits; lower image_size, or choose a smaller model")
        chosen[name] = fits * gpus
    return replace(cfg, **chosen)


def memory_of_images(cfg: Config, model, data: Annotations, images: int, frozen: bool = False) -> int:
    """Bytes that a step with so many images on one GPU takes at its largest."""
    size = tuple(round(side * (1 + cfg.multi_scale) / 32) * 32 for side in cfg.image_size)
    boxes = int(np.diff(data.starts).max()) * (4 if cfg.mosaic else 1) * (2 if cfg.mixup else 1)
    criterion = nets.criterion(model)
    return memory.training_memory(model, criterion, size, images, max(boxes, 1), cfg.amp, frozen_parts(cfg, frozen))


def memory_of_a_step(cfg: Config, model, data: Annotations, plan: Plan, ranks) -> int:
    """Bytes that a step takes on each GPU after the thaw; says so now where they are not there."""
    gpus = torch.cuda.device_count() if ranks.all_gpus else ranks.world
    try:
        return memory_of_images(cfg, model, data, -(-cfg.batch_size // gpus))
    except torch.cuda.OutOfMemoryError as error:
        cure = memory.less_memory(plan, cfg.accumulate)
        raise SystemExit(f"CUDA out of memory after the thaw: {cure}") from error


def finish(cfg: Config, run: Run | None, state: resume.State, watch: Watch, ranks, say: Callable) -> float:
    """Says what to do next, and leaves the group of processes."""
    if not (watch.asked or state.done(cfg.epochs, cfg.patience)):
        raise SystemExit("another process was asked to stop; all is saved, and torchrun may start this one again")
    if ranks.is_main and state.done(cfg.epochs, cfg.patience):
        say(f"\nlook at it:  tensorboard --logdir {cfg.output}      (or open {run.folder / 'curves.png'})")
        if state.best_epoch:
            say(f"try it:      python predict.py checkpoint={run.folder / 'best.pt'} source=PICTURES")
        say(f"{run.folder}  best mAP50-95 {state.best:.4f}")
    ranks.stop()
    return state.best


def from_command_line(argv: list[str]) -> Config:
    """The constants with what the command line changes; for the demo also what DEMO changes."""
    cfg = override(Config(), argv)
    if is_demo(cfg):  # what the command line says goes before what the demo changes
        cfg = override(replace(Config(), **DEMO), argv)
        if os.environ.get("RANK", "0") == "0":
            text = ", ".join(f"{name}={show(value)}" for name, value in DEMO.items())
            print(f"demo: {text} (DEMO in train.py; not for your own data)")
    return cfg


if __name__ == "__main__":
    script.run(
        lambda: main(from_command_line(sys.argv[1:])),
        mistakes=(pretrained.PretrainedError,),
        stopped="stopped; the same command with resume=true goes on from what was saved",
        lower="lower batch_size= or image_size=",
    )
