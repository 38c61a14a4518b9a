"""Detection models, their losses and their pretrained weights. This package imports `utils` only."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nets import official_names, picodet, ppyoloe, pretrained, yolov9, yolox
from nets.extended import Branch, ExtendedModel, NewestCriterion, added_states, extended
from nets.losses import PicoDetCriterion, PPYOLOECriterion, YOLOv9Criterion, YOLOXCriterion, local_normalizer
from nets.matching import load_matching
from nets.model import DetectionModel
from nets.pretrained import OfficialFile
from nets.weights import Weights, class_rows, fetch, read
from utils import checkpoint
from utils.file_checks import CheckpointError, fitting
from utils.processes import Ranks
from utils.text import brief, first_of
from utils.value_range import ValueRange


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
    by_side: Mapping[
        str, tuple[OfficialFile, ...]
    ] = {}  # size name -> all COCO weights, if there are some for other inputs


MAX_WIDTH = 4096  # channels of a layer that `build` takes from a file

V9_SGD = SGDDefaults(factor=16.0, clip_from_scratch=True, max_images=64)  # see YOLOv9Criterion
PICODET_SGD = SGDDefaults(factor=8.0, clip_from_scratch=True)  # the official rate is .24 for 192 images per step

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


class Pretraining(NamedTuple):
    """What the initial weights of a run were trained on."""

    known: float  # the fraction of the classes of the run that they were trained on, by name
    official: bool  # official COCO weights, not a checkpoint of this program


class Trained(NamedTuple):
    """A trained model that classes are added to, as its file describes it."""

    model: str  # its name
    classes: tuple[str, ...]
    image_size: tuple[int, int]  # height and width of its input
    value_range: ValueRange | None = None  # of the 16-bit images of its training
    thresholds: Mapping[str, float] = {}  # of its classes, from its validation


def model_names() -> list[str]:
    """Lists the accepted values of the constant `model`: FAMILY_SIZE."""
    return [f"{family}_{size}" for family, row in MODELS.items() for size in row.sizes]


def family_of(name: str) -> tuple[Family, str]:
    """Splits a model name into its family and its size. Raises ValueError that lists the known names."""
    family, _, size = name.rpartition("_")
    if family not in MODELS or size not in MODELS[family].sizes:
        raise ValueError(f"model={name!r} is not known; choose one of: {', '.join(model_names())}")
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
        return _build_plain(name, num_classes, state or {})
    if min(counts) < 1 or sum(counts) >= num_classes:
        raise CheckpointError(f"the weights do not fit {num_classes} classes: the added heads have {counts}")
    base = _build_plain(name, num_classes - sum(counts), state or {})
    states = branches or [{}] * len(counts)
    models = [_build_plain(name, count, of_branch) for count, of_branch in zip(counts, states, strict=True)]
    return ExtendedModel(base, [Branch(model.neck, model.head) for model in models], counts)


def _build_plain(name: str, num_classes: int, state: Mapping[str, Tensor]) -> DetectionModel:
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
    epochs, in which YOLOX adds an L1 loss. `static` is set in the first third of a training from scratch, in which PP-YOLOE
    assigns labels without looking at predictions.
    """
    if isinstance(model, ExtendedModel):
        return NewestCriterion(criterion(model.base, normalizer, no_aug, static), model.first_class)
    criteria = {family.model: family.criterion for family in MODELS.values()}
    return criteria[type(model)](model.strides, normalizer, no_aug, static)


def official_file(name: str, weights: str | None, image_size: tuple[int, int] | None = None) -> OfficialFile | None:
    """Returns the released file that a constant `weights` names, which a mirror has too; None: it is no official file.

    `image_size`: of several files of a model, the one that was trained with the most similar input; None: its usual one."""
    family, size = family_of(name)
    if weights == "objects365":
        return family.objects365.get(size)
    if weights != "coco" and "://" not in (weights or ""):
        return None
    if image_size and size in family.by_side:
        return pretrained.nearest(family.by_side[size], image_size)
    return family.weights.get(size)


def fetch_weights(
    name: str, weights: str = "coco", option: str = "weights", image_size: tuple[int, int] | None = None
) -> Path:
    """Downloads the official weights of a model once and returns the path; see `weights.fetch`.

    `weights`: "coco", "objects365", or the address of a mirror of the COCO weights. `image_size`: see `official_file`.
    """
    file, mirror = official_file(name, weights, image_size), weights if "://" in weights else None
    if weights == "objects365" and file is None:
        have = [other for other in model_names() if official_file(other, weights)]
        raise pretrained.PretrainedError(
            f"there are no Objects365 weights for model={name}, only for {', '.join(have)}: take one of them, or {option}=coco"
        )
    stem = name
    if file and file != official_file(name, weights):
        stem = f"{name}_{file.image_size[0]}"
    if weights == "objects365":
        stem = f"{name}_objects365"
        option = "objects365" if option == "weights" else option
    return fetch(stem, file, mirror, verify=partial(require_all, name), option=option)


def read_weights(path: str | Path, name: str) -> Weights:
    """Reads a weights file and returns a state dict with our tensor names, and its classes."""
    family, _ = family_of(name)
    weights = read(path, family.rename)
    return weights._replace(state=family.model.completed(weights.state))


def official_size(name: str) -> tuple[int, int]:
    """Returns the input height and width that the official weights of a model were trained with."""
    family, size = family_of(name)
    return family.weights[size].image_size if size in family.weights else (640, 640)


def coarsest_stride(name: str) -> int:
    """Returns the largest stride of a model: the side, in pixels, of the squares that its coarsest map has one value for."""
    return max(family_of(name)[0].model.strides)


def sgd_defaults(name: str) -> SGDDefaults:
    """Returns the defaults of SGD for a model."""
    return family_of(name)[0].sgd


def expected_ap(name: str, image_size: tuple[int, int]) -> float:
    """Returns the AP50-95 that the official weights of a model reach on images like COCO's, at this input height and width.

    Of several files of a model, those of `official_file`. At the size of their training and above, it is the published AP.
    Below, with a side of r times the usual one, it is 1 - 1.5 (1 - r)^2 of it, fitted to YOLOX-nano on 326 images of COCO
    val2017: sides of 416, 320, 256, 224, 160 and 128 have .288, .261, .220, .198, .130 and .084
    (python evaluate.py model=yolox_nano image_size=...). 0 without official weights.
    """
    file = official_file(name, "coco", image_size)
    if file is None:
        return 0.0
    ratio = min(math.sqrt(math.prod(image_size) / math.prod(file.image_size)), 1.0)
    return file.ap * max(1 - 1.5 * (1 - ratio) ** 2, 0.0)


def build_pretrained(
    name: str,
    classes: Sequence[str],
    weights: str | None,
    ranks: Ranks,
    log: Callable[[str], None],
    optional: bool = False,
    add_classes: bool = False,
    image_size: tuple[int, int] | None = None,
) -> tuple[DetectionModel, Pretraining | None]:
    """Builds a model, loads pretrained weights, and returns it and what they were trained on (None: from scratch).

    Only rank 0 loads them; the caller broadcasts the model. `weights`: "coco" or "objects365" (official weights), the address of
    a mirror of the COCO weights, a file, or None (from scratch). Classes that the weights were trained on keep their rows of the
    class predictors, matched by name. With `optional`, training starts from scratch after a warning if the official weights
    cannot be downloaded. With `add_classes`, the model of the file stays as it is, and a neck and a head are added for
    the last of the classes (`trained_model` returns the first ones). `image_size`: see `official_file`.
    """
    model = None

    def load() -> tuple[Pretraining | None, dict[str, Tensor]]:
        nonlocal model
        path = _weights_file(name, weights, log, optional, image_size)
        pretraining = None
        if path is None:
            model = build(name, len(classes))
        elif add_classes:
            log(f"weights    {path}")
            model = _with_new_head(name, path, len(classes))
            pretraining = Pretraining(0.0, official=False)
        else:
            log(f"weights    {path}")
            with _names_its_model(path, name):
                file = first_head(read_weights(path, name))
                with fitting(path):
                    model = build(name, len(classes), file.state)
                    state, fresh = pretrained.adapt_classes(file.state, file.classes, classes, model)
                    log(load_matching(model, state, fresh).require(backbone=0.8).text())
            shared = pretrained.shared_classes(file.classes or (), classes)
            pretraining = Pretraining(len(shared) / len(classes), file.official)
            if new := [other for label, other in enumerate(classes) if label not in shared]:
                log(f"new classes, freshly initialized: {', '.join(first_of(new, 5))}")
        return pretraining, {key: value.to("meta") for key, value in model.state_dict().items()}

    pretraining, shapes = ranks.on_main(load)
    return model or build(name, len(classes), shapes), pretraining


def trained_model(
    name: str, weights: str | None, log: Callable[[str], None], image_size: tuple[int, int] | None = None
) -> Trained:
    """Returns what the file of a trained model says about it. `name` and `image_size`: the model and its input, which choose
    official weights.

    Raises PretrainedError for weights without names of their classes.
    """
    path = _weights_file(name, weights, log, False, image_size)
    if path is None:
        raise pretrained.PretrainedError("classes are added to a trained model: write weights=FILE or weights=coco")
    if checkpoint.is_own(checkpoint.read(path)):
        contents = checkpoint.load(path, "prediction")
        return trained_from(contents | contents["config"] | {"classes": contents["classes"]})
    state, classes, _ = read_weights(path, name)
    _rows_of(path, name, state)
    if classes is None:
        raise pretrained.PretrainedError(
            f"weights={path} has no names of its classes: give a checkpoint of this program"
        )
    return Trained(name, classes, official_size(name))


def trained_from(contents: Mapping[str, Any]) -> Trained:
    """Returns what the entries of a checkpoint say about its model, named as the fields of Trained."""
    value_range = contents.get("value_range")
    return Trained(
        model=contents["model"],
        classes=tuple(contents["classes"]),
        image_size=tuple(contents["image_size"]),
        value_range=value_range and tuple(value_range),
        thresholds=contents.get("thresholds", {}),
    )


def first_head(file: Weights) -> Weights:
    """Returns a weights file without the heads that were added to its model, and without their classes."""
    if not added_states(file.state):
        return file
    state = {name: value for name, value in file.state.items() if not name.startswith("added.")}
    names = file.classes or ()
    return file._replace(state=state, classes=names[: class_rows(state)])


@contextmanager
def _names_its_model(path: str | Path, name: str) -> Iterator[None]:
    """Turns the errors of a checkpoint of this program that holds another model than `name` into one that names its model."""
    try:
        yield
    except CheckpointError as error:
        contents = checkpoint.read(path)
        config = contents.get("config") if checkpoint.is_own(contents) else None
        own = config.get("model") if isinstance(config, dict) else None
        if own == name or not isinstance(own, str):
            raise
        raise CheckpointError(
            f"{path} is a {own}, and model={name}: write model={own}, or name other weights"
        ) from error


def _with_new_head(name: str, path: str | Path, num_classes: int) -> ExtendedModel:
    """Builds the model of a file with all its weights, and adds a head for the rest of `num_classes`."""
    file = read_weights(path, name)
    old_classes = len(file.classes or ())
    with fitting(path):
        model = build(name, old_classes, file.state)
        parts = {"backbone": 1.0, "neck": 1.0, "head": 1.0}
        if isinstance(model, ExtendedModel):
            parts["added"] = 1.0
        load_matching(model, file.state).require(**parts)
    count = num_classes - old_classes
    return extended(model, _build_plain(name, count, file.state))


def _weights_file(
    name: str, weights: str | None, log: Callable[[str], None], optional: bool, image_size: tuple[int, int] | None
) -> str | Path | None:
    """Returns the file that `weights` names, after downloading official weights; None: train from scratch."""
    if weights is None or (weights not in ("coco", "objects365") and "://" not in weights):
        return weights
    try:
        return fetch_weights(name, weights, image_size=image_size)
    except pretrained.PretrainedError as error:
        if not optional:
            raise
        instead = "The demo trains FROM SCRATCH and without freezing. Use the weights for your own data."
        log(f"\n*** {error}\n*** {instead}\n")
        return None


def check_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns the input height and width. Raises ValueError, with the nearest valid size, unless both are 32, 64, ... 8192."""
    if any(side < 32 or side % 32 or side > 8192 for side in size):  # as utils/file_checks.py
        nearest = ",".join(str(max(round(min(side, 8192) / 32), 1) * 32) for side in size)
        must = f"height and width must be multiples of 32 up to 8192, such as {nearest}"
        raise ValueError(f"image_size={brief(f'{size[0]},{size[1]}')}: {must}")
    return size


def load_official(path: Path, model: str, classes: Sequence[str] | None) -> tuple[DetectionModel, tuple[str, ...]]:
    """Loads weights of other programs, with all their classes or with the rows of `classes`. Raises ValueError.

    Returns the model and its classes.
    """
    state, names, _ = read_weights(path, model)
    rows = _rows_of(path, model, state)
    wanted = tuple(classes or names or ())
    if not wanted:
        raise ValueError(f"{path} predicts {rows} classes without their names: give classes=FILE, one name per line")
    known = names and len(pretrained.shared_classes(names, wanted)) == len(wanted)
    if not known and len(wanted) != rows:
        raise ValueError(
            f"{path} predicts {rows} classes, classes= has {len(wanted)} names, and not all are among those of the weights"
        )
    network = build(model, len(wanted), state)
    network.clips = False
    with fitting(path):
        state, _ = pretrained.adapt_classes(state, names if known else None, wanted, network)
        load_matching(network, state).require(backbone=1.0, neck=1.0, head=1.0)
    return network, wanted


def _rows_of(path: str | Path, model: str, state: Mapping[str, Tensor]) -> int:
    """Returns the number of classes that weights predict. Raises PretrainedError if they belong to another model."""
    rows = class_rows(state)
    if rows == 0:
        raise pretrained.PretrainedError(
            f"{path} has no class predictors of model={model}: is model= the model of this file?"
        )
    return rows


def require_all(name: str, path: Path) -> None:
    """Raises ValueError unless a file has all tensors of the model `name`, for known classes, with finite values."""
    state, classes, _ = read_weights(path, name)
    model = build(name, len(classes or ()), state)
    load_matching(model, state).require(backbone=1.0, neck=1.0, head=1.0)
