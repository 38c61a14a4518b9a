"""Models, their losses and their weights. Knows nothing of files, data sets or processes."""

from functools import partial

from nets.blocks import DetectionModel
from nets.yolox import SIZES, YOLOX

MODELS = {
    "yolox_nano": partial(YOLOX, *SIZES["nano"]),
    "yolox_tiny": partial(YOLOX, *SIZES["tiny"]),
    "yolox_s": partial(YOLOX, *SIZES["s"]),
    "yolox_m": partial(YOLOX, *SIZES["m"]),
    "yolox_l": partial(YOLOX, *SIZES["l"]),
    "yolox_x": partial(YOLOX, *SIZES["x"]),
}


def build(name: str, num_classes: int) -> DetectionModel:
    """A freshly initialised model. Raises ValueError with the known names for any other name."""
    if name not in MODELS:
        raise ValueError(f"model={name!r} is not known; choose one of: {', '.join(MODELS)}")
    return MODELS[name](num_classes=num_classes)
