"""Converts a data set of any accepted format to an annotation file with classes.txt, or to COCO JSON.

    python -m tools.convert FOLDER TARGET.txt [split=.9,.1] [seed=0] [split_by=PATTERN] [source_split=train] [classes=FILE] \
[merge=truck:car] [image_root=DIR] [bad_boxes=error] [tile=640] [overlap=.2] [visible=.3] [background=.1]

FOLDER (or data=FOLDER) is the folder of a data set, or a file of any accepted format. TARGET.txt (or target=TARGET.txt) is
an annotation file, TARGET.json is COCO JSON. With split, TARGET_train.txt, TARGET_val.txt and, for three
fractions, TARGET_test.txt are written; same and similar images stay in one split. With tile, larger images are cut into
overlapping tiles, which are written to the folder TARGET_tiles.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from datasets import split
from datasets.check_images import check_images
from datasets.errors import DataError, raise_any
from datasets.formats.class_names import class_text, read_classes
from datasets.formats.file import CLASS_FILES
from datasets.formats.options import read_options
from datasets.formats.read import SPLITS, read
from datasets.store import Annotations
from tools.tiles import Cutter, cutter_of
from utils.config import MAX_SEED, ConfigError, Constants, override, require, require_writable
from utils.outputs import write_all
from utils.script import run_script
from utils.text import amount, error_text


@dataclass(frozen=True)
class Config(Constants):
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, or the folder of a data set
    target: str | None = None  # the file to write: .txt or .json
    split: tuple[float, ...] | None = None  # fractions of the images for train, val and test, as .9,.1 or .8,.1,.1
    seed: int = 0  # of the split
    split_by: str | None = None  # as in train.py: what the split keeps together
    source_split: str | None = None  # of a source with splits: train, val, test, all; none: train, or all with split=
    classes: str | None = None  # a file of class names, or names, which select: cat,dog; none: the classes of the data
    merge: str | None = None  # classes that become others: truck:car,van:car
    image_root: str | None = None  # the folder of the images, unless they are next to the annotations
    bad_boxes: str = "drop"  # boxes without area: drop lists them and leaves them out, error stops
    tile: int | None = None  # the side in pixels of tiles to cut the images into, for a training on small objects
    overlap: float | None = None  # of neighboring tiles, a fraction of their side; none: 0.2
    visible: float | None = None  # boxes of which a tile shows less than this fraction are left out of it; none: 0.3
    background: float | None = None  # the fraction of tiles without boxes that are kept; none: 0.1


def _divide(
    annotations: Annotations, target: Path, fractions: tuple[float, ...] | None, cfg: Config
) -> dict[Path, Annotations]:
    """Splits the images -> {path of the file: its part}. Raises DataError."""
    if fractions is None:
        return {target: annotations}
    option = "split=" + ",".join(f"{fraction:g}" for fraction in fractions)
    if len(fractions) not in (2, 3) or not (min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6):
        raise DataError(f"{option}: give two or three fractions that add up to 1, as in split=.9,.1 or split=.8,.1,.1")
    names = [target.with_name(f"{target.stem}_{part}{target.suffix}") for part in split.PARTS]
    return dict(zip(names, split.split(annotations, fractions, cfg.seed, option, cfg.split_by), strict=False))


def convert(source: str, target: str, **options) -> list[str]:
    """Reads `source` and writes `target`; `options` are explained in Config -> lines of report.

    Raises DataError, and writes nothing, if the data are wrong, a file exists, or classes.txt next to it has other names.
    """
    goal, cfg = Path(target), Config(**options)
    cutter = _checked(goal, cfg)
    to_json = goal.suffix.lower() == ".json"
    data, report = _read(source, cfg, with_sizes=to_json or cutter is not None)
    outputs = _divide(data, goal, cfg.split, cfg)
    existing = next((path for path in outputs if path.exists()), None)
    if existing:
        raise DataError(f"{existing} exists: give another name, or delete it")
    texts, write = {}, split.json_of
    if not to_json:
        texts, write = _class_names(source, goal, data.classes), split.text_of
        report += _lost(data) + _also_named(source, texts)
    if data.is_partly_annotated and (cutter or not to_json):
        text = "which classes are annotated and the ignore regions are lost, so training takes what has no box for background"
        report.append(f"{source}: {text}: write COCO JSON without tiles")
    place = partial(split.relative, folder=goal.parent)
    with cutter.cut(outputs, goal) if cutter else nullcontext((outputs, [])) as (outputs, lines):
        if not to_json:
            for chosen in outputs.values():
                split.require_box(chosen, goal.parent)
        texts |= {path: write(chosen, place) for path, chosen in outputs.items()}
        goal.parent.mkdir(parents=True, exist_ok=True)
        write_all(texts)
    for path, chosen in outputs.items():
        lines.append(f"{path}: {amount(len(chosen), 'image')}, {amount(len(chosen.boxes), 'box')}")
    return report + lines


def _checked(goal: Path, cfg: Config) -> Cutter | None:
    """Checks all that needs no data. Returns the Cutter of tile=, or None without it. Raises ValueError."""
    choices = {"source_split": (None, *SPLITS), "bad_boxes": ("drop", "error")}
    require(cfg, {"seed": 0}, {"seed": MAX_SEED}, choices)
    if goal.suffix.lower() not in (".txt", ".json"):
        raise DataError(f"{goal}: the name must end with .txt (annotation file) or .json (COCO JSON)")
    if goal.name.lower() in CLASS_FILES:
        raise DataError(f"{goal}: this name is reserved for class names: give another one, such as all.txt")
    if cfg.split_by and not cfg.split:
        raise DataError(f"split_by={cfg.split_by} divides the images: add split=.9,.1, or leave it out")
    require_writable(str(goal), goal.parent)
    options = {name: getattr(cfg, name) for name in ("tile", "overlap", "visible", "background")}
    if all(value is None for value in options.values()):
        return None
    return cutter_of(**options, seed=cfg.seed)


def _read(source: str, cfg: Config, with_sizes: bool) -> tuple[Annotations, list[str]]:
    """Reads the data, `with_sizes` of their images, too. Returns them with notes. Raises DataError for missing images."""
    options = read_options(cfg.classes, cfg.merge, cfg.image_root, cfg.bad_boxes, split_by=cfg.split_by)
    data = read(source, cfg.source_split or ("all" if cfg.split else "train"), options)
    missing = [path for path in map(data.path, range(len(data))) if not os.path.exists(path)]
    raise_any(
        f"{source}: images that do not exist: {len(missing)} of {len(data)}; image_root= names their folder", missing
    )
    other_splits, notes = data.other_splits, list(data.notes)
    if with_sizes:
        data, notes = check_images(data, options)
    if other_splits and cfg.source_split is None:
        names = ", ".join(other_splits)
        notes.append(f"{source}: splits that are not converted: {names}; source_split=all converts all")
    return data, notes


def _lost(data: Annotations) -> list[str]:
    """Returns a note about areas of objects, which an annotation file cannot hold, if there are any."""
    count = int(data.own_areas().sum())
    if not count:
        return []
    text = "boxes whose object has an area of its own, which an annotation file cannot hold"
    effect = "AP_small, AP_medium and AP_large are then measured with the areas of the boxes"
    return [f"{data.source}: {text}: {count}; {effect}: a target that ends with .json keeps the areas"]


def _class_names(source: str, goal: Path, classes: tuple[str, ...]) -> dict[Path, str]:
    """Returns {classes.txt: its text}, or nothing if the file next to `goal` has these names. Raises DataError."""
    if not classes:
        raise DataError(f"{source}: there are no boxes and no class names: label images, or name the classes")
    names = goal.with_name("classes.txt")
    if not names.exists():
        return {names: class_text(classes)}
    if read_classes(str(names)) != classes:
        raise DataError(f"{names} exists with other names: write into another folder, or move it away")
    return {}


def _also_named(source: str, texts: Mapping[Path, str]) -> list[str]:
    """Returns a note if the new class list `texts` is in a folder with other folders, to whose label files it applies, too."""
    own = Path(source).resolve()
    for names in texts:
        there = names.parent.iterdir() if names.parent.is_dir() else []
        folders = sorted(path for path in there if path.is_dir() and not path.name.startswith("."))
        if other := next((path for path in folders if path.resolve() not in (own, *own.parents)), None):
            fix = "write into a new folder if label files there have other classes"
            return [f"{names}: names the classes of all label files below its folder, such as those in {other}: {fix}"]
    return []


def main(words: list[str]) -> None:
    """Converts with the arguments `words`: FOLDER TARGET.txt name=value ..."""
    if not words:
        raise SystemExit(__doc__)
    try:
        if named := next((word for word in words if word in [f"split={name}" for name in SPLITS]), None):
            raise ConfigError(
                f"{named}: split= takes fractions, as in split=.9,.1; to read one split, write source_{named}"
            )
        words = with_names(words)
        options = asdict(override(Config(), words))
        source, target = options.pop("data"), options.pop("target")
        if source is None or target is None:
            raise ConfigError("two paths are needed: python -m tools.convert FOLDER TARGET.txt")
        print("\n".join(convert(source, target, **options)))
    except (ValueError, OSError) as error:
        raise SystemExit(error_text(error)) from error


def with_names(words: list[str]) -> list[str]:
    """Returns the words after naming the first two paths, data= and target=; a path may contain "="."""
    free = [name for name in ("data", "target") if not any(word.startswith(f"{name}=") for word in words)]
    known = {field.name for field in fields(Config)}
    found = []
    for word in words:
        is_path = not word.startswith("-") and word not in known and ("=" not in word or os.path.exists(word))
        if is_path and free:
            word = f"{free.pop(0)}={word}"
        elif is_path and not known.intersection(words):  # a constant without "=" has its own message
            raise ConfigError(f"{word}: data= and target= are given already: leave it out, or write its name before it")
        found.append(word)
    return found


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
