"""What a checkpoint sees: python predict.py checkpoint=runs/RUN/best.pt source=PICTURES

SOURCE: a picture, a folder, a pattern ("in/*.jpg"), a video, a camera number, or an address of a stream.
"""

import glob
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from datasets import formats
from datasets.annotations import PICTURE_SUFFIXES, annotation_line
from datasets.images import ImageError, pictures_under, read_image
from nets.pretrained import COCO_CATEGORY_IDS, COCO_CLASSES, PretrainedError
from utils import distributed, run, script, speed, video
from utils.ahead import READERS, ahead, blocks
from utils.config import ConfigError, check, override, require
from utils.detector import Detector, Found
from utils.draw import draw_boxes, write_image
from utils.results import KINDS, Results


@dataclass(frozen=True)
class Config:
    # what everyone gives
    checkpoint: str | None = None  # .pt or .onnx; coco: the official weights, with model=; none: newest runs/*/best.pt
    source: str | None = None  # picture, folder, pattern, video, camera number; none: pictures of val of the training
    output: str | None = None  # a folder; none: a new one in runs
    confidence: float | None = None  # lower finds more, and more that is not there; none: that of the best F1, or 0.3
    nms_iou: float = 0.5  # boxes of a class that overlap more are one object
    # of official weights, which do not say it themselves
    model: str | None = None  # yolox_nano, yolox_tiny, yolox_s, _m, _l, _x; yolov9_t, _s, _m, _c
    classes: str | None = None  # a file with one name a line; none: COCO's 80
    # results
    show: bool = False  # in a window; a key goes on, q ends
    save: bool = True  # drawn pictures or the drawn video
    crops: bool = False  # every object as a picture of its own, in a folder for its class
    labels: str | None = None  # label files to correct by hand: yolo, voc, or txt (annotation file)
    speed: bool = False  # only measure: images a second of decoding, preprocessing, network, post-processing
    # machine
    image_size: tuple[int, int] | None = None  # height, width; none: that of the training
    batch_size: int = 8  # pictures at a time; a GPU likes more, a camera gets 1
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps


WRITABLE = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}  # other formats are drawn as PNG
EXAMPLES = 16  # pictures of the validation part, when no source is named


def main(cfg: Config) -> Path | None:
    """Predicts as `cfg` says -> the folder with the results (None: it was only measured)."""
    cfg = check(cfg)
    require(cfg, {"batch_size": 1, "confidence": 0, "nms_iou": 0}, {"confidence": 1, "nms_iou": 1}, {})
    if cfg.labels is not None and cfg.labels not in KINDS:
        raise ConfigError(f"labels={cfg.labels}: it can be {', '.join(KINDS)} or none")
    wanted = formats.read_classes(cfg.classes) if cfg.classes else None
    limits = {"confidence": cfg.confidence, "nms_iou": cfg.nms_iou, "batch_size": cfg.batch_size}
    detector = Detector(cfg.checkpoint, cfg.model, wanted, cfg.image_size, cfg.device, **limits)
    distributed.share_cores(detector.device, 0)
    height, width = detector.image_size
    confidence = f"confidence {detector.limits['confidence']:g}"
    print(
        f"{detector.path}: {len(detector.classes)} classes, input {height} x {width}, {confidence}, {detector.device}"
    )
    stream = cfg.source is not None and video.is_stream(cfg.source)
    if stream and cfg.labels:
        raise ConfigError(f"labels={cfg.labels} is for pictures: the frames of a video are not kept as files")
    pictures = {} if stream else find_pictures(cfg.source or validation_pictures(detector), cfg.output)
    if cfg.speed:
        images = video_frames(cfg.source) if stream else decoded(pictures)
        print(speed.table(speed.measure(detector, images), cfg.batch_size))
        return None
    if cfg.labels in ("yolo", "voc"):
        refuse_shared_labels(pictures)
    folder = open_output(cfg.output)
    ids = COCO_CATEGORY_IDS if detector.classes == COCO_CLASSES else range(len(detector.classes))
    results = Results(folder, detector.classes, ids, cfg.crops, cfg.labels, annotation_line)
    try:
        if stream:
            predict_video(detector, cfg.source, results, cfg.show, cfg.save)
        else:
            predict_pictures(detector, pictures, results, cfg.show, cfg.save)
    except KeyboardInterrupt:
        print("stopped; what was done until now is kept")
    print(results.finish())
    return folder


def find_pictures(source: str | list[str], output: str | None) -> dict[str, str]:
    """Name in the results -> path. Pictures of several folders keep their folders, so that no two names are equal."""
    if not isinstance(source, str):
        root, paths = None, source
    elif Path(source).is_dir():
        root, paths = source, [os.path.join(source, name) for name in pictures_under(source)]
    elif Path(source).is_file():
        root, paths = None, [source]
    else:
        found = sorted(glob.glob(source, recursive=True))
        root, paths = None, [path for path in found if path.lower().endswith(PICTURE_SUFFIXES)]
    root = root or (os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths]) if paths else "")
    target = Path(output).resolve() if output else None
    if target and paths and Path(root).resolve() == target:
        raise ValueError(f"output={output} holds the source pictures, which would be overwritten: name another folder")
    paths = [p for p in paths if target not in Path(p).resolve().parents]  # what an earlier run has drawn is no source
    if not paths:
        endings = " ".join(PICTURE_SUFFIXES)
        raise ValueError(f"source={source}: no pictures there, seen from {os.getcwd()}; their names end with {endings}")
    return {os.path.relpath(path, root): path for path in paths}


def validation_pictures(detector: Detector) -> list[str]:
    """The first pictures of the data that the checkpoint was validated with."""
    if not detector.config.get("val"):
        raise ValueError("source= is missing: a picture, a folder, a pattern, a video or a camera number")
    image_root, bad_boxes = detector.config.get("image_root"), detector.config.get("bad_boxes", "error")
    data = formats.read(detector.config["val"], "val", detector.classes, image_root, bad_boxes)
    return [data.path(i) for i in range(min(len(data), EXAMPLES))]


def open_output(output: str | None) -> Path:
    """A new folder in runs, or that of the user."""
    if output is None:
        return run.create("runs", "predict")
    folder = Path(output)
    if folder.is_dir() and any(folder.iterdir()):
        print(f"{folder} is not empty: files of the same names are replaced")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def refuse_shared_labels(pictures: dict[str, str]) -> None:
    """a.jpg and a.png would both be described by a.txt; classes.txt holds the names of the classes."""
    stems = Counter(["classes", *(str(Path(name).with_suffix("")) for name in pictures)])
    shared = [stem for stem, count in stems.items() if count > 1]
    if shared:
        raise ValueError(f"two pictures, or one and the list of classes, would share {shared[0]}.*: rename one")


def predict_pictures(detector: Detector, pictures: dict[str, str], results: Results, show: bool, save: bool) -> None:
    """Every picture, read ahead and drawn behind by threads; those that cannot be read are told at the end."""

    def finish(one: tuple[str, np.ndarray, Found]) -> np.ndarray:
        name, image, found = one
        results.add(name, pictures[name], image, found)
        drawn = draw_found(image, found, detector) if save or show else image
        if save:
            write_image(results.folder / f"{name}{'' if Path(name).suffix.lower() in WRITABLE else '.png'}", drawn)
        return drawn

    def found_in_all() -> Iterator[tuple[str, np.ndarray, Found]]:
        read = ahead(read_picture, pictures.items(), 2 * detector.batch_size, READERS)
        for block in blocks(read, detector.batch_size):
            bad = [str(image) for _, image in block if isinstance(image, ImageError)]
            bar.update(len(bad))
            results.unread += bad
            good = [(name, image) for name, image in block if not isinstance(image, ImageError)]
            for (name, image), found in zip(good, detector([image for _, image in good]), strict=True):
                yield name, image, found

    with (
        tqdm(total=len(pictures), desc="pictures", unit="", leave=False, dynamic_ncols=True) as bar,
        closing(ahead(finish, found_in_all(), 0 if show else detector.batch_size)) as finished,
    ):
        for drawn in finished:
            bar.update()
            if show and not video.show(drawn, 0):
                return
    if len(results.unread) == len(pictures):
        raise ValueError("\n".join(["no picture could be read:", *results.unread[:10]]))


def draw_found(image: np.ndarray, found: Found, detector: Detector) -> np.ndarray:
    """The image with what was found in it."""
    return draw_boxes(image, found.boxes, found.labels, detector.classes, found.scores)


def read_picture(picture: tuple[str, str]) -> tuple[str, np.ndarray | ImageError]:
    """Name and path -> name and image, or why there is none."""
    name, path = picture
    try:
        return name, read_image(path)
    except ImageError as error:
        return name, error


def predict_video(detector: Detector, source: str, results: Results, show: bool, save: bool) -> None:
    """Every frame of a video or camera, drawn into one video. A thread reads ahead, and one draws and writes behind."""
    capture, live, writer = video.open_video(source), video.is_live(source), None
    name = f"camera{source}" if source.isdecimal() else Path(source).name
    total, rate = video.length(capture), video.rate(capture)

    def finish(one: tuple[np.ndarray, Found]) -> np.ndarray:
        nonlocal writer
        image, found = one
        results.add(name, source, image, found, frame=results.images)
        drawn = draw_found(image, found, detector) if save or show else image
        if save and writer is None:
            path = results.folder / f"{name}{'' if name.endswith('.mp4') else '.mp4'}"
            writer = video.open_writer(path, rate, image.shape)
        if save:
            writer.write(drawn)
        return drawn

    def found_in_all() -> Iterator[tuple[np.ndarray, Found]]:
        for block in blocks(frames, 1 if live or show else detector.batch_size):
            yield from zip(block, detector(block), strict=True)

    if live:
        print("Ctrl-C ends it" + (", or q in the window" if show else ""))
    try:
        with (
            tqdm(total=total if total > 0 and not live else None, desc=name, unit="", leave=False) as bar,
            closing(video.frames_of(capture, 1 if live else video.FRAMES)) as frames,
            closing(ahead(finish, found_in_all(), 0 if show else video.FRAMES)) as finished,
        ):
            for drawn in finished:
                bar.update()
                if show and not video.show(drawn, 1):
                    return
    finally:
        if writer is not None:
            writer.release()


def decoded(pictures: dict[str, str]) -> Iterator[np.ndarray]:
    """The pictures, again and again."""
    return map(read_image, itertools.cycle(pictures.values()))


def video_frames(source: str) -> Iterator[np.ndarray]:
    """The frames of a video or camera, each read when it is asked for."""
    return video.frames_of(video.open_video(source), 0)


if __name__ == "__main__":
    script.run(
        lambda: main(override(Config(), sys.argv[1:])),
        mistakes=(PretrainedError,),
        stopped="stopped",
        lower="lower batch_size=",
    )
