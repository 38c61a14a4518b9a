"""Output files of tools and evaluations: which files they may replace, and `write_all`: all files or none."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from utils.config import ConfigError
from utils.files import naming
from utils.text import amount

RESULTS = ("metrics.json", "detections.json", "ground_truth.json", "report.html")


def results_in(folder: str | Path | None) -> list[Path]:
    """Returns the files in a folder that have the names of the results of an evaluation."""
    return [path for name in RESULTS if folder and (path := Path(folder, name)).exists()]


def require_replaceable(option: str, files: Iterable[Path], are_ours: bool, program: str) -> None:
    """Raises ConfigError if one of the files exists, unless an earlier run of the program wrote them.

    `option`: what the user gave, as in output=FOLDER. `are_ours`: whether a mark in the files, or next to them, says so.
    """
    there = next((path for path in files if path.exists()), None)
    if there and not are_ours:
        raise ConfigError(
            f"{option}: {there} would be replaced, and no earlier {program} wrote it: give another name, or delete the file"
        )


def require_evaluation(folder: str | None, data: str | None) -> None:
    """Raises ConfigError if an evaluation would replace its own `data`, or files in a folder that no earlier evaluation wrote."""
    there = results_in(folder)
    try:
        metrics = json.loads(Path(folder, "metrics.json").read_bytes()) if folder and there else {}
        own = isinstance(metrics, dict) and {"evaluator", "settings"} <= metrics.keys()
    except (OSError, ValueError, RecursionError):
        own = False
    require_replaceable(f"output={folder}", there, own, "evaluation")
    if data and Path(data).resolve() in [path.resolve() for path in there]:
        raise ConfigError(f"output={folder}: it holds the data, {data}, which would be replaced: name another folder")


def open_evaluation(folder: Path) -> None:
    """Creates the folder of an evaluation, and deletes the results of an earlier one in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if older := results_in(folder):
        print(f"replacing {amount(len(older), 'file')} of an earlier evaluation in {folder}")
    for path in reversed(older):  # report.html, which is written last, before what it shows
        path.unlink()


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Writes all files or, after an error, none: each to a temporary file, and then all of them are renamed."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, data in contents.items():
            data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
            with naming(path):
                temporary[path].write_bytes(data)
        for path in contents:
            os.replace(temporary[path], path)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
