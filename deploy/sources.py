"""What a source of predict.py holds: its images and videos, under the names that they have in the results."""

import os
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats.options import options_of
from datasets.formats.read import read
from datasets.store import evenly_spaced
from deploy.detector import Detector
from deploy.inputs import Files, files_of, is_image_address, is_live, is_stream, name_of
from utils.config import ConfigError
from utils.files import missing_text
from utils.images import IMAGE_SUFFIXES
from utils.remote_cache import local_source
from utils.text import brief

EXAMPLES = 16  # number of validation images if there is no source


class Sources(NamedTuple):
    """What a source has to predict: name in the results -> path."""

    images: dict[str, str]
    videos: dict[str, str]  # files, or a camera number or an address
    unread: list[str]  # messages about files that look like images or videos, but are not read


def find_sources(source: str | list[str], output: str | None) -> Sources:
    """Finds what a source has to predict: a stream, or images and videos. `source`: what the user gave, or paths of images."""
    if not isinstance(source, str):
        return name_files(Files(source, [], []), str(source), output)
    source = local_source(source)
    if is_image_address(source):
        return Sources({name_of(source): source}, {}, [])
    if not is_stream(source):
        return name_files(files_of(source), source, output)
    if not is_live(source):
        require_other_folder(output, Path(source).parent)
        name = Path(source).name
    else:
        name = name_of(source) if "://" in source else f"camera{source}"
    return Sources({}, {name: source}, [])


def name_files(files: Files, source: str, output: str | None) -> Sources:
    """Names the images and videos of a source. Names contain the folders that tell equal file names apart.

    Results of an earlier run in `output` are left out. Raises ValueError if there is no image and no video.
    """
    root = source
    paths = [*files.images, *files.videos]
    if paths and not os.path.isdir(source):
        root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    require_other_folder(output, root)
    target = Path(output).resolve() if output else None
    if target and Path(root).resolve() in target.parents:
        earlier = {path for some in files for path in some if target in Path(path).resolve().parents}
        files = Files(*[[path for path in some if path not in earlier] for some in files])
    unread = [f"{path}: in a format that is not read: convert it to JPEG or PNG" for path in files.unread]
    if not files.images and not files.videos:
        why = f"no images there (current folder: {os.getcwd()}; known suffixes: {' '.join(IMAGE_SUFFIXES)})"
        why = why if os.path.exists(source) else missing_text(source)
        raise ValueError("\n".join([f"source={brief(source)}: {why}", *unread[:10]]))
    images = {os.path.relpath(path, root): path for path in files.images}
    videos = {os.path.relpath(path, root): path for path in files.videos}
    return Sources(images, videos, unread)


def require_other_folder(output: str | None, folder: str | Path) -> None:
    """Raises ValueError if the results would replace files of the folder of the sources."""
    if output and Path(output).resolve() == Path(folder).resolve():
        raise ValueError(f"output={output} holds the source, which could be overwritten: name another folder")


def require_videos(sources: Sources, every: int, track: bool) -> None:
    """Raises ConfigError if the options for videos are given for other sources."""
    if every > 1 and not sources.videos:
        raise ConfigError(f"every={every} is for the frames of a video: the source has none, leave it out")
    if track and (sources.images or not sources.videos):
        raise ConfigError("track=true is for videos: name a video, or a folder of videos only")


def validation_images(detector: Detector) -> list[str]:
    """Returns paths of validation images of the training run, evenly spaced over all."""
    if not detector.config.get("val"):
        raise ValueError("source= is missing: an image, a folder, a pattern, a video or a camera number")
    try:
        data = read(detector.config["val"], "val", options_of(detector.config, detector.classes))
    except DataError as error:
        raise DataError(f"{detector.path}: its validation images are gone: write source=FOLDER\n{error}") from error
    return [data.path(i) for i in evenly_spaced(len(data), EXAMPLES)]
