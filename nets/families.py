"""The table of model families, and the models, losses and official files of their sizes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from nets import official_names, picodet, ppyoloe, pretrained, yolov9, yolox
from nets.extended import Branch, ExtendedModel, NewestCriterion, added_states
from nets.losses import PicoDetCriterion, PPYOLOECriterion, YOLOv9Criterion, YOLOXCriterion, local_normalizer
from nets.model import DetectionModel
from nets.pretrained import OfficialFile
from nets.weights import class_rows
from utils.config import is_weights
from utils.file_checks import CheckpointError
from utils.text import brief


class SGDDefaults(NamedTuple):
    """The defaults of SGD that depend on the model family."""

    factor: float = 1.0  # of the learning rate of YOLOX, and divisor of its weight decay
    clip_from_scratch: bool = False  # clips gradients without pretrained weights, too
    max_images: float = math.inf  # images per step above which the learning rate grows no further


class Family(NamedTuple):
    """Everything that belongs to one model family. A new family is one row in `MODELS`."""

    model: type[DetectionModel]  # built as model(size, num_classes, **model.options(state))
    sizes: Mapping[str, Any]  # size name -> what the model's constructor takes as its size
    criterion: Callable  # built as criterion(strides, normalizer, no_aug, static); see YOLOXCriterion
    weights: Mapping[str, OfficialFile]  # size name -> the official COCO weights; may be empty
    rename: Callable[[str], str | None]  # official tensor name -> ours; None: our model does not have this tensor
    sgd: SGDDefaults = SGDDefaults()  # the defaults of YOLOX
    objects365: Mapping[str, OfficialFile] = {}  # size name -> the official weights of Objects365
    by_side: Mapping[str, tuple[OfficialFile, ...]] = {}  # size name -> COCO weights for several sizes of the input


MAX_WIDTH = 4096  # channels of a layer that `build` takes from a file

V9_SGD = SGDDefaults(factor=16.0, clip_from_scratch=True, max_images=64)  # see YOLOv9Criterion
PICODET_SGD = SGDDefaults(factor=8.0, clip_from_scratch=True)  # officially .24 for 192 images per step

MODELS = {
    "yolox": Family(yolox.YOLOX, yolox.SIZES, YOLOXCriterion, pretrained.YOLOX_FILES, official_names.of_yolox),
    "yolov9": Family(
        yolov9.YOLOv9, yolov9.SIZES, YOLOv9Criterion, pretrained.YOLOV9_FILES, official_names.of_yolov9, V9_SGD
    ),
    "ppyoloe": Family(
        ppyoloe.PPYOLOE,
        ppyoloe.SIZES,
        PPYOLOECriterion,
        pretrained.PPYOLOE_FILES,
        official_names.of_ppyoloe,
        objects365=pretrained.PPYOLOE_OBJECTS365,
    ),
    "picodet": Family(
        picodet.PicoDet,
        picodet.SIZES,
        PicoDetCriterion,
        pretrained.PICODET_FILES,
        official_names.of_picodet,
        PICODET_SGD,
        by_side=pretrained.PICODET_BY_SIDE,
    ),
}


def model_names() -> list[str]:
    """Lists the accepted values of the constant `model`: FAMILY_SIZE."""
    return [f"{family}_{size}" for family, row in MODELS.items() for size in row.sizes]


def family_of(name: str) -> tuple[Family, str]:
    """Splits a model name into its family and its size. Raises ValueError that lists the known names."""
    family, _, size = name.rpartition("_")
    if family not in MODELS or size not in MODELS[family].sizes:
        hint = f"a file is weights={name} or checkpoint={name}; " if is_weights(name) else ""
        raise ValueError(f"model={name!r} is not known; {hint}choose one of: {', '.join(model_names())}")
    return MODELS[family], size


def build(
    name: str, num_classes: int, state: Mapping[str, Tensor] | None = None, added: Sequence[int] = ()
) -> DetectionModel:
    """Builds a freshly initialized model.

    `state`: the state dict that the caller will load. Only its names and shapes are used here: they give the added heads, and
    layer widths that do not follow from the size and the number of classes (the class branches of YOLOv9). `added`: without a
    state, the numbers of classes of the added heads, which are the last of the classes. Raises ValueError for an unknown name.
    """
    branches = added_states(state or {})
    counts = [class_rows(branch) for branch in branches] or list(added)
    if not counts:
        return build_plain(name, num_classes, state or {})
    if min(counts) < 1 or sum(counts) >= num_classes:
        raise CheckpointError(f"the weights do not fit {num_classes} classes: the added heads have {counts}")
    base = build_plain(name, num_classes - sum(counts), state or {})
    states = branches or [{}] * len(counts)
    models = [build_plain(name, count, of_branch) for count, of_branch in zip(counts, states, strict=True)]
    return ExtendedModel(base, [Branch(model.neck, model.head) for model in models], counts)


def build_plain(name: str, num_classes: int, state: Mapping[str, Tensor]) -> DetectionModel:
    """Builds a model without added heads; see `build`."""
    family, size = family_of(name)
    options = family.model.options({name: value for name, value in state.items() if value.ndim})
    if any(not 0 < width <= MAX_WIDTH for width in options.values()):
        raise CheckpointError(f"the weights do not fit model={name}: they ask for {options}")
    return family.model(family.sizes[size], num_classes, **options)


def criterion(
    model: DetectionModel,
    normalizer: Callable[[Tensor], Tensor] = local_normalizer,
    no_aug: bool = False,
    static: bool = False,
):
    """Builds the loss function of the model's family.

    `normalizer`: local number of positives -> divisor of the loss (see YOLOXCriterion). `no_aug` is set in the no-augmentation
    epochs, in which YOLOX adds an L1 loss. `static` is set in the first third of a run from scratch, in which PP-YOLOE
    assigns labels without looking at predictions.
    """
    if isinstance(model, ExtendedModel):
        return NewestCriterion(criterion(model.base, normalizer, no_aug, static), model.first_class)
    criteria = {family.model: family.criterion for family in MODELS.values()}
    return criteria[type(model)](model.strides, normalizer, no_aug, static)


def official_file(name: str, weights: str | None, image_size: tuple[int, int] | None = None) -> OfficialFile | None:
    """Returns the released file that a constant `weights` names, also at a mirror; None if it names no official file.

    `image_size`: of several files of a model, the one trained with the most similar input is chosen; None: its usual one."""
    family, size = family_of(name)
    if weights == "objects365":
        return family.objects365.get(size)
    if weights != "coco" and "://" not in (weights or ""):
        return None
    if image_size and size in family.by_side:
        return pretrained.nearest(family.by_side[size], image_size)
    return family.weights.get(size)


def official_size(name: str) -> tuple[int, int]:
    """Returns the input height and width that the official weights of a model were trained with."""
    family, size = family_of(name)
    return family.weights[size].image_size if size in family.weights else (640, 640)


def coarsest_stride(name: str) -> int:
    """Returns the largest stride of a model: the side, in pixels, of a grid cell of its coarsest feature map."""
    return max(family_of(name)[0].model.strides)


def sgd_defaults(name: str) -> SGDDefaults:
    """Returns the defaults of SGD for a model."""
    return family_of(name)[0].sgd


def expected_ap(name: str, image_size: tuple[int, int]) -> float:
    """Returns the AP50-95 that the official weights of a model reach on images like COCO's, at this input height and width.

    The file is that of `official_file`. At its training size and above, the result is the published AP.
    Below, with a side of r times the usual one, it is 1 - 1.5 (1 - r)^2 of it, fitted to YOLOX-nano on 326 images of COCO
    val2017: sides of 416, 320, 256, 224, 160 and 128 have .288, .261, .220, .198, .130 and .084
    (python evaluate.py model=yolox_nano image_size=...). 0 without official weights.
    """
    file = official_file(name, "coco", image_size)
    if file is None:
        return 0.0
    ratio = min(math.sqrt(math.prod(image_size) / math.prod(file.image_size)), 1.0)
    return file.ap * max(1 - 1.5 * (1 - ratio) ** 2, 0.0)


def check_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns the input height and width. Raises ValueError, with the nearest valid size, unless both are 32, 64, ... 8192."""
    if any(side < 32 or side % 32 or side > 8192 for side in size):  # as utils/file_checks.py
        nearest = ",".join(str(max(round(min(side, 8192) / 32), 1) * 32) for side in size)
        must = f"height and width must be multiples of 32 up to 8192, as in image_size={nearest}"
        raise ValueError(f"image_size={brief(f'{size[0]},{size[1]}')}: {must}")
    return size
