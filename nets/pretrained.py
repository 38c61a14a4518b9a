"""Official weights: addresses, reading, and matching of classes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from utils import checkpoint

HOST = "https://github.com"
YOLOX_RELEASE = "Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
YOLOV9_RELEASE = "MultimediaTechLab/YOLO/releases/download/v1.0-alpha"


class OfficialFile(NamedTuple):
    """A released weights file."""

    path: str  # below HOST
    sha256: str | None = None  # None: unknown, see `download.pin`
    image_size: tuple[int, int] = (640, 640)  # height and width of the training and of the published AP


YOLOX_SHA256 = {
    "nano": "cd28f55fbbc1829f99d9ac9b38a16d259a22889739c8728ea877610201feff7b",
    "tiny": "9de513de589ac98bb92d3bca53b5af7b9acfa9b0bacb831f7999d0f7afaee8f0",
    "s": "f55ded7181e1b0c13285c56e7790b8f0e8f8db590fe4edb37f0b7f345c913a30",
    "m": "60076992b32da82951c90cfa7bd6ab70eba9eda243e08b940a396f60ac2d19b6",
    "l": "1e6b7fa6240375370b2a8a8eab9066b3cdd43fd1d0bfa8d2027fd3a51def2917",
    "x": "5652330b6ae860043f091b8f550a60c10e1129f416edfdb65c259be6caf355cf",
}
YOLOX_FILES = {
    size: OfficialFile(
        f"{YOLOX_RELEASE}/yolox_{size}.pth", sha256, image_size=(416, 416) if size in ("nano", "tiny") else (640, 640)
    )
    for size, sha256 in YOLOX_SHA256.items()
}
YOLOV9_FILES = {size: OfficialFile(f"{YOLOV9_RELEASE}/v9-{size}.pt") for size in "tsmc"}

COCO_CLASSES = tuple(
    """person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop
    sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack,
    umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
    skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple,
    sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining
    table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink,
    refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush""".replace("\n   ", "").split(", ")
)
UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # the 91 ids of COCO's paper have gaps
COCO_CATEGORY_IDS = tuple(i for i in range(1, 91) if i not in UNUSED_IDS)

# Between the standard deviation of pixels of 0-255, about 60, and that of the legacy preprocessing, about 1.
MIN_INPUT_STD = 8.0


class PretrainedError(ValueError):
    """Weights that cannot be downloaded or used. The message names the file or address and the fix."""


def read(path: str | Path, rename: Callable[[str], str | None]) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """Reads a weights file -> a state dict with our tensor names, and the class names of its rows.

    Accepts our own checkpoints and the official layouts: `{"model": {...}}`, `{"state_dict": {...}}` of a training, or a bare
    state dict. `rename`: official tensor name -> ours; our own names stay unchanged. If a file does not name its classes, 80
    rows are those of COCO, and others are unknown (None). Raises PretrainedError for damaged and for other files, and for weights
    that need the preprocessing of YOLOX release 0.1.0.
    """
    try:
        contents = checkpoint.read(path)
    except checkpoint.CheckpointError as error:
        raise PretrainedError(f"weights={path}: {error}") from error
    parts = contents if isinstance(contents, dict) else {}
    state = parts.get("model", parts.get("state_dict", parts))
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise PretrainedError(f'weights={path} holds no weights: expected {{"model": state dict}} or a state dict')
    if any(str(name).startswith("selector.") for name in state):
        raise PretrainedError(f"weights={path} were trained with nms_free=true, which is no longer supported")
    state = {rename(str(name)): value for name, value in state.items() if isinstance(value, Tensor)}
    state.pop(None, None)  # tensors that our model does not have
    if parts.get("classes"):
        from utils.validate import validated

        try:
            return state, tuple(validated({"classes": parts["classes"]}, path, "checkpoint")["classes"])
        except checkpoint.CheckpointError as error:
            raise PretrainedError(f"weights={error}") from error
    deviation = input_std(state)
    if deviation is not None and deviation < MIN_INPUT_STD:
        raise PretrainedError(
            f"weights={path} were trained on pixels with a standard deviation of {deviation:.1f}, not on 0-255: they need the "
            f"preprocessing of YOLOX release 0.1.0 and would detect nothing. Use those of release 0.1.1rc0 (weights=coco)"
        )
    return state, COCO_CLASSES if class_rows(state) == len(COCO_CLASSES) else None


def class_rows(state: Mapping[str, Tensor]) -> int:
    """Returns the number of classes that a state dict predicts; 0 if it has no class predictors."""
    bias = state.get("head.class_predictors.0.bias")
    return 0 if bias is None or bias.ndim != 1 else len(bias)


def input_std(state: Mapping[str, Tensor]) -> float | None:
    """Estimates the standard deviation of the pixels that a YOLOX stem was trained on, from its weights and batch norm.

    In natural images the correlation of two pixels falls as exp(-distance / 20), and that of two colors is about .9. Let S be
    this correlation matrix of the stem's inputs. For pixels of variance 1, the output of filter w has the variance w'Sw. For
    the pixels of the training it has the running variance of the batch norm. The ratio of both is the variance of the pixels.
    Returns None if there is no YOLOX stem, or if its batch norm was never updated.
    """
    weight, variance = state.get("backbone.stem.conv.weight"), state.get("backbone.stem.bn.running_var")
    if weight is None or variance is None or weight.shape[1:] != (12, 3, 3) or variance.shape != weight.shape[:1]:
        return None
    if bool((variance == 1).all()):
        return None
    phase, color, row, column = torch.meshgrid(*(torch.arange(n) for n in (4, 3, 3, 3)), indexing="ij")
    y, x = 2 * row + phase % 2, 2 * column + phase // 2  # channels are 4 phases of 3 colors, see yolox.FOCUS
    places = torch.stack([y, x], -1).reshape(-1, 2).double()
    same = color.reshape(-1, 1) == color.reshape(1, -1)
    correlation = torch.exp(-torch.cdist(places, places) / 20) * torch.where(same, 1.0, 0.9)
    filters = weight.double().flatten(1)
    expected = ((filters @ correlation) * filters).sum(1)
    return float((variance.double() / expected.clamp(min=1e-30)).median().sqrt())


def shared_classes(from_names: Sequence[str], to_names: Sequence[str]) -> dict[int, int]:
    """Index in `to_names` -> index in `from_names`, for names in both. Ignores case, and treats - and _ as spaces."""

    def normalize(name: str) -> str:
        return name.casefold().replace("_", " ").replace("-", " ").strip()

    known = {normalize(name): i for i, name in reversed(list(enumerate(from_names)))}
    return {i: known[normalize(name)] for i, name in enumerate(to_names) if normalize(name) in known}


def adapt_classes(
    state: Mapping[str, Tensor], from_names: Sequence[str] | None, to_names: Sequence[str], model: nn.Module
) -> dict[str, Any]:
    """Reorders the rows of the class predictors in a state dict, from the classes `from_names` to those of a model, `to_names`.

    Classes that only `to_names` has keep the freshly initialized rows of `model`. If `from_names` is None, the rows stay
    unchanged: they fit only a model with the same number of classes.
    """
    if from_names is None:
        return dict(state)
    pairs = shared_classes(from_names, to_names)
    adapted, own = dict(state), model.state_dict()
    for name, rows in state.items():
        fits = name in own and rows.shape == (len(from_names), *own[name].shape[1:])
        if ".class_predictors." in name and fits:
            adapted[name] = own[name].detach().cpu().clone()
            for to, source in pairs.items():
                adapted[name][to] = rows[source]
    return adapted
