"""Ranks labels that are probably wrong, by their disagreement with models that were not trained on them.

    python -m tools.suspects FOLDER [checkpoint=FILE] [model=yolox_nano] [weights=coco] [output=FOLDER]

FOLDER (or data=FOLDER) is the folder of a data set, or a file of any accepted format.

The images are divided into two halves. A short training on each half gives a model that judges the labels of the other
one. With `checkpoint=` a model that was trained on other images judges all labels. `output` gets suspects.html (to
look at), and suspects.txt: all images as an annotation file to correct, those with suspects first. labelstudio.json has
the labels of the images with suspects, to correct in Label Studio.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import cv2
import numpy as np

import nets
from datasets.check_images import check_images
from datasets.errors import DataError, logged
from datasets.formats.class_names import class_text
from datasets.formats.options import read_options
from datasets.formats.read import SPLITS, read
from datasets.groups import version_groups
from datasets.scan import scan
from datasets.split import json_of, relative, split_groups, text_of
from datasets.store import Annotations
from deploy.detector import Detector, Result
from deploy.label_files import Labeled, LabelFiles
from deploy.load import OFFICIAL, file_of, is_checkpoint
from engine.evaluation import MAX_DETECTIONS
from engine.runs import create, runs
from nets.postprocess import MAX_CANDIDATES
from tools.disagreement import CONFIDENCE, KINDS, MATCH, Detected, Suspect, found_fraction, rank
from tools.regression import logit, probability
from tools.suspects_page import TITLES, write_page
from utils.boxes import clip, pairwise_iou
from utils.checkpoint import refuse_missing
from utils.config import MAX_SEED, ConfigError, Constants, check, override, require, require_writable, show
from utils.images import READERS, batched, prefetch
from utils.outputs import write_all
from utils.script import run_script
from utils.text import amount

# The short training of each half, for a few hundred images.
RECIPE = {
    "batch_size": 8,
    "freeze_batch_size": 8,
    "learning_rate": 0.0042,
    "min_learning_rate": 7e-5,
    "warmup_epochs": 1.0,
    "weight_decay": 0.05,
    "no_aug_epochs": 3,
    "mosaic": 0.0,
    "rotation": 0.0,
    "scale": (0.8, 1.2),
    "bad_boxes": "drop",
    "save_minutes": 0.0,
}
FREEZE = 4  # the backbone is frozen in the first quarter of the epochs; frozen in all, models judged x-rays badly
BATCH = 16  # images that are read at once
TRAIN = Path(__file__).parents[1] / "train.py"
# Min fraction of the labels that the models should find. On 115 images of chess boards, with 5 % of the classes replaced, a
# model that found .70 of the labels had .17 of the first 20 wrong classes right, and .65 with .81 of the labels.
MIN_FOUND = 0.75


@dataclass(frozen=True)
class Config(Constants):
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder
    checkpoint: str | None = None  # a model that was not trained on these images; none: two short trainings
    model: str | None = None  # of the trainings (none: yolox_nano), or of official weights in checkpoint=
    weights: str | None = "coco"  # initial weights of the trainings, as in train.py
    epochs: int = 20  # of each training
    image_size: tuple[int, int] = (320, 320)  # height, width, or one number for both; larger for small objects
    top: int = 100  # suspects per kind
    output: str | None = None  # a new folder; none: one in runs
    split: str = "train"  # of data with several splits: train, val, test, all
    classes: str | None = None  # a file of class names, or names, which select: cat,dog; none: the classes of the data
    image_root: str | None = None  # folder of the images of a COCO JSON, unless they are next to it
    seed: int = 0  # of the division into halves


def judge_halves(cfg: Config, data: Annotations, folder: Path) -> list[Detected]:
    """Trains a model on each half of the images -> for each image the detections of the model that did not see it.

    Same and nearly same images, and versions of one image, are in one half. The halves depend on the images and the seed only."""
    paths = [data.path(i) for i in range(len(data))]
    found = scan(paths)
    groups = np.unique(version_groups(found.digests, found.hashes, paths), return_inverse=True)[1]
    halves = split_groups(groups, found.digests, (0.5, 0.5), cfg.seed)
    if not all(len(data.select(half).labels) for half in halves):
        raise DataError(f"{data.source}: no two halves with labels: add labeled images, or give checkpoint=")
    suffix = "json" if data.is_partly_annotated else "txt"
    files = [f"half{number}.{suffix}" for number in range(2)]
    write_annotations(folder, {name: data.select(half) for name, half in zip(files, halves, strict=True)})
    detected: dict[int, Detected] = {}
    for number, half in enumerate(halves):
        run = train(cfg, folder, f"without_half{number}", files[1 - number], files[number])
        detected.update(zip(half.tolist(), detect(run / "best.pt", data.select(half)), strict=True))
    return [detected[index] for index in range(len(data))]


def train(cfg: Config, folder: Path, name: str, train_file: str, val_file: str) -> Path:
    """Runs train.py on one half of the images, and returns the run folder. Raises ChildProcessError if it fails."""
    freeze_epochs = cfg.epochs // FREEZE if cfg.weights else 0
    constants = RECIPE | {"model": cfg.model or "yolox_nano", "weights": cfg.weights, "image_size": cfg.image_size}
    constants |= {"epochs": cfg.epochs, "freeze_epochs": freeze_epochs, "evaluate_every": cfg.epochs, "report": False}
    constants |= {"train": folder / train_file, "val": folder / val_file, "output": folder, "name": name}
    words = [f"{constant}={show(value)}" for constant, value in constants.items()]
    if subprocess.run([sys.executable, str(TRAIN), *words], check=False).returncode:
        raise ChildProcessError(f"the training {name} failed; its error is above")
    return runs(folder, name)[-1]


def detect(checkpoint: str | Path, data: Annotations, model: str | None = None) -> list[Detected]:
    """Returns boxes [n, 4], scores [n] and labels [n], as numbered in the data, that a checkpoint detects in each image."""
    most = min(max(MAX_DETECTIONS, 2 * data.max_boxes), MAX_CANDIDATES)  # else labels of dense images would be suspects
    detector = Detector(checkpoint, model, confidence=CONFIDENCE, max_detections=most)
    unknown = [name for name in data.classes if name not in detector.classes]
    if unknown:
        raise DataError(f"{checkpoint} has no class {', '.join(unknown)}: give a checkpoint that was trained with it")
    label_of = np.array([data.classes.index(name) if name in data.classes else -1 for name in detector.classes])
    detected, paths = [], [data.path(i) for i in range(len(data))]
    for images in batched(prefetch(detector.read, paths, 2 * BATCH, READERS), BATCH):
        results = detector(images)
        if detector.config.get("flip"):  # the training flipped images, too: the mean of both scores is better
            flipped = detector([cv2.flip(image, 1) for image in images])
            triples = zip(results, flipped, images, strict=True)
            results = [replace(seen, scores=mean_scores(seen, other, image)) for seen, other, image in triples]
        for result in results:
            known = result[label_of[result.labels] >= 0]
            detected.append((known.boxes, known.scores, label_of[known.labels]))
    return detected


def mean_scores(result: Result, flipped: Result, image: np.ndarray) -> np.ndarray:
    """Returns the scores [n], each averaged in log-odds with the score of the same object in the flipped image."""
    boxes, width = flipped.boxes.copy(), image.shape[1]
    boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    same = (pairwise_iou(result.boxes, boxes) >= MATCH) & (result.labels[:, None] == flipped.labels)
    other = np.where(same, flipped.scores, 0).max(1, initial=0)
    return probability((logit(result.scores) + logit(other)) / 2).astype(np.float32)


def write_annotations(folder: Path, files: dict[str, Annotations]) -> None:
    """Writes files of the same classes, .txt or .json, and classes.txt."""
    texts = {}
    for name, data in files.items():
        write = json_of if name.endswith(".json") else text_of
        texts[folder / name] = write(data, partial(relative, folder=folder))
    classes = next(iter(files.values())).classes
    write_all(texts | {folder / "classes.txt": class_text(classes)})


def only_annotated(detected: list[Detected], data: Annotations) -> list[Detected]:
    """Leaves out the detections of classes that are not annotated in their image, whose labels cannot be missing."""
    pairs = zip(detected, data.annotated_mask(), strict=True)
    return [tuple(part[annotated[found[2]]] for part in found) for found, annotated in pairs]


def initial_weights(weights: str | None) -> str | None:
    """Returns `weights` as both trainings can find them: the name of a run becomes its best.pt. Raises CheckpointError."""
    if weights is None or weights in OFFICIAL or "://" in weights:
        return weights
    path = file_of(weights, "weights=")
    refuse_missing(path)
    return str(path)


def require_empty(folder: Path) -> None:
    """Raises ConfigError for an output folder with files, such as a suspects.txt corrected by hand, or without permission."""
    require_writable(f"output={folder}", folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"output={folder}: the folder exists and is not empty: name a new folder")


def checked(cfg: Config) -> Config:
    """Returns the options after checking all that needs no data; the initial weights become a path."""
    require(cfg, {"epochs": 1, "top": 1, "seed": 0}, {"seed": MAX_SEED}, {"split": tuple(SPLITS)})
    if cfg.data is None:
        raise ConfigError("data= is missing: python -m tools.suspects FOLDER, or the path of an annotation file")
    if cfg.output:
        require_empty(Path(cfg.output))
    else:
        require_writable("output=none", "runs", "give output=FOLDER")
    if cfg.checkpoint:
        return cfg
    nets.check_size(cfg.image_size)
    return replace(cfg, weights=initial_weights(cfg.weights))


def main(cfg: Config) -> Path:
    """Ranks the labels, writes the files and returns their folder."""
    cfg = checked(check(cfg))
    options = read_options(classes=cfg.classes, image_root=cfg.image_root, bad_boxes="drop", bad_images="skip")
    data, notes = check_images(read(str(cfg.data), cfg.split, options), options)
    for note in notes:
        print(logged(note))
    if data.crowd.all():
        raise DataError(f"{cfg.data}: no labels to judge: is it the right file?")
    detected = detect(cfg.checkpoint, data, cfg.model) if cfg.checkpoint else None  # may be refused: no folder before
    folder = Path(cfg.output) if cfg.output else create("runs", "suspects")
    folder.mkdir(parents=True, exist_ok=True)
    if detected is None:
        detected = judge_halves(cfg, data, folder)
    detected = only_annotated(detected, data)
    truth = [data.boxes_of(i) for i in range(len(data))]
    suspects = rank(truth, detected, len(data.classes))
    groups = {kind: [suspect for suspect in suspects if suspect.kind == kind][: cfg.top] for kind in KINDS}
    fraction = found_fraction(truth, detected)
    quality = f"The models find {fraction:.0%} of {amount(len(data.labels), 'label')} in {amount(len(data), 'image')}."
    if fraction < MIN_FOUND:
        quality += f" WARNING: that is too few to judge labels, below {MIN_FOUND:.0%}: "
        longer = "train for more epochs=, or with a larger image_size= for small objects."
        quality += "take a better checkpoint=." if cfg.checkpoint else longer
    notes = write_results(folder, data, groups, quality)
    print("".join(f"\nnote: {note}" for note in notes))
    print(quality)
    print("\n".join(f"{TITLES[kind]}: {len(group)}" for kind, group in groups.items()))
    print(f"look at {folder / 'suspects.html'}, correct {folder / 'suspects.txt'}, or in Label Studio")
    return folder


def write_results(folder: Path, data: Annotations, groups: dict[str, list[Suspect]], quality: str) -> list[str]:
    """Writes all files, and returns notes about what they cannot hold."""
    ranked = [suspect for of_rank in zip_longest(*groups.values()) for suspect in of_rank if suspect]
    order = list(dict.fromkeys(suspect.image for suspect in ranked))
    notes = write_label_studio(folder, data, order)
    order += sorted(set(range(len(data))) - set(order))
    write_annotations(folder, {"suspects.txt": data.select(np.array(order))})
    if data.is_partly_annotated:
        notes.append("suspects.txt cannot hold which classes are annotated: correct the data that you gave")
    lines = {image: number for number, image in enumerate(order, 1)}
    write_page(folder / "suspects.html", data, groups, lines, quality)
    return notes


def write_label_studio(folder: Path, data: Annotations, images: list[int]) -> list[str]:
    """Writes the labels of some images for Label Studio, and returns a note about crowd regions, which it cannot hold."""
    files, crowds = LabelFiles("labelstudio", data.classes, ()), 0
    for index in images:
        boxes, labels, crowd = data.boxes_of(index)
        crowds += int(crowd.sum())
        height, width = data.sizes[index].tolist()
        boxes = clip(boxes[~crowd].astype(float), width, height)
        image = Labeled(data.path(index), data.path(index), (width, height), boxes, labels[~crowd], np.ones(len(boxes)))
        files.add(folder, image)
    files.finish(folder)
    return [f"labelstudio.json lacks the crowd regions of its images: {crowds}"] if crowds else []


def from_command_line(argv: list[str]) -> Config:
    """Returns the options, changed by the command line; a path needs no name."""
    return override(Config(), argv, {"checkpoint": is_checkpoint, "data": bool})


if __name__ == "__main__":
    run_script(lambda: main(from_command_line(sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
