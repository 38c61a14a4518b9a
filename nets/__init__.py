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


def check_size(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the input, as given. ValueError with the nearest that would do where no multiples of 32."""
    if any(side < 32 or side % 32 for side in size):
        near = ",".join(str(max(round(side / 32), 1) * 32) for side in size)
        raise ValueError(f"image_size={size[0]},{size[1]}: height and width must be multiples of 32, such as {near}")
    return size
