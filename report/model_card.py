"""The model card of a run, card.md in its folder: results, data, constants that differ, licenses and limits."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metrics.coco import COCO_METRICS
from nets import official_file
from nets.pretrained import HOST
from utils.config import show
from utils.files import atomic_write
from utils.text import amount, printable

OFFICIAL = {  # authors, license and training data of the official COCO weights, see WEIGHTS.md
    "yolox": ("Megvii", "Apache-2.0", "COCO train2017"),
    "yolov9": ("MultimediaTechLab", "MIT", "COCO train2017"),
    "ppyoloe": ("PaddlePaddle", "Apache-2.0", "Objects365, then COCO train2017"),
    "picodet": ("PaddlePaddle", "Apache-2.0", "ImageNet (backbone), then COCO train2017"),
}
FEW_BOXES = 20  # with fewer validation boxes, the AP of a class is mostly chance
SPECIAL = re.compile(r"[\\`*\[\]<>|~&@#$!]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
TO_FILL_IN = "*to fill in*"


def write(model, run, state, data: Sequence[Any], defaults: Mapping[str, Any]) -> None:
    """Writes card.md into the folder of `run`, atomically.

    `state`: engine.resume.State after an epoch; `data`: annotations of training and validation; `defaults`: the default
    constants of train.py.
    """
    lines = [
        *head(model, run, state),
        *results(state),
        *data_lines(*data, run.config, state.thresholds, model.first_class),
        *constants(run.config, defaults),
        *licenses(run.config),
        *limits(*data, run.config, model.first_class),
        *origin(run.start),
    ]
    with atomic_write(run.folder / "card.md") as file:
        file.write(("\n".join(lines) + "\n").encode("utf-8", errors="backslashreplace"))


def plain(value: Any) -> str:
    """Returns a value as escaped text for Markdown, also in a table: special characters become HTML entities."""
    text = printable(" ".join(show(value).split()))
    return SPECIAL.sub(lambda match: f"&#{ord(match[0])};", text)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], numbers: int = 0) -> list[str]:
    """Returns the lines of a Markdown table whose last `numbers` columns hold numbers."""
    ruler = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return [
        "",
        *(f"| {' | '.join(map(str, row))} |" for row in (head, ruler, *([plain(v) for v in row] for row in rows))),
    ]


def head(model, run, state) -> Iterator[str]:
    """Yields the title, a description of the model, and questions to its owner."""
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    height, width = run.config["image_size"]
    yield f"# Model card: {plain(run.folder.name)}"
    yield ""
    yield (
        f"An object detector for {amount(model.num_classes, 'class')}: {plain(run.config['model'])}, "
        f"{parameters:.3g} million parameters, input {height} x {width} pixels. "
        f"Trained for {state.epoch} of {amount(run.config['epochs'], 'epoch')}."
    )
    if model.first_class:
        yield f"Its first {model.first_class} classes are those of the initial weights, unchanged; only the others were trained."
    yield ""
    yield "`train.py` replaces this file after every epoch. Copy it before you fill it in."
    yield from table(["to be filled in by its owner", ""], [])
    for question in ("Intended use", "Uses that are out of scope", "Owner and contact"):
        yield f"| {question} | {TO_FILL_IN} |"


def results(state) -> Iterator[str]:
    """Yields the metrics of the best and of the last evaluated epoch."""
    yield "\n## Results\n"
    evaluated = [row for row in state.rows if "AP" in row]
    if not evaluated:
        yield "Not evaluated yet."
        return
    best = next(row for row in evaluated if row["epoch"] == state.best_epoch)
    yield "Measured on the validation images. They also chose the best epoch, so expect lower metrics on new images."
    names = [name for name in COCO_METRICS if name in best]
    rows = [best] if best is evaluated[-1] else [best, evaluated[-1]]
    columns = [f"epoch {row['epoch']}" if row["epoch"] else "initial weights" for row in rows]
    columns[0] = f"best.pt ({columns[0]})"
    values = [[name, *(f"{row[name]:.4f}" if row[name] >= 0 else "-" for row in rows)] for name in names]
    yield from table(["COCO metric", *columns], values, len(rows))


def data_lines(train, val, config: Mapping[str, Any], thresholds: Mapping[str, float], first: int) -> Iterator[str]:
    """Yields tables of the data: sources, counts, questions to its owner, and the boxes and threshold of each class.

    `first`: the label of the first class that is trained. Classes before it are listed if they have validation boxes.
    """
    yield "\n## Data"
    empty = [int((part.starts[1:] == part.starts[:-1]).sum()) for part in (train, val)]
    boxes = [part.boxes_per_class() for part in (train, val)]
    rows = [("source", config["train"], config["val"]), ("images", len(train), len(val)), ("without boxes", *empty)]
    yield from table(["", "training", "validation"], [*rows, ("boxes", *(int(counts.sum()) for counts in boxes))])
    for question in ("Owner of the images", "License of images and labels", "Consent of people in them", "Labeled by"):
        yield f"| {question} | {TO_FILL_IN} | {TO_FILL_IN} |"
    columns = ["class", "training images", "training boxes", "validation boxes", "threshold of the best F1, last epoch"]
    counts = zip(train.classes, train.images_per_class().tolist(), *(c.tolist() for c in boxes), strict=True)
    counts = [row for label, row in enumerate(counts) if label >= first or row[-1]]
    yield from table(
        columns, [(*row, f"{thresholds[row[0]]:.2f}" if row[0] in thresholds else "-") for row in counts], 4
    )


def constants(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yields the constants that differ from the defaults of train.py."""
    yield "\n## Constants that differ from the defaults"
    changed = [(name, value, defaults.get(name)) for name, value in config.items() if value != defaults.get(name)]
    yield from table(["constant", "value", "default"], changed)
    yield "\nA default of none means that the program chooses the value. `config.json` holds all constants."


def licenses(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the licenses of the code and of the initial weights; the license of the model is to be filled in."""
    yield "\n## Licenses\n"
    yield "- The code that trained the model: Apache-2.0."
    family, weights = config["model"].rpartition("_")[0], config["weights"]
    file = official_file(config["model"], weights, config.get("image_size"))
    if weights is None:
        yield "- Initial weights: none; trained from scratch."
    elif file is not None:
        author, name, data = OFFICIAL.get(family, ("its authors", f"license {TO_FILL_IN}", "COCO train2017"))
        address = f"{file.host or HOST}/{file.path}"
        if weights == "objects365":
            data = "Objects365"
        yield f"- Initial weights: <{address}> by {author}, {name}, trained on {data}. Pass their license text on."
        if "://" in weights:
            yield f"  They came from the mirror {plain(weights)}."
    else:
        yield f"- Initial weights: {plain(weights)}. Their license: {TO_FILL_IN}."
    yield f"- This model: {TO_FILL_IN}. It depends on the licenses of the initial weights and of the data."


def limits(train, val, config: Mapping[str, Any], first: int) -> Iterator[str]:
    """Yields the limits of the model: what it cannot detect, and what was not tested. `first`: see `data_lines`."""
    yield "\n## Limits\n"
    yield "- It detects the classes above only, and only objects that look like the objects in its training images."
    height, width = config["image_size"]
    yield f"- Images are scaled to {height} x {width} pixels; it misses objects that shrink to a few pixels."
    yield "- A score is not a probability. Choose a threshold on images from the place where the model will be used."
    pairs = list(zip(train.classes, train.boxes_per_class().tolist(), val.boxes_per_class().tolist(), strict=True))
    pairs = pairs[first:]
    if unknown := [plain(name) for name, boxes, _ in pairs if boxes == 0]:
        yield f"- Classes without any training box, which it cannot detect: {', '.join(unknown)}."
    if few := [f"{plain(name)} ({boxes})" for name, _, boxes in pairs if boxes < FEW_BOXES]:
        yield f"- Classes with fewer than {FEW_BOXES} validation boxes, whose metrics are mostly chance: {', '.join(few)}."
    yield "- Not tested: other cameras, places, seasons or groups of people than in the validation images."


def origin(start: Mapping[str, Any]) -> Iterator[str]:
    """Yields the start time of the run, the commit, the package versions and the device."""
    yield "\n## Made with"
    names = (
        "started",
        "commit",
        "uncommitted_changes",
        "python",
        "torch",
        "torchvision",
        "cv2",
        "numpy",
        "cuda",
        "device",
    )
    yield from table(["", ""], [(name, start[name]) for name in names if name in start])
