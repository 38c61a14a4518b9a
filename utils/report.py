"""What a run is about to do, in words: the model, the data, and what looks wrong with them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def gflops(model: nn.Module, image_size: tuple[int, int]) -> float:
    """Billions of floating-point operations for one picture of height, width (a multiply-add counts as two)."""
    device = next(model.parameters()).device
    was_training = model.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, 3, *image_size, device=device))
    model.train(was_training)
    return counter.get_total_flops() / 1e9


def model_text(
    model: nn.Module, name: str, image_size: tuple[int, int], phases: Sequence[tuple[int, Sequence[str]]]
) -> str:
    """Size and cost of the model, and how much of it is trained in each phase: its last epoch and the parts that are frozen."""
    total = sum(p.numel() for p in model.parameters()) / 1e6
    height, width = image_size
    lines = [
        f"model      {name}: {total:.3f} M parameters, {gflops(model, image_size):.2f} GFLOPs at {height} x {width}"
    ]
    first = 1
    for last, frozen in phases:
        rest = total - sum(p.numel() for part in frozen for p in getattr(model, part).parameters()) / 1e6
        what = f"{', '.join(frozen)} frozen, {rest:.3f} M" if frozen else f"all {total:.3f} M"
        if first <= last:
            lines.append(f"           epochs {first}-{last}: {what} parameters are trained")
        first = last + 1
    return "\n".join(lines)


def data_text(train, val) -> str:
    """Pictures, and boxes a class, of both parts (anything with `classes` and `boxes_per_class()`)."""
    counts = [
        (name, int(a), int(b))
        for name, a, b in zip(train.classes, train.boxes_per_class(), val.boxes_per_class(), strict=True)
    ]
    wide = max(9, *(len(name) for name, _, _ in counts))
    rows = [f"{'data':{wide}}  {'train':>8}  {'val':>8}"]
    rows.append(f"{'pictures':{wide}}  {len(train):8}  {len(val):8}")
    rows.append(f"{'empty':{wide}}  {empty_pictures(train):8}  {empty_pictures(val):8}")
    rows += [f"{name:{wide}}  {a:8}  {b:8}" for name, a, b in counts]
    return "\n".join(rows)


def data_warnings(train, val) -> list[str]:
    """What trains badly although nothing is wrong with the files; each with its cure."""
    found = []
    nowhere = [n for n, count in zip(train.classes, train.boxes_per_class(), strict=True) if count == 0]
    if nowhere:
        found.append(
            f"{len(nowhere)} of {len(train.classes)} classes have no box in the training data ({', '.join(nowhere[:5])}): "
            f"they cannot be learned; leave them out of the classes, or add pictures"
        )
    if val.boxes_per_class().sum() == 0:
        found.append(f"{val.source} has no boxes: there is no mAP, best.pt is the last; choose val= with boxes")
    if len(train) < 50:
        found.append(
            f"only {len(train)} training pictures: enough to try things out, too few to learn from; add pictures"
        )
    if shared := same_pictures(train, val):
        found.append(
            f"{shared} pictures are in train and in val: the mAP says too much; "
            f"python -m datasets.convert SRC DST.txt split=.9,.1 divides them"
        )
    return found


def shared_memory_warning(
    workers: int, batch_size: int, image_size: tuple[int, int], folder: str = "/dev/shm"
) -> str | None:
    """A line with its cure where the batches of the workers (three each, uint8) do not fit into the shared memory."""
    needed = workers * 3 * batch_size * 3 * image_size[0] * image_size[1]
    if not workers or not Path(folder).is_dir() or shutil.disk_usage(folder).free >= needed:
        return None
    free = shutil.disk_usage(folder).free
    return (
        f"{folder} has {free / 2**20:.0f} MiB free, {workers} workers want {needed / 2**20:.0f}: they would die with a bus "
        f"error. Use fewer workers=, or start the container with --shm-size={max(1, round(2 * needed / 2**30))}g"
    )


def empty_pictures(data) -> int:
    """Pictures without any box."""
    return int((data.starts[1:] == data.starts[:-1]).sum())


def phase_warnings(epochs: int, freeze_epochs: int, plain_epochs: int) -> list[str]:
    """What the numbers of epochs leave no room for, with its cure."""
    found = []
    if 0 < epochs <= freeze_epochs:
        found.append(
            f"freeze_epochs={freeze_epochs} of epochs={epochs}: the backbone is never thawed; lower freeze_epochs"
        )
    if plain_epochs and plain_epochs >= epochs - freeze_epochs:
        found.append(
            f"plain_epochs={plain_epochs} of epochs={epochs}: after the thaw there is no mosaic or affine, and only the lowest "
            f"learning rate; lower plain_epochs to about {max(1, epochs // 5)}, or train longer"
        )
    return found


def same_pictures(train, val) -> int:
    """How many pictures (by path) are in both."""
    return len({train.path(i) for i in range(len(train))} & {val.path(i) for i in range(len(val))})
