"""Reads run folders for a comparison: their logs, constants and data."""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from engine.environment import last_start
from utils import checkpoint
from utils.file_checks import CheckpointError
from utils.text import amount, first_line

# Columns of log.csv; an empty cell is a value that was not measured.
NUMBERS = ("epoch", "seconds", "images_per_second", "AP")
MAX_NUMBER = 1e12  # no number of a run is larger
PLACES = ("name", "output", "resume")  # constants that are not compared: the table names the folder
REPEATED = ("seed", "val")  # constants in which repetitions of a run differ


class RunError(ValueError):
    """A folder holds no run that can be compared; the message gives the reason."""


class Run(NamedTuple):
    """The contents of a run folder that are compared."""

    folder: Path
    config: dict[str, Any]  # the constants as they were chosen
    written: dict[str, Any]  # the constants as they were typed
    rows: list[dict[str, float]]  # of log.csv, the columns NUMBERS that have a value
    data: tuple[str, str]  # validation data and classes, as text; equal: the mAPs can be compared
    training: str  # the training data, as text
    repeated: str  # equal for runs that differ only in REPEATED

    @property
    def evaluated(self) -> list[dict[str, float]]:
        """The rows with an mAP; none if the validation data have no boxes."""
        return [row for row in self.rows if row.get("AP", -1) >= 0]

    @property
    def best(self) -> dict[str, float]:
        """The first row with the highest mAP; {} if no row has one."""
        return max(self.evaluated, key=lambda row: row["AP"], default={})

    @property
    def minutes(self) -> float:
        """The minutes of training without evaluations."""
        return sum(row.get("seconds", 0) for row in self.rows) / 60

    @property
    def images(self) -> int:
        """The number of training images that the network processed."""
        return round(sum(row.get("seconds", 0) * row.get("images_per_second", 0) for row in self.rows))


def read_run(folder: Path) -> Run:
    """Reads a run folder. Raises RunError if it holds no finished epoch, or a damaged file."""
    if not folder.is_dir():
        raise RunError("there is no such run or folder")
    if not (folder / "config.json").exists():
        raise RunError("no config.json: not a run folder of train.py")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"config.json cannot be read ({first_line(error)})") from error
    if not isinstance(config, dict):
        raise RunError("config.json holds no constants")
    rows = read_log(folder / "log.csv")
    written = config | written_constants(folder)
    data = val_text(folder, config), classes_text(folder / "best.pt")
    val = data[0]
    if own_val(folder, config):
        config["val"] = written["val"]
        val = re.sub(r"^\d+/", "", str(written["val"]))  # 1/5 and 2/5 are folds of one division
    constants = [f"{name}={written[name]}" for name in sorted(written) if name not in (*PLACES, *REPEATED)]
    training, images = str(config.get("train")), last_start(folder).get("training_images")
    if images is not None:
        training += f", {amount(images, 'image')}"
    return Run(folder, config, written, rows, data, training, str((constants, val, data[1])))


def read_log(path: Path) -> list[dict[str, float]]:
    """Reads the columns NUMBERS of a log.csv. Raises RunError for an incomplete line."""
    if not path.exists():
        raise RunError("no log.csv: the run has not begun to train")
    rows = []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                values = {name: float(row[name]) for name in NUMBERS if row.get(name, "") != ""}
                if not all(abs(value) < MAX_NUMBER for value in values.values()):
                    raise ValueError(f"not numbers below {MAX_NUMBER:g}")
                rows.append(values)
    except (OSError, ValueError, TypeError, csv.Error) as error:  # TypeError: the line is cut off
        where = f"log.csv, line {len(rows) + 2}"
        raise RunError(f"{where} cannot be read ({first_line(error)}): delete the incomplete line") from error
    if not rows:
        raise RunError("no epoch in log.csv: the first one has not ended")
    return rows


def written_constants(folder: Path) -> dict[str, Any]:
    """Returns the constants of a run as they were typed, without loading its weights; {} if they are not known."""
    try:
        return dict(checkpoint.read(folder / "last.pt", on_disk=True)["resume"]["origin"]["user_config"])
    except (CheckpointError, LookupError, TypeError, ValueError):
        return {}


def own_val(folder: Path, config: dict[str, Any]) -> Path | None:
    """Returns the validation data that a run wrote to its folder: split off the training images, or with other classes."""
    file = folder / Path(str(config.get("val"))).name
    return file if file.name in ("val.txt", "val.json") and file.is_file() else None


def val_text(folder: Path, config: dict[str, Any]) -> str:
    """Returns the validation data of a run as text: equal for two runs with the same data."""
    if file := own_val(folder, config):
        return f"{file.name} of the run ({hashlib.blake2b(file.read_bytes(), digest_size=4).hexdigest()})"
    if config.get("all_labeled"):  # otherwise detections of classes that are not annotated do not count
        return f"val {config.get('val')} with all_labeled=true"
    return f"val {config.get('val')}"


def classes_text(path: Path) -> str:
    """Returns the classes of a checkpoint as text, without loading its weights."""
    if not path.exists():
        return "classes unknown: no best.pt"
    try:
        classes = checkpoint.read(path, on_disk=True)["classes"]
        return f"{amount(len(classes), 'class')}: {', '.join(classes)}"
    except CheckpointError as error:
        raise RunError(first_line(error)) from error
    except (LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged: it has no list of classes") from error
