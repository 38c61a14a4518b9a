"""Reads run folders for a comparison: their logs, constants and data, and the table of the runs."""

import csv
import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets.sources import division_of, val_of
from engine.environment import last_start
from engine.run_folder import near_run
from utils import checkpoint, file_checks
from utils.config import ConfigError, show
from utils.file_checks import class_names
from utils.text import amount, first_line, in_points

LARGEST = 1e12  # no number of a training is larger
NUMBERS = ("epoch", "seconds", "images_per_second")  # columns of every row of log.csv; evaluated epochs also have AP
TRAINING = "training data"  # a column, if the runs differ in it
WHERE = ("name", "output", "resume")  # constants that are not compared: the table already names the folder
REPEATED = ("seed", "val")  # constants in which repetitions of a training differ
SAME = 0.001  # largest difference between the mAP of a log and of the evaluation of the same best.pt
CUT = 24  # most characters of a value in the printed table


class RunError(ValueError):
    """A folder holds no run that can be compared; the message gives the reason."""


class Run(NamedTuple):
    """The contents of a run folder that are compared."""

    folder: Path
    config: dict[str, Any]
    rows: list[dict[str, float]]  # of log.csv, with the columns NUMBERS and, of evaluated epochs, AP
    data: tuple[str, str]  # validation data and classes, as text; equal: the mAPs can be compared
    training: str  # the training data, as text
    written: dict[str, Any]  # the constants as they were typed; {}: not known

    @property
    def evaluated(self) -> list[dict[str, float]]:
        """The rows with an mAP; none if the validation data have no boxes."""
        return [row for row in self.rows if row.get("AP", -1) >= 0]

    @property
    def best(self) -> dict[str, float]:
        """The first row with the highest mAP; {} if no row has one."""
        return max(self.evaluated, key=lambda row: row["AP"], default={})

    @property
    def minutes(self) -> list[float]:
        """The minutes of training until the end of each epoch, without evaluations."""
        return [sum(row["seconds"] for row in self.rows[: i + 1]) / 60 for i in range(len(self.rows))]

    @property
    def images(self) -> int:
        """The number of training images that the network processed."""
        return round(sum(row["seconds"] * row["images_per_second"] for row in self.rows))


def read_run(folder: Path) -> Run:
    """Reads a run folder. Raises RunError if it holds no finished epoch, or a damaged file."""
    if not folder.is_dir():
        near = near_run("runs", str(folder))
        hint = f"; did you mean {near}?" if near else ""
        raise RunError("not a folder" if folder.exists() else f"there is no such folder{hint}")
    if not (folder / "config.json").exists():
        raise RunError("no config.json: not a run folder of train.py")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"config.json cannot be read ({first_line(error)})") from error
    if not isinstance(config, dict):
        raise RunError("config.json holds no constants")
    rows = read_log(folder / "log.csv")
    written = written_constants(folder)
    data, training = data_of(folder, config, written), training_of(folder, config, rows)
    if typed := typed_val(folder, config, written):
        config["val"] = typed
    return Run(folder, config, rows, data, training, written)


def read_log(path: Path) -> list[dict[str, float]]:
    """Reads the columns NUMBERS and AP of a log.csv. Raises RunError for an incomplete line."""
    if not path.exists():
        raise RunError("no log.csv: the run has not begun to train")
    rows = []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                before = row.get("epoch") == "0"  # an evaluation of the initial weights, which took no training
                cells = {name: row.get(name) or ("0" if before else None) for name in NUMBERS}
                cells |= {"AP": row["AP"]} if row.get("AP") else {}
                rows.append({name: number(cell, f"line {reader.line_num}: {name}") for name, cell in cells.items()})
    except RunError as error:
        raise RunError(f"log.csv, {error}") from error
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(f"log.csv cannot be read ({first_line(error)})") from error
    if not rows:
        raise RunError("no epoch in log.csv: the first one has not ended")
    return rows


def number(text: str | None, where: str) -> float:
    """Parses a number that is not too large. Raises RunError for anything else, with the place `where`."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not abs(value) < LARGEST:
        given = repr(text[:CUT]) if text else "missing"
        raise RunError(f"{where} is {given}, not a number below {LARGEST:g}: delete the incomplete line")
    return value


def written_constants(folder: Path) -> dict[str, Any]:
    """Returns the constants of a run as they were typed, without loading its weights; {} if they are not known."""
    try:
        constants = checkpoint.read(folder / "last.pt", on_disk=True)["resume"]["origin"]["written"]
    except (file_checks.CheckpointError, LookupError, TypeError):
        return {}
    return constants if isinstance(constants, dict) else {}


def typed_val(folder: Path, config: dict[str, Any], written: dict[str, Any]) -> str | None:
    """Returns `val` of a run as it was typed; None if `config` has it so, or `written` does not have it.

    config.json has val.txt of the run folder instead, if the validation images were split off the training images, or have the
    classes of a model that classes were added to.
    """
    if not written or not own_val(folder, config):
        return None
    typed = val_of(str(written.get("val")), str(written.get("train")))
    try:
        division_of(typed)
    except ConfigError:  # a damaged file
        return None
    return typed


def own_val(folder: Path, config: dict[str, Any]) -> Path | None:
    """Returns the file of validation data in a run folder that config.json names, also after the folder was renamed."""
    val = Path(str(config.get("val")))
    file = folder / val.name
    renamed = not val.exists() and file.exists()
    is_own = val.name in ("val.txt", "val.json") and (val.parent.name == folder.name or renamed)
    return file if is_own else None


def data_of(folder: Path, config: dict[str, Any], written: dict[str, Any]) -> tuple[str, str]:
    """Returns the validation data and the classes of a run as text: equal for two runs whose mAP can be compared."""
    val, file = str(config.get("val")), own_val(folder, config)
    if file:  # split off the training images, or written with the classes of a model that classes were added to
        digest = "missing"
        if file.is_file():
            digest = hashlib.blake2b(file.read_bytes(), digest_size=4).hexdigest()
        typed = typed_val(folder, config, written)
        is_part = typed is None or division_of(typed) is not None
        val = f"{'a part of the training data' if is_part else typed} ({digest})"
    elif config.get("all_labeled"):  # otherwise detections of classes that were not looked for do not count
        val += " with all_labeled=true"
    return f"val {val}", classes_text(folder / "best.pt")


def training_of(folder: Path, config: dict[str, Any], rows: list[dict[str, float]]) -> str:
    """Returns the training data of a run as text, with the number of its images."""
    images = last_start(folder).get("training_images")
    if images is None:  # older versions did not write it
        first = next((row for row in rows if row["epoch"] > 0), rows[0])
        images = round(first["seconds"] * first["images_per_second"])
    return f"{config.get('train')}, {amount(images, 'image')}"


def classes_text(path: Path) -> str:
    """Returns the classes of a checkpoint as text, without loading its weights."""
    if not path.exists():
        return "classes unknown: no best.pt"
    try:
        contents = checkpoint.read(path, on_disk=True)
    except file_checks.CheckpointError as error:
        raise RunError(first_line(error)) from error
    classes = contents.get("classes") if isinstance(contents, dict) else None
    if must := class_names(classes):
        raise RunError(f"{path} is damaged: its classes must be {must}")
    return f"{amount(len(classes), 'class')}: {', '.join(classes)}"


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """Returns the runs, highest mAP first, and the folders that hold none: folder -> reason."""
    runs, refused = [], {}
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except RunError as error:
            refused[str(folder)] = str(error)
    return sorted(runs, key=lambda run: -run.best.get("AP", -1)), refused


def data_marks(runs: Sequence[Run]) -> dict[tuple[str, ...], str]:
    """Returns a letter for all validation data with their classes (data -> A, B, ...), in the order of the runs; {} for one."""
    kinds = list(dict.fromkeys(run.data for run in runs))
    return {data: mark_of(i) for i, data in enumerate(kinds)} if len(kinds) > 1 else {}


def mark_of(index: int) -> str:
    """Returns the letter of the data set with this index: A, B, ... Z, A2, B2, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Returns the table: a header, then a row per run. The constants in which the runs differ are its last columns."""
    names = dict.fromkeys(name for run in runs for name in run.config if name not in (*WHERE, "train"))
    texts = {name: [show(run.config[name]) if name in run.config else "-" for run in runs] for name in names}
    differ = [name for name in names if len(set(texts[name])) > 1]
    marks, trainings = data_marks(runs), {run.training for run in runs}
    head = ["", "run"]
    if marks:
        head.append("data")
    head += ["best mAP", "epoch", "last mAP", "epochs", "minutes", "images"]
    if len(trainings) > 1:
        head.append(TRAINING)
    rows = [head + differ]
    for i, run in enumerate(runs):
        row = [str(i + 1), run.folder.name]
        if marks:
            row.append(marks[run.data])
        best = epoch = last = "-"
        if run.evaluated:
            best, epoch = in_points(run.best["AP"]), f"{run.best['epoch']:.0f}"
            last = in_points(run.evaluated[-1]["AP"])
        epochs = f"{run.rows[-1]['epoch']:.0f} of {show(run.config.get('epochs'))}"
        row += [best, epoch, last, epochs, f"{run.minutes[-1]:.1f}", f"{run.images:,}"]
        if len(trainings) > 1:
            row.append(run.training)
        rows.append(row + [texts[name][i] for name in differ])
    return rows


def class_maps(run: Run) -> dict[str, float]:
    """Returns the mAP of each class with boxes, of the evaluation of best.pt at the end of a training.

    {} without it, or if it is damaged, or of other data: then its mAP is not the highest of the log."""
    try:
        metrics = json.loads((run.folder / "evaluation" / "metrics.json").read_text(encoding="utf-8"))
        maps = {str(name): float(row["AP"]) for name, row in metrics["per_class"].items()}
        is_of_best = abs(float(metrics["AP"]) - run.best.get("AP", -1)) <= SAME
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}
    return {name: value for name, value in maps.items() if 0 <= value <= 1} if is_of_best else {}


def class_table(runs: Sequence[Run]) -> list[list[str]]:
    """Returns the mAP of each class in the runs with the validation data of the best run, largest differences first.

    A header, then a row per class; [] for fewer than two such runs. The last column is the first value minus the second one
    of two runs, and the highest minus the lowest one of more."""
    maps = {str(i): class_maps(run) for i, run in enumerate(runs, 1) if run.data[0] == runs[0].data[0]}
    maps = {number: values for number, values in maps.items() if values}
    if len(maps) < 2:
        return []
    rows = []
    for name in dict.fromkeys(name for values in maps.values() for name in values):
        values = [of_run.get(name) for of_run in maps.values()]
        known = [value for value in values if value is not None]
        change = None
        if len(known) > 1:
            change = known[0] - known[1] if len(maps) == 2 else max(known) - min(known)
        cells = ["-" if value is None else in_points(value) for value in values]
        rows.append((-abs(change or 0), [name, *cells, "-" if change is None else f"{100 * change:+.2f}"]))
    rows.sort(key=lambda row: row[0])
    return [["class", *maps, "difference"], *(row for _, row in rows)]


def repeats(runs: Sequence[Run]) -> list[str]:
    """Returns the mean and the spread of the best mAP of runs that repeat a training with other seeds or folds."""
    groups: dict[str, list[tuple[int, Run, dict[str, str]]]] = {}
    for number, run in enumerate(runs, 1):
        constants = {name: show(value) for name, value in (run.written or run.config).items() if name not in WHERE}
        varied = {name: constants.pop(name, "") for name in REPEATED}
        if run.best:
            data = validated_on(varied["val"]) or run.data[0]
            key = json.dumps([sorted(constants.items()), run.data[1], data])
            groups.setdefault(key, []).append((number, run, varied))
    lines = []
    for rows in groups.values():
        differ = [name for name in REPEATED if len({varied[name] for *_, varied in rows}) > 1]
        if differ:
            numbers, maps = ", ".join(str(number) for number, *_ in rows), [run.best["AP"] for _, run, _ in rows]
            spread = f"mean {in_points(statistics.mean(maps))}, standard deviation {in_points(statistics.stdev(maps))}"
            lines.append(f"best mAP of the runs {numbers}, which differ only in {' and '.join(differ)}: {spread}")
    return lines


def validated_on(val: str) -> str:
    """Returns which part of the training images is for validation, "1/5" and "2/5" alike; "" for other validation data."""
    try:
        division = division_of(val)
    except ConfigError:  # a damaged file
        return ""
    return str(division.fractions) if division else ""


def notes(runs: Sequence[Run]) -> list[str]:
    """Returns the notes below the table: the meaning of its columns, and the data of each letter."""
    lines = [
        "mAP50-95 in percent on the validation data; minutes of training without evaluations; training images processed"
    ]
    if marks := data_marks(runs):
        lines.append("different validation data or classes: compare the mAP only between runs with the same letter")
        lines += [f"data {mark}: {'; '.join(data)}" for data, mark in marks.items()]
    lines += repeats(runs)
    return lines if runs else ["no run to compare"]
