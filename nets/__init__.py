"""Models, their losses and their weights. Knows nothing of files, data sets or processes."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from nets import yolov9, yolox
from nets.losses import SelectionCriterion, YOLOv9Criterion, YOLOXCriterion, at_least_one
from nets.model import DetectionModel
from nets.yolov9 import YOLOv9
from nets.yolox import YOLOX

MODELS = {
    "yolox_nano": partial(YOLOX, *yolox.SIZES["nano"]),
    "yolox_tiny": partial(YOLOX, *yolox.SIZES["tiny"]),
    "yolox_s": partial(YOLOX, *yolox.SIZES["s"]),
    "yolox_m": partial(YOLOX, *yolox.SIZES["m"]),
    "yolox_l": partial(YOLOX, *yolox.SIZES["l"]),
    "yolox_x": partial(YOLOX, *yolox.SIZES["x"]),
    "yolov9_t": partial(YOLOv9, yolov9.SIZES["t"]),
    "yolov9_s": partial(YOLOv9, yolov9.SIZES["s"]),
    "yolov9_m": partial(YOLOv9, yolov9.SIZES["m"]),
    "yolov9_c": partial(YOLOv9, yolov9.SIZES["c"]),
}


def build(
    name: str, num_classes: int, like: Mapping[str, Tensor] | None = None, nms_free: bool | None = None
) -> DetectionModel:
    """A freshly initialised model. Raises ValueError with the known names for any other name.

    `like`: a state dict with our names, for which there shall be room: it decides the width of the class branches of
    YOLOv9, which depends on the number of classes it was made for, and, where `nms_free` is None, whether there is a selector.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r} is not known; choose one of: {', '.join(MODELS)}")
    like, options = like or {}, {}
    if name.startswith("yolov9") and (branch := like.get("head.class_convs.0.0.conv.weight")) is not None:
        options["class_width"] = len(branch)
    model = MODELS[name](num_classes=num_classes, **options)
    if nms_free or nms_free is None and any(key.startswith("selector.") for key in like):
        model.add_selector()
    return model


def criterion(
    model: DetectionModel, share: Callable[[Tensor], Tensor] = at_least_one, plain: bool = False
) -> YOLOXCriterion | YOLOv9Criterion | SelectionCriterion:
    """What the family of `model` minimises. `share`: see YOLOXCriterion; `plain`: in the last epochs, for YOLOX also L1."""
    by_size = model.selector is not None  # whose claims go by size
    if isinstance(model, YOLOv9):
        family = YOLOv9Criterion(model.strides, share, by_size)
    else:
        family = YOLOXCriterion(model.strides, share, plain, by_size)
    return SelectionCriterion(family, model, share) if by_size else family


def check_size(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the input, as given. ValueError with the nearest that would do where no multiples of 32."""
    if any(side < 32 or side % 32 for side in size):
        near = ",".join(str(max(round(side / 32), 1) * 32) for side in size)
        raise ValueError(f"image_size={size[0]},{size[1]}: height and width must be multiples of 32, such as {near}")
    return size
