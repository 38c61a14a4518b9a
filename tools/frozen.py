"""Checks that adding classes has changed no old class: compares weights, boxes and scores of two models by bits.

    python -m tools.frozen BEFORE.pt AFTER.pt IMAGES

BEFORE.pt is the model that classes were added to, AFTER.pt the model with more classes; the name of a run is its best.pt.
IMAGES (or source=IMAGES) is an image, a folder or a pattern. Exits with status 1 if a weight of the old model, or a box,
score or label of an old class, differs in one bit.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

import nets
from deploy.detector import Detector, Input
from deploy.inputs import listed
from deploy.load import file_of
from utils import checkpoint
from utils.config import ConfigError, Constants, override
from utils.images import ImageError, batched
from utils.progress import progress_bar
from utils.script import run_script
from utils.text import amount, brief

CONFIDENCE = 0.01  # of the detections after NMS
BATCH = 8  # images per forward pass


@dataclass(frozen=True)
class Config(Constants):
    source: str | None = None  # an image, a folder or a pattern
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps


@dataclass
class Comparison:
    """What was compared, and what differs."""

    points: int = 0  # anchor points of the old heads
    detections: int = 0  # of old classes after NMS
    images: int = 0
    box: float = 0.0  # the largest difference of a coordinate, in pixels of the network's input
    score: float = 0.0
    different: list[str] = field(default_factory=list)  # images with a difference
    unread: list[str] = field(default_factory=list)  # messages about images that cannot be read

    def text(self) -> str:
        """Returns the result in words."""
        found = f"{amount(self.detections, 'detection')} of old classes"
        what = f"{amount(self.images, 'image')}, {amount(self.points, 'anchor point')}, {found}"
        if not self.different:
            return f"{what}: all boxes, scores and labels are bit-identical, before NMS and after it"
        return (
            f"{what}: NOT equal in {amount(len(self.different), 'image')}, the first is {self.different[0]}: boxes differ by "
            f"up to {self.box:.3g} pixels, scores by up to {self.score:.3g}"
        )


def main(words: Sequence[str]) -> None:
    """Compares the models of the arguments `words`; exits with status 1 if old classes have changed."""
    if not words:
        raise SystemExit(__doc__)
    named = [word for word in words if "=" not in word]
    needs_all = any(word.startswith("-") or word == "help" for word in words)  # as the message for --source FOLDER does
    cfg = override(Config(), words if needs_all else [word for word in words if "=" in word])
    if len(named) == 3 and cfg.source is None:
        cfg = replace(cfg, source=named.pop())
    fix = "python -m tools.frozen BEFORE.pt AFTER.pt source=IMAGES"
    if len(named) != 2:
        raise ConfigError(f"two models are needed, not {len(named)}: {fix}")
    if cfg.source is None:
        raise ConfigError(f"source= is missing, an image, a folder or a pattern: {fix}")
    paths = [str(file_of(word, "")) for word in named]
    if exported := next((path for path in paths if path.endswith(".onnx")), None):
        raise ConfigError(
            f"{exported} is an exported file, whose outputs are rounded otherwise: name the .pt file it came from"
        )
    after = Detector(paths[1], confidence=CONFIDENCE, device=cfg.device, batch_size=BATCH)
    name = None if checkpoint.is_own(checkpoint.read(paths[0])) else after.loaded.name  # None: the file has it
    before = Detector(paths[0], name, None, after.image_size, cfg.device, CONFIDENCE, batch_size=BATCH)
    require_extension(before, after)
    print(f"{amount(len(before.classes), 'class')} of {before.path} in {after.path}")
    comparison = compare(before, after, listed(cfg.source))
    if comparison.unread:
        print(f"left out: {amount(len(comparison.unread), 'image')}, such as {comparison.unread[0]}")
    if not comparison.images:
        raise ImageError(comparison.unread[0])
    print(comparison.text())
    changed = changed_tensors(paths, after.loaded.name)
    if changed:
        print(f"weights: NOT equal: {brief(', '.join(changed))}")
    else:
        print("weights and batch-norm statistics: bit-identical")
    if comparison.different or changed:
        raise SystemExit(1)


def changed_tensors(paths: Sequence[str], name: str) -> list[str]:
    """Returns the names of the tensors of the first file that the second one does not have with the same bits."""
    before, after = (nets.read_weights(path, name).state for path in paths)
    return [key for key, value in before.items() if key not in after or not torch.equal(value, after[key])]


def require_extension(before: Detector, after: Detector) -> None:
    """Raises ConfigError unless `after` has the heads and classes of `before` first, and then more of them."""
    same_classes = after.classes[: len(before.classes)] == before.classes
    added = before.model.added_counts
    same_heads = after.model.added_counts[: len(added)] == added and before.loaded.name == after.loaded.name
    has_more = len(after.classes) > len(before.classes)
    if not (same_classes and same_heads and has_more):
        raise ConfigError(
            f"{after.path} ({after.loaded.name}, {amount(len(after.classes), 'class')}) does not extend {before.path} "
            f"({before.loaded.name}, {amount(len(before.classes), 'class')}): name the model that its classes were added to"
        )


@torch.inference_mode()
def compare(before: Detector, after: Detector, images: Sequence[str]) -> Comparison:
    """Compares the outputs for the old classes on images, at the input size of `after`."""
    result = Comparison()
    for detector in (before, after):  # detections of official weights are not clipped to the image by default
        detector.limits["clip"] = True
    for paths in progress_bar(list(batched(images, BATCH)), "images", True):
        batch = list(readable(before, paths, result.unread))
        if not batch:
            continue
        inputs, transforms = before.prepare([one.pixels for one in batch])
        ours, theirs = before.network(inputs), after.network(inputs)
        old, new = (d.model.decode_heads(p, after.image_size) for d, p in ((before, ours), (after, theirs)))
        found = zip(before.select(ours, transforms), after.select(theirs, transforms), strict=True)
        for index, (one, other) in enumerate(found):
            heads = [[[x[index] for x in head] for head in heads] for heads in (old, new[: len(old)])]
            other = other[other.labels < len(before.classes)]
            add(result, str(batch[index].path), *heads, (one.boxes, one.scores), (other.boxes, other.scores))
    return result


def readable(detector: Detector, paths: Sequence[str], unread: list[str]) -> Iterator[Input]:
    """Yields the images that can be read, and adds messages about the others to `unread`."""
    for path in paths:
        try:
            yield detector.input(path)
        except ImageError as error:
            unread.append(str(error))


def add(
    result: Comparison,
    path: str,
    old: list[list[Tensor]],
    new: list[list[Tensor]],
    found: tuple[np.ndarray, np.ndarray],
    found_after: tuple[np.ndarray, np.ndarray],
) -> None:
    """Adds an image: boxes, scores and labels of the heads of both models, and boxes and scores of both after NMS."""
    equal = [x.tobytes() == y.tobytes() for x, y in zip(found, found_after, strict=True)]
    for one, other in zip(old, new, strict=True):
        equal += [x.cpu().numpy().tobytes() == y.cpu().numpy().tobytes() for x, y in zip(one, other, strict=True)]
        result.points += len(one[0])
        result.box = max(result.box, float((one[0] - other[0]).abs().max()))
        result.score = max(result.score, float((one[1] - other[1]).abs().max()))
    result.images += 1
    result.detections += len(found[0])
    if not all(equal):
        result.different.append(path)


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
