"""Detection models, their losses and their pretrained weights. This package imports `utils` only."""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from torch import Tensor

from nets import pretrained
from nets.extended import ExtendedModel, added_states, extended
from nets.families import (  # noqa: F401  the interface of this package
    MODELS,
    Family,
    SGDDefaults,
    build,
    build_plain,
    check_size,
    coarsest_stride,
    criterion,
    expected_ap,
    family_of,
    model_names,
    official_file,
    official_size,
    sgd_defaults,
)
from nets.loading import load_compatible
from nets.model import DetectionModel
from nets.weights import Weights, class_rows, fetch, read
from utils import checkpoint
from utils.file_checks import CheckpointError, fitting
from utils.processes import Ranks
from utils.text import first_of
from utils.value_range import ValueRange


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


def fetch_weights(
    name: str, weights: str = "coco", option: str = "weights", image_size: tuple[int, int] | None = None
) -> Path:
    """Downloads the official weights of a model once and returns the path; see `weights.fetch`.

    `weights`: "coco", "objects365", or the address of a mirror of the COCO weights. `image_size`: see `official_file`.
    """
    file, stem = official_file(name, weights, image_size), name
    if weights == "objects365":
        stem = f"{name}_objects365"
        if file is None:
            have = ", ".join(other for other in model_names() if official_file(other, weights))
            raise pretrained.PretrainedError(f"there are no Objects365 weights for model={name}, only for {have}")
    elif file and file != official_file(name, weights):
        stem = f"{name}_{file.image_size[0]}"
    mirror = weights if "://" in weights else None
    return fetch(stem, file, mirror, verify=partial(require_all, name), option=option)


def read_weights(path: str | Path, name: str) -> Weights:
    """Reads a weights file. Raises CheckpointError for a checkpoint of this program with another model than `name`."""
    family, _ = family_of(name)
    weights = read(path, family.rename)
    if weights.model not in (None, name):
        raise CheckpointError(f"{path} is a {weights.model}, and model={name}: write model={weights.model}")
    return weights._replace(state=family.model.completed(weights.state))


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
            file = first_head(read_weights(path, name))
            with fitting(path):
                model = build(name, len(classes), file.state)
                state, fresh = pretrained.adapt_classes(file.state, file.classes, classes, model)
                log(load_compatible(model, state, fresh).require(backbone=0.8).text())
            shared = pretrained.shared_classes(file.classes or (), classes)
            pretraining = Pretraining(len(shared) / len(classes), file.official)
            log_class_changes(file, classes, shared, log)
        return pretraining, {key: value.to("meta") for key, value in model.state_dict().items()}

    pretraining, shapes = ranks.on_main(load)
    return model or build(name, len(classes), shapes), pretraining


def log_class_changes(
    file: Weights, classes: Sequence[str], shared: Mapping[int, int], log: Callable[[str], None]
) -> None:
    """Logs which classes of a run are not in the weights, and which ones of a checkpoint of this program the run does not have.

    `shared`: index in `classes` -> index in the classes of the weights.
    """
    new = [name for label, name in enumerate(classes) if label not in shared]
    if new:
        log(f"new classes, freshly initialized: {', '.join(first_of(new, 5))}")
    dropped = [name for label, name in enumerate(file.classes or ()) if label not in shared.values()]
    if file.official or not dropped:
        return
    hint = ""
    if new:
        pairs = product(new[:20], dropped[:20])
        name, old = max(pairs, key=lambda pair: SequenceMatcher(None, pair[0].casefold(), pair[1].casefold()).ratio())
        hint = (
            f"; if {name} is {old} under a new name in the data, {quote(f'merge={name}:{old}')} keeps what it learned"
        )
    log(f"classes of the weights that the data do not have, dropped: {', '.join(first_of(dropped, 5))}{hint}")


def trained_model(
    name: str, weights: str | None, log: Callable[[str], None], image_size: tuple[int, int] | None = None
) -> Trained:
    """Describes the trained model in a file. `name` and `image_size`: the model and its input, which choose official weights.

    Raises PretrainedError for weights without names of their classes.
    """
    path = _weights_file(name, weights, log, False, image_size)
    if path is None:
        raise pretrained.PretrainedError("classes are added to a trained model: write weights=FILE or weights=coco")
    if checkpoint.is_own(checkpoint.read(path)):
        contents = checkpoint.load(path, "prediction")
        return trained_from(contents | contents["config"] | {"classes": contents["classes"]})
    file = read_weights(path, name)
    _rows_of(path, name, file.state)
    if file.classes is None:
        fix = "give a checkpoint of this program, or weights=coco"
        raise pretrained.PretrainedError(f"weights={path} has no names of its classes: {fix}")
    return Trained(name, file.classes, official_size(name))


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


def _with_new_head(name: str, path: str | Path, num_classes: int) -> ExtendedModel:
    """Builds the model of a file with all its weights, and adds a head for the rest of `num_classes`."""
    file = read_weights(path, name)
    old_classes = len(file.classes or ())
    with fitting(path):
        model = build(name, old_classes, file.state)
        load_compatible(model, file.state).require(**dict.fromkeys(dict(model.named_children()), 1.0))
    count = num_classes - old_classes
    return extended(model, build_plain(name, count, file.state))


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


def load_official(path: Path, model: str, classes: Sequence[str] | None) -> tuple[DetectionModel, tuple[str, ...]]:
    """Loads weights of other programs, with all their classes or with the rows of `classes`. Raises ValueError.

    Returns the model and its classes.
    """
    file = read_weights(path, model)
    names, rows = file.classes, _rows_of(path, model, file.state)
    wanted = tuple(classes or names or ())
    if not wanted:
        raise ValueError(f"{path} predicts {rows} classes without their names: give classes=FILE, one name per line")
    known = names and len(pretrained.shared_classes(names, wanted)) == len(wanted)
    if not known and len(wanted) != rows:
        raise ValueError(
            f"{path} predicts {rows} classes, classes= has {len(wanted)} names, and not all are among those of the weights. "
            "To detect some classes, write only=NAME"
        )
    network = build(model, len(wanted), file.state)
    network.clips = False
    with fitting(path):
        state, _ = pretrained.adapt_classes(file.state, names if known else None, wanted, network)
        load_compatible(network, state).require(backbone=1.0, neck=1.0, head=1.0)
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
    """Raises ValueError unless a file has all tensors of the model `name`, with finite values."""
    state = read_weights(path, name).state
    model = build(name, _rows_of(path, name, state), state)
    load_compatible(model, state).require(backbone=1.0, neck=1.0, head=1.0)
