"""Detects objects in images and videos: python predict.py runs/RUN/best.pt IMAGES

IMAGES is an image, a video, a folder or pattern of these ("in/*.jpg"), a camera number, or the address of an image or
a stream.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import errno
import itertools
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.formats.class_names import read_classes
from datasets.formats.options import options_of
from datasets.formats.read import read
from datasets.store import evenly_spaced
from deploy import video
from deploy.detector import Detector, Result
from deploy.file_kinds import IMAGE, MISNAMED, UNREAD, VIDEO
from deploy.inputs import is_image_address, is_live, is_source, is_stream, is_web_address, kinds_in, name_of
from deploy.label_files import BackgroundFiles, LabelFiles
from deploy.load import is_checkpoint
from deploy.speed import decoded, measure, speed_table
from deploy.thresholds import threshold_text
from deploy.tracking import WEAK, Tracker, require_trackers
from deploy.writer import WRITABLE, Results
from engine import run_folder
from nets.postprocess import MAX_CANDIDATES
from nets.pretrained import COCO_CATEGORY_IDS, COCO_CLASSES
from report.heatmap import HeatMaps
from utils import mirror, threads
from utils.config import ConfigError, Constants, check, override, require, require_writable, show
from utils.draw import write_image
from utils.images import IMAGE_SUFFIXES, READERS, ImageError, batched, prefetch
from utils.outputs import require_replaceable
from utils.progress import Progress, progress_bar
from utils.script import run_script
from utils.text import amount, brief, split_names


class Origin(NamedTuple):
    """Where an image comes from."""

    name: str  # in the results
    path: str
    frame: int | None = None  # its number in a video


class FrameOptions(NamedTuple):
    """What is done with the frames of a video."""

    every: int  # 10 predicts every tenth frame
    track: bool  # whether objects get numbers


class Sources(NamedTuple):
    """What a source has to predict: name in the results -> path."""

    images: dict[str, str]
    videos: dict[str, str]  # files, or a camera number or an address
    unread: list[str]  # messages about files that look like images or videos, but are not read


@dataclass(frozen=True)
class Config(Constants):
    # what most users set
    checkpoint: str | None = None  # .pt, .onnx, name of a run; none: official weights of model=, or the newest run
    source: str | None = None  # image, folder, pattern, video, address, camera; none: validation images of the training
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
    labels: str | None = None  # files to correct by hand: labelstudio, cvat, coco, yolo, yolo_scores, voc or txt
    overwrite: bool = False  # also replaces label files that were corrected since an earlier call wrote them
    negatives: bool = False  # the source has no objects: labels= are of the images with a detection, as backgrounds
    heatmap: bool = False  # the pixels that each detection depends on, drawn over the image, in the folder heatmaps
    speed: bool = False  # only measure the speed of decoding, preprocessing, network and post-processing
    # hardware
    image_size: tuple[int, int] | None = None  # height, width, or one number for both; none: as in training
    batch_size: int = 8  # images per forward pass; a GPU is faster with more, a camera always gets 1
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps


FIXES = {
    UNREAD: "in a format that is not read: convert it to JPEG or PNG",
    MISNAMED: "an image or a video with the suffix of other files, not read: rename it",
}
BEHIND = 8  # predicted images that may wait to be drawn and written
LEAST = {"batch_size": 1, "max_detections": 1, "confidence": 0, "nms_iou": 0, "tile": 32, "overlap": 0.05}
LIMITS = (*LEAST, "class_agnostic")  # of the Detector
MAX = {"max_detections": MAX_CANDIDATES, "confidence": 1, "nms_iou": 1, "overlap": 0.9}
LABELS = ("labelstudio", "cvat", "coco", "yolo", "yolo_scores", "voc", "txt")
EXAMPLES = 16  # number of validation images if there is no source


def main(cfg: Config) -> Path | None:
    """Predicts and returns the folder with the results, or None if there are none, as with speed=true."""
    cfg = check(cfg)
    require(cfg, {**LEAST, "every": 1}, MAX, {"labels": (None, *LABELS)})
    if cfg.negatives and cfg.labels is None:
        raise ConfigError("negatives=true chooses the images of label files: write labels=txt, or another kind, too")
    if not cfg.speed:
        require_writable(f"output={show(cfg.output)}", cfg.output or "runs", "give output=FOLDER")
    classes = read_classes(cfg.classes) if cfg.classes else None
    only = split_names(cfg.only) if cfg.only else None
    limits = {name: getattr(cfg, name) for name in LIMITS}
    detector = Detector(cfg.checkpoint, cfg.model, classes, cfg.image_size, cfg.device, only=only, **limits)
    threads.set_threads(detector.device, 0)
    if detector.loaded.note:
        print(detector.loaded.note)
    print(description(detector, only, cfg.confidence))
    sources = find_sources(cfg.source or validation_images(detector), cfg.output)
    require_videos(sources, cfg.every, cfg.track)
    if cfg.track:
        require_trackers()
        detector.detect_weak(WEAK)
    if cfg.speed:
        require_files(sources.images)
        frames = decoded(next(iter(sources.videos.values()), None), sources.images.values(), detector.read)
        print(speed_table(measure(detector, frames), cfg.batch_size))
        return None
    writers = writers_of(detector, sources, cfg.labels, cfg.negatives, cfg.heatmap, cfg.overwrite)
    if cfg.output and os.path.isdir(cfg.output) and os.listdir(cfg.output):
        if not cfg.overwrite:
            require_replaceable_files(Path(cfg.output), sources, writers, cfg.save)
        print(f"{cfg.output} is not empty: files with the same names are replaced, corrected labels are kept")
    ids = COCO_CATEGORY_IDS if detector.classes == COCO_CLASSES else range(len(detector.classes))
    results = Results(lambda: open_output(cfg.output), detector.classes, ids, cfg.crops, writers, "labels" in writers)
    results.unread += sources.unread
    try:
        predict_files(detector, sources, results, cfg.show, cfg.save, FrameOptions(cfg.every, cfg.track))
    except KeyboardInterrupt:
        print("stopped; the results up to here are kept" if results.images else "stopped before the first result")
    finally:  # an error keeps them too
        if summary := results.finish():
            print(summary)
    if kept := "labels" in writers and writers["labels"].kept_text():
        print(kept)
    if cfg.negatives and results.images:
        print(writers["labels"].text(results.folder / "labels", results.images))
    return results.folder if results.images else None


def description(detector: Detector, only: list[str] | None, confidence: float | str | None) -> str:
    """Returns what is detected and how, for the console: the model, its classes, its input and the confidence threshold."""
    size = " x ".join(map(str, detector.image_size))
    parts = [amount(len(detector.classes), "class"), f"input {size}"]
    if only:
        parts.insert(1, f"only {brief(', '.join(only))}")
    if isinstance(confidence, float):
        parts.append(f"confidence {confidence:g}")
    line = f"{detector.path}: {', '.join(parts)}, {detector.device}"
    if isinstance(confidence, float):
        return line
    return f"{line}\n{threshold_text(detector.loaded, detector.confidence)}"


def writers_of(
    detector: Detector, sources: Sources, labels: str | None, negatives: bool, heatmap: bool, overwrite: bool
) -> dict[str, LabelFiles | HeatMaps]:
    """Returns what writes label files and heat maps into the folders of the results."""
    writers: dict[str, LabelFiles | HeatMaps] = {}
    if labels:
        model = "/".join(Path(detector.path).parts[-2:])
        kind = BackgroundFiles if negatives else LabelFiles
        writers["labels"] = kind(labels, detector.classes, label_images(sources), model, overwrite)
    if heatmap:
        writers["heatmaps"] = HeatMaps(detector.model, detector.image_size, detector.classes)
    return writers


def require_replaceable_files(folder: Path, sources: Sources, writers: dict, save: bool) -> None:
    """Raises ConfigError if results would replace files of a folder that no earlier call wrote."""
    if "labels" in writers:
        writers["labels"].require_replaceable(folder / "labels")
    files = ["detections.json"]  # those of an evaluation have the same name, and metrics.json next to them
    own = (folder / "detections.json").exists() and not (folder / "metrics.json").exists()
    if save:
        files += [drawn_name(name, WRITABLE, ".png", sources.images) for name in sources.images]
        files += [drawn_name(name, {".mp4"}, ".mp4", sources.videos) for name in sources.videos]
    require_replaceable(f"output={folder}", [folder / name for name in files], own, "prediction")


def find_sources(source: str | list[str], output: str | None) -> Sources:
    """Finds what a source has to predict: a stream, or images and videos."""
    if isinstance(source, str):
        source = mirror.local_source(source)
    if not isinstance(source, str) or not is_stream(source):
        return find_files(source, output)
    if not is_live(source):
        require_other_folder(output, Path(source).parent)
    return Sources({}, {stream_name(source): source}, [])


def stream_name(source: str) -> str:
    """Returns the name of a camera, an address or a video file in the results."""
    if is_live(source) and source.isdecimal():
        return f"camera{source}"
    if "://" in source:
        return name_of(source)
    return Path(source).name


def find_files(source: str | list[str], output: str | None) -> Sources:
    """Finds the images and videos of a source. Names contain the folders that tell equal file names apart.

    `source`: a folder, a pattern or an image, or the paths of images.
    """
    root = None
    if not isinstance(source, str):
        kinds = dict.fromkeys(source, IMAGE)
    elif is_image_address(source):
        return Sources({name_of(source): source}, {}, [])
    else:
        kinds = kinds_in(source)
        if os.path.isdir(source):
            root = source
    if not kinds:
        raise no_images(source, [])
    if root is None:
        root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in kinds])
    target = Path(output).resolve() if output else None
    require_other_folder(output, root)
    if target and Path(root).resolve() in target.parents:  # skips the output images of an earlier run
        kinds = {path: kind for path, kind in kinds.items() if target not in Path(path).resolve().parents}
    images, videos = (
        {os.path.relpath(path, root): path for path, kind in kinds.items() if kind == wanted}
        for wanted in (IMAGE, VIDEO)
    )
    unread = [f"{path}: {FIXES[kind]}" for path, kind in kinds.items() if kind in FIXES]
    if not images and not videos:
        raise no_images(source, unread)
    return Sources(images, videos, unread)


def require_videos(sources: Sources, every: int, track: bool) -> None:
    """Raises ConfigError if the options for videos are given for other sources."""
    if every > 1 and not sources.videos:
        raise ConfigError(f"every={every} is for the frames of a video: the source has none, leave it out")
    if track and (sources.images or not sources.videos):
        raise ConfigError("track=true is for videos: name a video, or a folder of videos only")


def require_files(images: dict[str, str]) -> None:
    """Raises ConfigError for images of web addresses, whose reading cannot be timed."""
    if addresses := [path for path in images.values() if is_web_address(path)]:
        raise ConfigError(f"speed=true is for files: download {brief(addresses[0])} first")


def label_images(sources: Sources) -> dict[str, str]:
    """Returns name -> path of the images that get labels: of a video, its first frame, whose path has the same name."""
    images = {}
    for name, path in sources.images.items():
        images[name] = name if is_web_address(path) else path
    for name in sources.videos:
        images[f"{name}_000000.jpg"] = name
    return images


def no_images(source: str | list[str], unread: list[str]) -> ValueError:
    """Returns the error of a source without images."""
    known = " ".join(IMAGE_SUFFIXES)
    shown = brief(str(source))
    error = f"source={shown}: no images there (current folder: {os.getcwd()}; known suffixes: {known})"
    return ValueError("\n".join([error, *unread[:10]]))


def require_other_folder(output: str | None, sources: str | Path) -> None:
    """Raises ValueError if the results would replace files of the folder of the sources."""
    if output and Path(output).resolve() == Path(sources).resolve():
        raise ValueError(f"output={output} holds the source, which could be overwritten: name another folder")


def validation_images(detector: Detector) -> list[str]:
    """Paths of validation images of the training, evenly spaced over all."""
    if not detector.config.get("val"):
        raise ValueError("source= is missing: an image, a folder, a pattern, a video or a camera number")
    data = read(detector.config["val"], "val", options_of(detector.config, detector.classes))
    return [data.path(i) for i in evenly_spaced(len(data), EXAMPLES)]


def open_output(output: str | None) -> Path:
    """Creates the output folder: the user's, or a new one in runs."""
    if output is None:
        return run_folder.create("runs", "predict")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def predict_files(
    detector: Detector, sources: Sources, results: Results, show: bool, save: bool, options: FrameOptions
) -> None:
    """Predicts images, then videos. What cannot be read is listed at the end, or an error if it is all."""
    images, videos = sources.images, sources.videos
    alone, complete = len(images) + len(videos) == 1, True
    if images:
        complete = predict_images(detector, images, results, show, save)
    for name, path in videos.items():
        if not complete:  # the user ended it in the window
            return
        file = drawn_name(name, {".mp4"}, ".mp4", videos)
        try:
            complete = predict_video(detector, name, path, file, results, show, save, options)
        except ValueError as error:
            if alone:
                raise
            results.unread.append(str(error))
    if not results.images:
        between = " " if alone else "\n"
        raise ValueError(between.join(["no image could be read:", *results.unread[:10]]))


def drawn_name(name: str, writable: Collection[str], suffix: str, others: Collection[str]) -> str:
    """Returns the name of a drawn image or video, with `suffix` added if the name has no writable one. `others`: all names."""
    file = name if Path(name).suffix.lower() in writable else f"{name}{suffix}"
    while file != name and file in others:  # g.gif next to g.gif.png
        file += suffix
    return file


def predict_images(detector: Detector, images: dict[str, str], results: Results, show: bool, save: bool) -> bool:
    """Predicts all images (name -> path); those that cannot be read are listed at the end. Returns as `predict_all` does."""

    def read(name: str) -> tuple[str, np.ndarray | ImageError]:
        try:
            return name, detector.read(images[name])
        except ImageError as error:
            return name, error

    def readable() -> Iterator[tuple[Origin, np.ndarray]]:
        for name, image in prefetch(read, images, 2 * detector.batch_size, READERS):
            if isinstance(image, ImageError):
                results.unread.append(str(image))
            else:
                yield Origin(name, images[name]), image

    def write(name: str, drawn: np.ndarray) -> None:
        write_image(results.folder / drawn_name(name, WRITABLE, ".png", images), drawn)

    bar = progress_bar(None, "images", total=len(images))
    batches = batched(readable(), detector.batch_size)
    writer = write if save else None
    wait = 0 if show else None  # until a key is pressed
    return predict_all(detector, batches, results, writer, wait, bar)


def predict_video(
    detector: Detector,
    name: str,
    source: str,
    file: str,
    results: Results,
    show: bool,
    save: bool,
    options: FrameOptions,
) -> bool:
    """Predicts the frames of a video or camera and writes them as one video `file`. Returns as `predict_all` does."""
    live, capture = is_live(source), video.open_video(source)
    announced, rate = video.length(capture), video.rate(capture)
    count = video.Frames()
    if live:
        print("Ctrl-C ends it" + (", or q in the window" if show else ""))
    total = announced and -(-announced // options.every)
    bar = progress_bar(None, name, total=total)
    ahead = 1 if live else video.AHEAD
    detect = tracking(detector, rate / options.every) if options.track else detector
    with (
        video.writing(lambda: results.folder / file, rate / options.every) as write,
        closing(video.frames_of(capture, ahead, count)) as frames,
    ):
        chosen = itertools.islice(enumerate(frames), 0, None, options.every)
        images = ((Origin(name, source, number), frame) for number, frame in chosen)
        batch_size = 1 if live or show else detector.batch_size
        writer = write if save else None
        wait = 1 if show else None  # a millisecond
        ended = predict_all(detect, batched(images, batch_size), results, writer, wait, bar)
    if ended and (warning := video.require_frames(source, count, announced, rate)):
        print(warning)
    return ended


def tracking(detector: Detector, rate: float) -> Callable[[list[np.ndarray]], list[Result]]:
    """Returns a function that detects and tracks the objects in the frames of one video, in their order."""
    tracker = Tracker(rate, detector.confidence)
    return lambda frames: [tracker.update(result) for result in detector(frames)]


def predict_all(
    detect: Callable[[list[np.ndarray]], list[Result]],
    batches: Iterable[list[tuple[Origin, np.ndarray]]],
    results: Results,
    write: Callable[[str, np.ndarray], None] | None,
    wait: int | None,
    bar: Progress,
) -> bool:
    """Predicts all images, collects the results, and writes the drawn images by `write(name, image)` (None: not at all).

    `wait`: milliseconds for which a window shows each image (0: until a key; None: no window). Without a window, a thread
    draws and writes while the network predicts the next images. Returns False if the user ended it in the window.
    """

    def detected() -> Iterator[tuple[Origin, np.ndarray, Result]]:
        for batch in batches:
            for (origin, image), result in zip(batch, detect([image for _, image in batch]), strict=True):
                yield origin, image, result

    def finish(one: tuple[Origin, np.ndarray, Result]) -> np.ndarray:
        origin, image, result = one
        try:
            results.add(image, result, origin.name, origin.path, origin.frame)
            if write is not None or wait is not None:
                image = result.draw()
            if write is not None:
                write(origin.name, image)
        except (OSError, ValueError) as error:  # a name that a suffix makes too long, a format that is not written
            if origin.frame is not None or getattr(error, "errno", errno.ENAMETOOLONG) != errno.ENAMETOOLONG:
                raise
            results.unread.append(f"{origin.path}: detected, but not drawn ({error})")
        return image

    behind = BEHIND if wait is None else 0
    with bar, closing(prefetch(finish, detected(), behind)) as finished:
        for image in finished:
            bar.update()
            if wait is not None and not video.show(image, wait):
                return False
    return True


def command(words: list[str]) -> None:
    """Predicts with the arguments `words`. SIGTERM, which ends containers and jobs, keeps the results as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main(override(Config(), words, {"checkpoint": is_checkpoint, "source": is_source}))


if __name__ == "__main__":
    run_script(lambda: command(sys.argv[1:]), "stopped", "lower batch_size=")
