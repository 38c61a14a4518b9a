"""Converts a data set of any accepted format to an annotation file with classes.txt, or to COCO JSON.

    python -m tools.convert FOLDER TARGET.txt [split=.9,.1] [seed=0] [split_by=PATTERN] [source_split=train] [classes=FILE] \
[merge=truck:car] [image_root=DIR] [bad_boxes=error]

FOLDER (or data=FOLDER) is the folder of a data set, or a file of any accepted format. TARGET.txt (or target=TARGET.txt) is
an annotation file, TARGET.json is COCO JSON. With split, TARGET_train.txt, TARGET_val.txt and, for three
fractions, TARGET_test.txt are written; same and similar images stay in one split.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from utils.config import MAX_SEED, ConfigError, Constants, override, require, require_writable
from utils.files import matched
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
    bad_images: str = "error"  # images that cannot be read, where their size is needed: "error", "skip" or "repair"


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
    _check(goal, cfg)
    to_json = goal.suffix.lower() == ".json"
    data, report = _read(source, cfg, with_sizes=to_json)
    outputs = _divide(data, goal, cfg.split, cfg)
    if existing := next((path for path in outputs if path.exists()), None):
        raise DataError(f"{existing} exists: give another name, or delete it")
    class_files = {} if to_json else _class_names(source, goal, data.classes)
    if data.is_partly_annotated and not to_json:
        text = "which classes are annotated and the ignore regions are lost, so all count as annotated"
        report.append(f"{source}: {text}: write COCO JSON")
    texts = class_files | _texts(outputs, goal)
    goal.parent.mkdir(parents=True, exist_ok=True)
    write_all(texts)
    report += [f"{path}: {amount(len(data.classes), 'class name')}" for path in class_files]
    for path, chosen in outputs.items():
        report.append(f"{path}: {amount(len(chosen), 'image')}, {amount(len(chosen.boxes), 'box')}")
    return report


def _texts(outputs: dict[Path, Annotations], goal: Path) -> dict[Path, str]:
    """Returns the text of each file. Raises DataError for an annotation file that would be read as something else."""
    place = partial(split.relative, folder=goal.parent)
    if goal.suffix.lower() == ".json":
        return {path: split.json_of(data, place) for path, data in outputs.items()}
    for data in outputs.values():
        split.require_box(data, goal.parent)
    return {path: split.text_of(data, place) for path, data in outputs.items()}


def _check(goal: Path, cfg: Config) -> None:
    """Checks all that needs no data. Raises ValueError."""
    choices: dict[str, Sequence[str]] = {"bad_boxes": ("drop", "error"), "bad_images": ("error", "skip", "repair")}
    if cfg.source_split:
        choices["source_split"] = tuple(SPLITS)
    require(cfg, {"seed": 0}, {"seed": MAX_SEED}, choices)
    if goal.suffix.lower() not in (".txt", ".json"):
        raise DataError(f"{goal}: the name must end with .txt (annotation file) or .json (COCO JSON)")
    if goal.name.lower() in CLASS_FILES:
        raise DataError(f"{goal}: this name is reserved for class names: give another one, such as all.txt")
    if cfg.split_by and not cfg.split:
        raise DataError(f"split_by={cfg.split_by} divides the images: add split=.9,.1, or leave it out")
    require_writable(str(goal), goal.parent)


def _read(source: str, cfg: Config, with_sizes: bool) -> tuple[Annotations, list[str]]:
    """Reads the data, `with_sizes` of their images, too. Returns them with notes. Raises DataError for missing images."""
    chosen = ("classes", "merge", "image_root", "bad_boxes", "bad_images", "split_by")
    options = read_options(**{name: getattr(cfg, name) for name in chosen})
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


def main(words: list[str]) -> None:
    """Converts with the arguments `words`: FOLDER TARGET.txt name=value ..."""
    try:
        first = matched(next(iter(words), ""))
        options = asdict(override(Config(), words, {"data": lambda word: word == first, "target": bool}))
        source, target = options.pop("data"), options.pop("target")
        if source is None or target is None:
            fix = "python -m tools.convert FOLDER TARGET.txt; python -m tools.convert --help explains the options"
            raise ConfigError(f"two paths are needed: {fix}")
        print("\n".join(convert(source, target, **options)))
    except (ValueError, OSError) as error:
        raise SystemExit(error_text(error)) from error


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
