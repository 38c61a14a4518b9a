"""Detects objects in images and videos: python predict.py runs/RUN/best.pt IMAGES

IMAGES is an image, a video, a folder or pattern of these ("in/*.jpg"), a camera number, or the address of an image or
a stream.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from datasets.formats.class_names import read_classes
from deploy.detector import Detector
from deploy.inputs import is_live, is_source
from deploy.label_files import KINDS, LabelFiles
from deploy.load import is_checkpoint
from deploy.predictor import Predictor
from deploy.sources import Sources, find_sources, require_videos, validation_images
from deploy.thresholds import threshold_text
from deploy.video import require_window
from deploy.writer import VIDEOS, Results, output_name
from engine import runs
from nets.postprocess import MAX_CANDIDATES
from nets.pretrained import COCO_CATEGORY_IDS, COCO_CLASSES
from utils import threads
from utils.config import ConfigError, Constants, check, override, require, require_writable, show
from utils.files import DETECTIONS, DRAWN, is_drawn
from utils.outputs import require_replaceable
from utils.script import run_script
from utils.text import amount, split_names


@dataclass(frozen=True)
class Config(Constants):
    # what most users set
    checkpoint: str | None = None  # .pt, exported file or name of a run; none: weights of model=, or the newest run
    source: str | None = None  # image, folder, pattern, video, address, camera; none: validation images of the run
    output: str | None = None  # a folder; none: a new one in runs
    confidence: float | str | None = None  # lower: more boxes, more wrong; none: of the best F1, or 0.3; per_class
    nms_iou: float = 0.5  # boxes of a class that overlap more are one object
    max_detections: int = 300  # per image
    only: str | None = None  # names of the classes to detect, such as cat,dog; none: all
    class_agnostic: bool = False  # boxes of different classes that overlap more than nms_iou are one object, too
    tile: int | None = None  # for small objects in large images: the side in pixels of tiles to detect in, too
    overlap: float | None = None  # of neighboring tiles, a fraction of their side; none: 0.2
    every: int = 1  # of the frames of a video; 10 takes every tenth
    track: bool = False  # each object in a video gets a number; needs pip install trackers
    # for official weights, which do not store these
    model: str | None = None  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    classes: str | None = None  # a file with one name per line; none: COCO's 80
    # results
    show: bool = False  # in a window; any key shows the next image, q ends
    save: bool = True  # images or video with drawn boxes
    crops: bool = False  # every object as a separate image, in a folder per class
    labels: str | None = None  # files to correct by hand: labelstudio, coco, txt, yolo or voc
    overwrite: bool = False  # also replaces label files that exist, which may be corrected
    negatives: bool = False  # the source has no objects: labels= are of the images with a detection, as backgrounds
    # hardware
    image_size: tuple[int, int] | None = None  # height, width, or one number for both; none: as in training
    batch_size: int = 8  # images per forward pass; a GPU is faster with more, a camera always gets 1
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps


MIN = {"batch_size": 1, "max_detections": 1, "confidence": 0, "nms_iou": 0}
MAX = {"max_detections": MAX_CANDIDATES, "confidence": 1, "nms_iou": 1}
LIMITS = (*MIN, "class_agnostic", "tile", "overlap")  # of the Detector


def main(cfg: Config) -> Path | None:
    """Predicts and returns the folder with the results, or None if there are none.

    Ctrl-C is the end of a camera or stream, and otherwise a KeyboardInterrupt after what was predicted is written."""
    cfg = check(cfg)
    require(cfg, {**MIN, "every": 1}, MAX, {"labels": (None, *KINDS)})
    if cfg.negatives and cfg.labels is None:
        raise ConfigError("negatives=true chooses the images of label files: write labels=txt, or another kind, too")
    require_writable(f"output={show(cfg.output)}", cfg.output or "runs", "give output=FOLDER")
    if cfg.show:
        require_window()

    # ---- the model
    classes = read_classes(cfg.classes) if cfg.classes else None
    only = split_names(cfg.only) if cfg.only else None
    limits = {name: getattr(cfg, name) for name in LIMITS}
    detector = Detector(cfg.checkpoint, cfg.model, classes, cfg.image_size, cfg.device, only=only, **limits)
    threads.set_threads(detector.device, 0)
    print(description(detector, cfg.confidence))

    # ---- the images and videos
    sources = find_sources(cfg.source or validation_images(detector), cfg.output)
    require_videos(sources, cfg.every, cfg.track)

    # ---- the results
    labels = label_files(cfg, detector, sources)
    if not cfg.overwrite:
        require_replaceable_files(cfg.output, sources, labels, cfg.save)
    ids = category_ids(detector.classes)
    limit = min(cfg.max_detections, detector.loaded.max_detections)
    results = Results(partial(open_output, cfg.output), detector.classes, ids, cfg.crops, labels, limit)
    predictor = Predictor(detector, results, cfg.show, cfg.save, cfg.every, cfg.track)
    try:
        predictor.predict(sources)
    except KeyboardInterrupt:
        if not any(map(is_live, sources.videos.values())):  # which end in no other way
            raise
    finally:  # an error keeps them too
        if summary := results.finish():
            print(summary)
    return results.folder if results.images else None


def description(detector: Detector, confidence: float | str | None) -> str:
    """Returns the model, its classes, its input and its confidence threshold, for the console."""
    input_size = " x ".join(map(str, detector.image_size))
    lines = [f"{detector.path}: {amount(len(detector.classes), 'class')}, input {input_size}, {detector.device}"]
    if detector.loaded.note:
        lines.insert(0, detector.loaded.note)
    if not isinstance(confidence, float):
        lines.append(threshold_text(detector.loaded, detector.confidence))
    return "\n".join(lines)


def label_files(cfg: Config, detector: Detector, sources: Sources) -> LabelFiles | None:
    """Returns what writes the annotations of the sources; None without labels=."""
    if cfg.labels is None:
        return None
    for path in (*sources.images.values(), *sources.videos.values()):
        if os.path.isfile(path) and is_drawn(path):
            raise ConfigError(f"{path}: this program drew boxes into it: give the original as source= to label it")
    model = "/".join(detector.path.parts[-2:])
    names = [*sources.images, *(f"{name}_000000.jpg" for name in sources.videos)]  # of a video, its first frame
    constants = []
    if detector.config:  # ONNX files cannot be trained
        start = {"weights": detector.path, "model": detector.loaded.name, "image_size": detector.image_size}
        constants = [f"{name}={show(value)}" for name, value in start.items()]
    return LabelFiles(cfg.labels, detector.classes, names, model, cfg.overwrite, cfg.negatives, constants)


def category_ids(classes: Sequence[str]) -> Sequence[int]:
    """Returns the category ids of the classes in detections.json: those of COCO for its classes, else 0, 1, ..."""
    return COCO_CATEGORY_IDS if tuple(classes) == COCO_CLASSES else range(len(classes))


def require_replaceable_files(output: str | None, sources: Sources, labels: LabelFiles | None, save: bool) -> None:
    """Raises ConfigError if results would replace files of a folder that no earlier call wrote."""
    if output is None or not os.path.isdir(output) or not os.listdir(output):
        return
    folder = Path(output)
    if labels:
        labels.require_replaceable(folder / "labels")
    files = [folder / DETECTIONS]  # those of an evaluation have the same name, and metrics.json next to them
    is_own = files[0].exists() and not (folder / "metrics.json").exists()
    if save:
        drawn = folder / DRAWN if labels else folder
        files += [drawn / output_name(name, sources.images) for name in sources.images]
        files += [drawn / output_name(name, sources.videos, VIDEOS) for name in sources.videos]
    require_replaceable(f"output={folder}", files, is_own, "prediction")
    print(f"{folder} is not empty: files with the same names are replaced, but no label files")


def open_output(output: str | None) -> Path:
    """Creates the output folder: the user's, or a new one in runs."""
    if output is None:
        return runs.create("runs", "predict")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(words: list[str]) -> None:
    """Predicts with the arguments `words`. SIGTERM, which ends containers and jobs, keeps the results as Ctrl-C does."""

    def stop(number: int, _) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, stop)
    main(override(Config(), words, {"checkpoint": is_checkpoint, "source": is_source}))


if __name__ == "__main__":
    run_script(lambda: command(sys.argv[1:]), "stopped; what is written is kept", "lower batch_size=")
