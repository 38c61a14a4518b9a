"""Loads a trained model: a checkpoint of train.py, an exported file, or official weights."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nets
from deploy.exported_model import ExportedModel
from deploy.formats import SUFFIXES, is_exported
from engine.runs import best_of, is_run, run_of
from nets import load_official
from nets.postprocess import MAX_CANDIDATES
from utils import checkpoint, file_checks
from utils.config import is_weights
from utils.file_checks import fitting
from utils.remote import is_address
from utils.remote_cache import local_file
from utils.text import brief, check_class_names
from utils.value_range import ValueRange

OFFICIAL = ("coco", "objects365")  # weights to download
DATA = ("train", "val", "image_root")  # constants that name data
CONFIDENCE = 0.3  # the default threshold for files that do not store the confidence of their best F1


class Loaded(NamedTuple):
    """A model with its weights on the CPU, and the settings stored in its file."""

    model: nets.DetectionModel  # of an exported file: an ExportedModel, which has the methods that prediction needs
    classes: tuple[str, ...]
    image_size: tuple[int, int]  # height, width
    config: dict[str, Any]  # constants of the training run; empty for official weights and exported files
    path: Path
    confidence: float  # threshold of the best mean F1 in the validation, or CONFIDENCE
    name: str  # of the model, such as yolox_s
    thresholds: Mapping[str, float] = {}  # by class, of its best F1 in the validation; not of all classes
    measured: bool = False  # whether `confidence` comes from a validation
    value_range: ValueRange | None = None  # of the 16-bit images of the training run
    max_detections: int = MAX_CANDIDATES  # per image, that the file can give
    about: Mapping[str, Any] = {}  # epoch, AP and date of a checkpoint
    note: str = ""  # which file was taken, if the caller named none


def is_checkpoint(word: str) -> bool:
    """Whether a word on the command line is the path of weights, a run folder, or the name of a run."""
    is_name = not os.path.exists(word) and run_of("runs", word) is not None
    return is_weights(word) or is_name or is_run(Path(word)) or is_exported(Path(word))


def file_of(path: str | Path, option: str = "checkpoint=") -> Path:
    """Returns the file of a model: `path` itself, or the best.pt of a run. Raises ConfigError if a run has a similar name."""
    if is_address(str(path)):
        return Path(local_file(str(path)))
    if str(path) in OFFICIAL:  # also if a run has such a name
        return Path(path)
    return best_of("runs", str(path), option) or Path(path)


def device_for(path: str | Path | None, device: str) -> str:
    """Returns `device`, except that "auto" means "cpu" for exported files, which run on the CPU only."""
    return "cpu" if device == "auto" and path and is_exported(Path(path)) else device


def load(
    path: str | Path | None,
    model: str | None = None,
    classes: Sequence[str] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Loaded:
    """Loads a trained model: a checkpoint of this project, a file of export.py, or official weights.

    `path=None` is "coco" with `model`, or the newest checkpoint in runs/. The name or the folder of a run is its newest best.pt.
    Official weights need `model`; they are a file, or "coco" or "objects365" to download them. Weights of 80 classes are taken
    for COCO's. `classes` picks some of these classes, or names the classes of other weights.
    `image_size=None` is the size of the training. Raises CheckpointError, PretrainedError or ValueError with the fix.
    """
    note = ""
    if not path and not model:
        path = newest_checkpoint()
        note = f"{path} is the newest best.pt of all runs; checkpoint=NAME takes the newest run of a name"
    path = file_of(path or "coco")
    if (weights := str(path)) in OFFICIAL:
        if model is None:
            raise ValueError(f"checkpoint={weights} needs model=, one of {', '.join(nets.model_names())}")
        path = nets.fetch_weights(model, weights, "checkpoint", image_size)
    if path.suffix in SUFFIXES or is_exported(path):
        loaded = _load_exported(path, image_size)
    elif model is not None and not checkpoint.is_own(checkpoint.read(path)):
        network, names = load_official(path, model, classes)
        loaded = Loaded(network.eval(), names, nets.official_size(model), {}, path, CONFIDENCE, model)
    else:
        loaded = _load_checkpoint(path)
    check_class_names(loaded.classes, str(path))
    if model not in (None, loaded.name) or (classes is not None and tuple(classes) != loaded.classes):
        raise ValueError(
            f"{path} is a {loaded.name} with the classes {brief(', '.join(loaded.classes))}: leave out model= and classes=; "
            f"only= of predict.py detects some of the classes"
        )
    return loaded._replace(note=note, image_size=nets.check_size(image_size or loaded.image_size))


def _load_exported(path: Path, image_size: tuple[int, int] | None) -> Loaded:
    """Loads an exported file."""
    network = ExportedModel(path, image_size=image_size)
    about = network.about
    value_range = about.get("value_range")
    return Loaded(
        network,  # type: ignore[arg-type]  # it has the methods that prediction and evaluation need
        classes=tuple(about["classes"]),
        image_size=tuple(about["image_size"]),
        config={},
        path=path,
        confidence=about["confidence"],
        name=about["model"],
        thresholds=about.get("thresholds", {}),
        value_range=value_range and tuple(value_range),
        max_detections=about["max_detections"],
    )


def _load_checkpoint(path: Path) -> Loaded:
    """Loads best.pt, last.pt or another checkpoint of train.py."""
    contents = checkpoint.load(path, "prediction")
    names = tuple(contents["classes"])
    # Addresses of training data are asked only if the user names them: a file may come from anybody.
    config = {name: value for name, value in contents["config"].items() if name not in DATA or "://" not in str(value)}
    with fitting(path):
        network = nets.build(config["model"], len(names), contents["model"])
        network.load_state_dict(contents["model"])
    best = contents.get("metrics", {}).get("confidence", -1)
    value_range = contents.get("value_range")
    return Loaded(
        network.eval(),
        classes=names,
        image_size=tuple(config["image_size"]),
        config=config,
        path=path,
        confidence=best if best > 0 else CONFIDENCE,
        name=config["model"],
        thresholds=contents.get("thresholds", {}),
        measured=best > 0,
        value_range=value_range and tuple(value_range),
        about=checkpoint.about(contents),
    )


def newest_checkpoint() -> Path:
    """Returns the most recently written best.pt of all run folders. Raises CheckpointError if there is none."""
    paths = Path("runs").glob("*/best.pt")
    if newest := max(paths, key=lambda path: path.stat().st_mtime, default=None):
        return newest
    raise file_checks.CheckpointError(
        "no runs/*/best.pt here. Train one with `python train.py`, name one with checkpoint=FILE, or use the official "
        "weights with model=yolox_s"
    )
