"""Text that a run logs at its start and end: the model, the data, the schedule, and warnings about what may go wrong."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from datasets.box_sizes import advice, sides_at
from datasets.flips import flip_reason
from datasets.similar import copies_between, copies_text
from datasets.sources import val_text
from datasets.store import Annotations
from engine.course import Course
from engine.evaluation import MAX_DETECTIONS, Initial
from engine.hardware import disk_warning, gpu_advice, shared_memory_warning
from engine.optimizer import Updater
from engine.rates import Rates
from engine.run_store import run_root
from engine.schedule import REFERENCE_BATCH, Plan, Schedule, usual_no_aug_epochs
from engine.state import State
from nets import DetectionModel
from report.analysis import limit_notes
from utils.config import constants_text
from utils.processes import Ranks
from utils.remote_cache import shown
from utils.text import aligned, amount, brief, first_names, in_points

FEW_IMAGES = 50  # training images below which a run gets a warning
GROWTH = 1.25  # of the input that the sizes of the boxes ask for, from which a run proposes it
MAX_CLASSES = 10  # in the table of the data
RARE = 0.1  # a class is rare in fewer images than this fraction of the mean over the classes


def run_summary(
    written: Any, cfg: Any, data: Sequence[Any], updater: Updater, course: Course, first: str, ranks: Ranks
) -> Iterator[str]:
    """Yields what the run will do: constants, initial weights, model, data and warnings.

    `written`, `cfg`: the constants of train.py, as written and with the values of the run. `data`: annotations of training and
    validation; `first`: the lines about the initial weights.
    """
    train, val = data
    model, values = updater.model, derived(cfg.batch_size, cfg.workers, updater, ranks)
    if course.first_fixed < course.epochs:
        values["batch norms"] = f"fixed statistics from epoch {course.first_fixed + 1} on: training from scratch"
    yield constants_text(cfg, written, values)
    yield first
    yield model_text(model, cfg.model, cfg.image_size, updater.schedule.plan)
    yield f"validation {val_text(written.val, cfg.train, val.source)}"
    label = model.first_class
    if label:
        yield added_text(train.classes, label)
    yield data_text(train, val, label)
    yield flip_note(written.flip, train.classes[label:])
    yield size_note(train, cfg.image_size, model.letterbox)
    images = max(cfg.batch_size, cfg.freeze_batch_size) if cfg.freeze_epochs else cfg.batch_size
    warnings = [
        *schedule_warnings(cfg.epochs, cfg.freeze_epochs, cfg.no_aug_epochs, cfg.weights, cfg.warmup_epochs),
        *data_warnings(train, val, cfg.repeat_rare, label),
        *gpu_advice(sys.argv, ranks.all_gpus),
        *shared_memory_warning(cfg.workers, images, cfg.image_size),
        *disk_warning(run_root(cfg.output), model),
    ]
    yield from (f"WARNING: {warning}" for warning in warnings)


def derived(batch_size: int, workers: int, updater: Updater, ranks: Ranks) -> dict[str, Any]:
    """Returns what is computed from the constants, to be printed with them."""
    schedule, plan = updater.schedule, updater.schedule.plan
    local = -(-batch_size // ranks.world_size)
    clip = f"gradient norm clipped at {updater.clip:g}" if updater.clip else "no gradient clipping"
    over = f" over {torch.distributed.get_backend()}" if ranks.world_size > 1 else ""  # gloo, or cpu:gloo,cuda:nccl
    return {
        "images per process": f"{local} of {batch_size}, {amount(ranks.world_size, 'process')}{over}",
        "steps per epoch": f"{plan.frozen_steps} frozen, {plan.steps} thawed" if plan.freeze_epochs else plan.steps,
        "learning rate": rate_text(schedule),
        "clipping and EMA": f"{clip}, decay {updater.ema.decay:.5f} with tau {updater.ema.tau:.0f} steps",
        "mixed precision": updater.amp,
        "device": f"{ranks.device}, {amount(torch.get_num_threads(), 'thread')}, {amount(workers, 'worker')}",
    }


def rate_text(schedule: Schedule) -> str:
    """Describes the learning rate as configured, and as scaled to the batch size of each phase."""
    rate, plan = schedule.learning_rate, schedule.plan
    sizes = [plan.images]
    if plan.freeze_epochs and plan.frozen_images != plan.images:
        sizes.insert(0, plan.frozen_images)
    scaled = [f"{rate * schedule.scale(size):g} for {size}" for size in sizes]
    return f"{rate:g} for {REFERENCE_BATCH} images = {', then '.join(scaled)}"


def initial_text(initial: Initial, rates: Rates, is_chosen: bool) -> str:
    """Returns the lines about initial weights that know classes of the data: their mAP, and the learning rate chosen from it.

    `is_chosen`: the constant learning_rate is none. "" for other weights.
    """
    if not initial.row:
        return ""
    text = f"initial    mAP50-95 {in_points(initial.row['AP'])} on the validation data before training (epoch 0)"
    if is_chosen:
        text += (
            f"\n           learning_rate={rates.learning_rate:.3g} is chosen by it; the usual one is {rates.usual:g}"
        )
    return text


def next_steps(folder: Path, output: str, state: State, evaluation: Sequence[str] = (), test: str | None = None) -> str:
    """Returns the last lines of a finished run: its results, the commands that come next, and the path of the report.

    `evaluation`: the lines of `final_report.evaluate_best`, of which the last is the report. `test`: data with a test
    split that the run did not use.
    """
    lines = ["", *evaluation[:-1]]
    if state.best_epoch == 0:
        lines.append("training did not improve the initial weights, which best.pt holds")
    lines.append(f"images      {folder / 'curves.png'}, val_predictions.jpg (labels next to detections)")
    lines.append(f"all runs    tensorboard --logdir {quote(output)}")
    best = next((folder / name for name in ("best.pt", "last.pt") if (folder / name).exists()), None)
    if best:
        weights = f"checkpoint={quote(str(best))}"
        data = f"data={quote(test)} split=test" if test else "data=OTHER_DATA"
        lines.append(f"predict     python predict.py {weights} source=IMAGES")
        lines.append(f"evaluate    python evaluate.py {weights} {data}")
        lines.append(f"export      python export.py {weights}")
    return shown("\n".join([*lines, f"{folder}  best mAP50-95 {in_points(state.best)}", *evaluation[-1:]]))


def nothing_to_do(done: str, course: Course, folder: Path, state: State) -> str:
    """Returns the lines about a run that was finished before. `done`: the reason."""
    lines = [f"nothing to do: {done}; {course.more(state)} extends the run"]
    return shown("\n".join([*lines, f"{folder}  best mAP50-95 {in_points(state.best)}"]))


def resumed_text(folder: Path | None, state: State, begun_meter: Mapping[str, Any] | None) -> str:
    """Returns where a resumed run continues; "" for a new run."""
    if not begun_meter:
        return ""
    return f"resuming {shown(str(folder))} after epoch {state.epoch} and {begun_meter['batches']} batches"


def gflops(model: nn.Module, image_size: tuple[int, int]) -> float:
    """Counts billions of floating-point operations for one image of height, width. A multiply-add counts as two."""
    device = next(model.parameters()).device
    was_training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, 3, *image_size, device=device))
    model.train(was_training)
    return counter.get_total_flops() / 1e9


def model_text(model: DetectionModel, name: str, image_size: tuple[int, int], plan: Plan) -> str:
    """Describes the size and cost of the model, and the number of parameters that are trained in each phase."""
    total = sum(p.numel() for p in model.parameters()) / 1e6
    height, width = image_size
    cost = f"{gflops(model, image_size):.2f} GFLOPs at {height} x {width}"
    lines = [f"model      {name}: {total:.3f} M parameters, {cost}"]
    rest = total - sum(p.numel() for p in model.backbone.parameters()) / 1e6
    if model.first_class:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
        lines.append(f"           {trained:.3f} M parameters are trained, all others are frozen")
        return "\n".join(lines)
    if plan.freeze_epochs:
        lines.append(f"           epochs 1-{plan.freeze_epochs}: backbone frozen, {rest:.3f} M parameters are trained")
    if plan.freeze_epochs < plan.epochs:
        first = plan.freeze_epochs + 1
        lines.append(f"           epochs {first}-{plan.epochs}: all {total:.3f} M parameters are trained")
    return "\n".join(lines)


def added_text(classes: Sequence[str], first: int) -> str:
    """Returns a line about the frozen classes of a model and the new ones, which are those from the label `first` on."""
    new = brief(", ".join(classes[first:]))
    return (
        f"frozen     {amount(first, 'class')}; training {len(classes) - first} new: {new}; best.pt has their best mAP"
    )


def data_text(train: Annotations, val: Annotations, first: int = 0) -> str:
    """Returns a table of images, images without boxes, and boxes, in all and of each class.

    Of many classes it has the rarest ones. Classes before the label `first`, which are not trained, are in it only if they have
    validation boxes.
    """
    empty = [int((data.starts[1:] == data.starts[:-1]).sum()) for data in (train, val)]
    rows = [("images", len(train), len(val)), ("no boxes", *empty)]
    counts = [data.boxes_per_class() for data in (train, val)]
    rows.append(("boxes", *(of_split.sum() for of_split in counts)))
    named = [label for label in range(len(train.classes)) if label >= first or counts[1][label]]
    if len(named) > MAX_CLASSES:
        rows.append((f"the {MAX_CLASSES} rarest of {len(named)} classes:", "", ""))
        named = sorted(named, key=lambda label: counts[0][label])[:MAX_CLASSES]
    rows += [(f"boxes: {train.classes[label]}", *(of_split[label] for of_split in counts)) for label in named]
    return "\n".join(aligned([("data", "train", "val"), *rows], ("data",)))


def schedule_warnings(
    epochs: int, freeze_epochs: int, no_aug_epochs: int, weights: str | None, warmup_epochs: float = 0.0
) -> Iterator[str]:
    """Yields warnings about numbers of epochs that leave no room for a phase of training."""
    if 0 < epochs < warmup_epochs:
        yield f"warmup_epochs={warmup_epochs:g} of epochs={epochs}: the learning rate only grows, and never falls"
    if freeze_epochs and weights is None:
        yield f"freeze_epochs={freeze_epochs} without weights: a frozen random backbone learns nothing"
    if 0 < epochs <= freeze_epochs:
        yield f"freeze_epochs={freeze_epochs} of epochs={epochs}: the backbone is never thawed, which is fast but costs mAP"
    elif no_aug_epochs and no_aug_epochs >= epochs - freeze_epochs:
        when = "after the thaw" if freeze_epochs else "in the whole run"
        yield (
            f"no_aug_epochs={no_aug_epochs} of epochs={epochs}: {when} there is no mosaic or affine, and only the lowest "
            f"learning rate; lower no_aug_epochs to about {usual_no_aug_epochs(epochs - freeze_epochs)}, or train longer"
        )


def flip_note(written: float | None, classes: Sequence[str]) -> str:
    """Returns a line about flip= if a flip turns objects of a class into those of another; `written`: the constant."""
    why = flip_reason(classes)
    if not why or written == 0:
        return ""
    if written is None:
        return f"flip       0, not .5: {why}; flip=.5 flips images all the same"
    return f"WARNING: flip={written:g}: {why}: write flip=0"


def size_note(train: Annotations, image_size: tuple[int, int], letterbox: str) -> str:
    """Returns a line that proposes a larger input if many boxes of the training data are small in it, "" otherwise.

    `letterbox`: of the model, see `utils.images.fit`."""
    if not train.sizes.all():  # images that were not scanned
        return ""
    found = advice(sides_at(train, image_size, letterbox), image_size)
    return f"image size {found.text}" if found.growth >= GROWTH else ""


def data_warnings(train: Annotations, val: Annotations, repeat_rare: float = 0.0, first: int = 0) -> Iterator[str]:
    """Yields warnings about data that are valid but train badly. `first`: the label of the first class that is trained."""
    trained = train.classes[first:]
    missing = [n for n, count in zip(trained, train.boxes_per_class()[first:], strict=True) if count == 0]
    if missing:
        yield (
            f"no training box of {len(missing)} of {amount(len(trained), 'class')} ({', '.join(missing[:5])}): "
            f"they cannot be learned; leave them out of the classes, or add images"
        )
    counts = train.images_per_class()
    mean = counts.sum() / max((counts > 0).sum(), 1)
    if rare := [label for label in counts.argsort(kind="stable") if 0 < counts[label] < RARE * mean]:
        shown = ", ".join(f"{train.classes[label]}: {counts[label]}" for label in rare[:5])
        fix = "" if repeat_rare else f", or repeat_rare={mean / len(train):.1g} draws their images more often"
        yield f"rare: {len(rare)} of {amount(len(trained), 'class')} (images with {shown}; mean {mean:.0f}): add images{fix}"
    pairs = zip(trained, train.boxes_per_class()[first:], val.boxes_per_class()[first:], strict=True)
    unmeasured = [name for name, learned, measured in pairs if learned and not measured]
    if val.boxes_per_class()[first:].sum() == 0:
        yield f"{val.source} has no boxes of the trained classes: there is no mAP, best.pt is the last; choose val= with boxes"
    elif unmeasured:
        what = f"no validation box of {amount(len(unmeasured), 'trained class')} {first_names(unmeasured)}"
        yield f"{what}: the mAP, by which best.pt is chosen, leaves them out; choose val= with boxes of them"
    if len(train) < FEW_IMAGES:
        yield f"only {amount(len(train), 'training image')}: enough for a try, too few to learn from; add images"
    yield from limit_notes(val, MAX_DETECTIONS)
    yield from leak_warning(train, val)


def leak_warning(train: Annotations, val: Annotations) -> Iterator[str]:
    """Yields a warning if images of `val` are copies of images of `train`, with the first pair and the fix."""
    if train.digests is None or train.hashes is None or val.digests is None or val.hashes is None:
        return
    original = copies_between((train.digests, train.hashes), (val.digests, val.hashes))
    copies = (original >= 0).nonzero()[0]
    if len(copies):
        pair = f"{val.path(copies[0])} of {train.path(original[copies[0]])}"
        counted, effect = copies_text("train", "val", len(copies), len(val))
        yield f"{counted}, such as {pair}: {effect}; python -m tools.check lists them, and val=.2 keeps copies in one split"
