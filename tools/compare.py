"""Compares runs: mAP, minutes, and the constants in which they differ.

    python -m tools.compare runs/*

runs/* are run folders of train.py, or names of runs, of which the newest counts. Prints a table, highest mAP first, and the mean
and the spread of runs that differ only in their seed or fold. Folders without a finished epoch are listed with the reason.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import csv
import glob
import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets.sources import val_of
from engine.runs import nearest_run, run_of
from utils import checkpoint
from utils.config import show
from utils.script import run_script
from utils.text import aligned, brief, first_line, in_points, printable

NAMES = ("name", "output", "resume")  # constants that are not compared: the table names the folder
NOTE = """mAP50-95 in percent on the validation data; minutes of training without evaluations. Compare the mAP only of runs
with the same val= and classes, for val=.2 with the same train=, and with the same all_labeled="""
REPEATED = ("seed", "val")  # constants in which repetitions of a run differ


class Run(NamedTuple):
    """The contents of a run folder that are compared."""

    folder: Path
    constants: dict[str, Any]  # as the user wrote them
    epochs: int  # of the run, also if it chose them
    rows: list[dict[str, float]]  # of log.csv, with the values that were measured
    classes: str

    @property
    def evaluated(self) -> list[dict[str, float]]:
        """The rows with an mAP; none if the validation data have no boxes."""
        return [row for row in self.rows if row.get("AP", -1) >= 0]

    @property
    def best(self) -> dict[str, float]:
        """The first row with the highest mAP; {} if no row has one."""
        return max(self.evaluated, key=lambda row: row["AP"], default={})


def read_run(folder: Path) -> Run:
    """Reads a run folder. Raises ValueError, OSError or LookupError if it holds no finished epoch, or a damaged file."""
    if not (folder / "config.json").exists():
        near = nearest_run("runs", folder.name)
        fix = f"did you mean {near}?" if near else "a run folder of train.py has a config.json"
        raise ValueError(f"there is no such run; {fix}")
    if not (folder / "log.csv").exists():
        raise ValueError("no log.csv: the run has not begun to train")
    constants = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    epochs = constants["epochs"]
    if (folder / "last.pt").exists():
        constants |= checkpoint.read(folder / "last.pt", on_disk=True)["resume"]["origin"]["user_config"]
        constants["val"] = val_of(constants["val"], constants["train"])
    with open(folder / "log.csv", encoding="utf-8", newline="") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    if not rows:
        raise ValueError("no epoch in log.csv: the first one has not ended")
    classes = "unknown: no best.pt"
    if (folder / "best.pt").exists():
        names = checkpoint.read(folder / "best.pt", on_disk=True)["classes"]
        classes = f"{len(names)}: {', '.join(names)}"
    return Run(folder, constants, epochs, rows, classes)


def folders_of(words: Sequence[str]) -> list[Path]:
    """Returns the folders that the words name, each once: a folder, a pattern, or the name of a run in runs."""
    folders = []
    for word in words:
        paths = [] if os.path.exists(word) else sorted(glob.glob(word))  # cmd.exe does not expand patterns
        for path in paths or [word]:
            folders.append(run_of("runs", path, "config.json") or Path(path))
    return list(dict.fromkeys(folders))


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Returns the table: a header, then a row per run. Columns in which all runs are equal are left out at its end."""
    head = ["", "run", "best mAP", "epoch", "last mAP", "epochs", "minutes"]
    rows = []
    for number, run in enumerate(runs, 1):
        best = epoch = last = "-"
        if run.best:
            best, epoch = in_points(run.best["AP"]), f"{run.best['epoch']:.0f}"
            last = in_points(run.evaluated[-1]["AP"])
        epochs = f"{run.rows[-1]['epoch']:.0f} of {run.epochs}"
        minutes = sum(row.get("seconds", 0) for row in run.rows) / 60
        rows.append([str(number), run.folder.name, best, epoch, last, epochs, f"{minutes:.1f}"])
    names = dict.fromkeys(name for run in runs for name in run.constants if name not in NAMES)
    columns = {name: [show(run.constants[name]) if name in run.constants else "-" for run in runs] for name in names}
    columns["classes"] = [run.classes for run in runs]
    for name, texts in columns.items():
        if len(set(texts)) > 1:
            head.append(name)
            for row, text in zip(rows, texts, strict=True):
                row.append(brief(text, 60) if name == "classes" else text)
    return [head, *rows]


def repeats(runs: Sequence[Run]) -> list[str]:
    """Returns the mean and the spread of the best mAP of runs that repeat one with other seeds or folds."""
    groups: dict[tuple, list[tuple[str, Run]]] = {}
    for number, run in enumerate(runs, 1):
        if run.best:
            others = [f"{name}={value}" for name, value in run.constants.items() if name not in (*NAMES, *REPEATED)]
            val = re.sub(r"^\d+/(?=\d+$)", "", str(run.constants.get("val")))  # 1/5 and 2/5 are folds of one division
            groups.setdefault((*sorted(others), val, run.classes), []).append((str(number), run))
    lines = []
    for group in groups.values():
        differ = [name for name in REPEATED if len({show(run.constants.get(name)) for _, run in group}) > 1]
        if differ:
            maps = [run.best["AP"] for _, run in group]
            spread = f"mean {in_points(statistics.mean(maps))}, standard deviation {in_points(statistics.stdev(maps))}"
            numbers = ", ".join(number for number, _ in group)
            lines.append(f"best mAP of the runs {numbers}, which differ only in {' and '.join(differ)}: {spread}")
    return lines


def main(words: Sequence[str]) -> None:
    """Compares the runs of the arguments `words`; exits with status 1 if there is none."""
    if not words or words[0].startswith("-"):
        print(__doc__)
        raise SystemExit(0 if words else 1)
    runs, refused = [], []
    for folder in folders_of(words):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError, LookupError, TypeError) as error:
            refused.append(f"  {folder}: {first_line(error)}")
    runs.sort(key=lambda run: -run.best.get("AP", -1))
    lines = []
    if runs:
        lines += [*aligned(table(runs), ("run", "val", "classes")), NOTE, *repeats(runs)]
    if refused:
        lines += ["", "not compared:", *refused]
    print("\n".join(printable(line.rstrip()) for line in lines))
    if not runs:
        raise SystemExit(1)


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
