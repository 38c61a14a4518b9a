"""The run folder, `runs/<name>-<date>-<number>`: constants, environment, log, curves, TensorBoard and checkpoints."""

import csv
import difflib
import io
import itertools
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from engine.environment import changes_of_code, changes_of_rounding, environment, last_start, run_id
from engine.run_lock import RunInUse, in_use, lock
from engine.run_store import Uploads, address_of_run, claim, run_root
from utils import checkpoint, files
from utils.config import ConfigError, is_weights
from utils.processes import Ranks
from utils.remote import FetchError
from utils.text import brief

COMMON = "several nodes need output= on a disk that all of them share, or in a bucket, such as output=s3://BUCKET/runs"
CURVES_EVERY = 60  # seconds between two updates of curves.png
TAGS = {  # of TensorBoard, for columns of log.csv
    **{"loss": "loss/total", "val_loss": "loss/validation"},
    **{name: f"time/{name}" for name in ("seconds", "images_per_second")},
    **{name: f"training/{name}" for name in ("learning_rate", "positives", "skipped_steps")},
}
ONLY_LAST = ("code", "earlier_starts")  # large entries of environment.json, kept for the last start only


def create(output: str | Path, name: str, ranks: Ranks | None = None) -> Path:
    """Makes and returns the folder of a new run, `output/name-2026-01-31-1`. Never returns an existing folder.

    It sorts after all runs of that name, so its date is not before theirs, even if the clock was set back. With `ranks`, rank 0
    makes the folder.
    """
    output = run_root(output)

    def make() -> Path:
        newest = max(map(date_and_number, runs(output, name)), default=("", 0))
        today, used = max((time.strftime("%Y-%m-%d"), 0), newest)
        output.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(used + 1):
            with suppress(FileExistsError):  # another process has just made it
                folder = output / f"{name}-{today}-{number}"
                folder.mkdir()
                if claim(folder):  # in a bucket, another computer may have just taken it
                    return folder

    return output / (ranks or Ranks()).on_main(make).name


def require_common(folder: Path, ranks: Ranks) -> None:
    """Raises ConfigError, before the data are read, if the nodes do not all see the folder of the runs.

    The folder in the cache for a bucket may be a different one on each node."""
    if len(ranks.node_ranks) == ranks.world_size or address_of_run(folder):
        return

    def make() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        name = f".common-{secrets.token_hex(8)}"  # a new name, which no cache of a network disk knows
        (folder / name).touch()
        return name

    def check() -> None:
        if not (folder / name).exists():
            raise ConfigError(f"{folder.absolute()} on {socket.gethostname()} is not the folder of rank 0: {COMMON}")

    name = ranks.on_main(make)
    try:
        ranks.once_per_node(check)
    finally:
        if ranks.is_main:
            (folder / name).unlink()


def check_name(name: str) -> None:
    """Raises ValueError for a run name that cannot be part of a folder name."""
    most = 255 - len("-2026-01-31-10000")  # bytes of a name on most disks
    if not name.strip(" .") or re.search(r'[/\\:*?"<>|]', name) or len(os.fsencode(name)) > most:
        must = f"use letters, digits, - and _, at most {most} bytes"
        raise ValueError(f"name={brief(repr(name))} becomes the name of a folder: {must}")


def runs(output: str | Path, name: str) -> list[Path]:
    """Returns the run folder of this name in `output`, or the folders of every run of that name, the oldest first."""
    return of_name([path for path in run_root(output).glob("*") if path.is_dir()], name)


def of_name(folders: Iterable[Path], name: str) -> list[Path]:
    """Returns the folder of this name, or those of every run of that name, the oldest first."""
    own = [path for path in folders if path.name in (name, "-".join([name, *map(str, date_and_number(path))]))]
    return sorted(own, key=date_and_number)


def newest_of(folders: Iterable[Path], name: str) -> Path | None:
    """Returns the last folder of `of_name`."""
    return next(reversed(of_name(folders, name)), None)


def run_of(output: str | Path, name: str, file: str = "environment.json") -> Path | None:
    """Returns the run folder that `name` means, or None: this path, or the newest in `output` of that name.

    Only a folder with `file` counts, so that a folder of data with the name of a run does not hide it.
    """
    if os.path.isfile(Path(name) / file):  # False also for a name that is too long
        return Path(name)
    return next((run for run in reversed(runs(output, name)) if (run / file).exists()), None)


def best_of(output: str | Path, name: str, option: str) -> Path | None:
    """Returns the best.pt of the run that `name` means; None for a file, and for a name that is no run's.

    `option`: that of the user, such as "weights=". Raises ConfigError for a run without best.pt, and for a name that is nearly
    that of a run.
    """
    if os.path.isfile(name) or is_weights(name):
        return None
    if run := run_of(output, name, "best.pt"):
        return run / "best.pt"
    if run := run_of(output, name):
        last = run / "last.pt"
        raise ConfigError(f"{option}{name}: {run} has no best.pt: resume it, or write {option}{last}")
    if not os.path.exists(name) and (near := near_run(output, name)):
        raise ConfigError(f"{option}{name}: there is no such file or run; did you mean {option}{near}?")
    return None


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, and not of data or results: it has environment.json."""
    return os.path.isfile(folder / "environment.json")  # False also for a name that is too long, or without permission


def near_run(output: str | Path, name: str) -> str | None:
    """Returns the name of a run in `output` that is nearly `name`, or None."""
    dates = {path: "-".join(["", *map(str, date_and_number(path))]) for path in run_root(output).glob("*-*-*-*-*")}
    names = {path.name.removesuffix(date) for path, date in dates.items()}
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def date_and_number(folder: Path) -> tuple[str, int]:
    """Returns date and number of a run folder, by which runs of one name are sorted."""
    match = re.fullmatch(r".*-(\d{4}-\d\d-\d\d)-(\d+)", folder.name)
    return (match[1], int(match[2])) if match else ("", 0)


class Run:
    """Writes the files of a run folder.

    `rows`: the rows of the log up to the checkpoint that the run resumes from. Later rows are removed from log.csv, so that
    it has neither gaps nor repeated epochs. `run_id`: see `environment.run_id`. `facts`:
    more entries of environment.json. `marks`: vertical lines of the curves, name -> first epoch (`{"thaw": 10}`).

    TensorBoard and curves are only for looking at: a full disk is a warning there, and TensorBoard misses some points.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Mapping[str, Any],
        *,
        device: torch.device | str = "cpu",
        marks: Mapping[str, int] | None = None,
        rows: Sequence[Mapping[str, Any]] = (),
        run_id: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ):
        self.folder, self.marks, self.rows = Path(folder), dict(marks or {}), list(rows)
        self.id = secrets.token_hex(8)  # unique for each start of the run
        self.drawn = self.saved = time.monotonic()  # when the curves were drawn, and when a save was last attempted
        self.config, self.start = config, {"id": self.id, "run": run_id, **environment(device), **(facts or {})}
        self._writer: Any = None  # of TensorBoard
        self._uploads: Uploads | None = None
        self._open()

    def _open(self) -> None:
        self._writer = None  # in this folder, which may be a new one
        # The first epoch of this start: events that an earlier start wrote after its last save are hidden.
        self._hides_from: int | None = self.rows[-1]["epoch"] + 1 if self.rows else 1
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.folder)
        before = last_start(self.folder)
        earlier = before.get("earlier_starts", [])
        if before:
            earlier = [*earlier, {key: value for key, value in before.items() if key not in ONLY_LAST}]
        if changes := changes_of_rounding(before, self.start):
            print(
                f"note: {changes} since the last start of this run: it continues equal up to rounding, not bit-identical"
            )
        if changes := changes_of_code(before, self.start):
            print(f"WARNING: code changed since the last start of this run: {changes}; it continues with the new code")
        _write_json(self.folder / "config.json", self.config)
        _write_json(self.folder / "environment.json", {**self.start, "earlier_starts": earlier})
        self._write_log()
        self._uploads = self._uploads or Uploads(self.folder)
        self._uploads.begin()

    def check_folder(self) -> None:
        """Makes the folder again if it is gone. Raises RunInUse if another process has opened it after this one."""
        last = last_start(self.folder)
        if not self.folder.is_dir():
            print(
                f"WARNING: {self.folder} was moved or deleted: a new folder of that name gets what is saved from now on"
            )
            self._open()
        elif last and last.get("id") != self.id:  # without a last start, environment.json was deleted
            raise RunInUse(f"{in_use(self.folder)}; this process ends without a save")

    def change(self, config: Mapping[str, Any], marks: Mapping[str, int]) -> None:
        """Replaces the constants, also in config.json, and the vertical lines of the curves."""
        self.config, self.marks = config, dict(marks)
        with files.warn_if_disk_fails():
            _write_json(self.folder / "config.json", self.config)

    def log(self, row: Mapping[str, Any]) -> None:
        """Adds the row of an epoch to log.csv: `epoch`, `AP` and any others. New columns are added to the header."""
        self.rows.append({"epoch": row["epoch"], **{key: value for key, value in row.items() if value is not None}})
        self._write_log()
        if time.monotonic() - self.drawn > CURVES_EVERY:
            self.curves()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers to TensorBoard, tag -> value."""

        def write(writer: Any) -> None:
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)

        self._to_tensorboard(write)

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Writes an image, uint8 BGR `[H, W, 3]`, to the run folder as NAME.jpg and to TensorBoard."""
        jpeg = cv2.imencode(".jpg", image)[1].tobytes()
        with files.warn_if_disk_fails():
            (self.folder / f"{name}.jpg").write_bytes(jpeg)
        encoded = {"height": len(image), "width": len(image[0]), "colorspace": 3, "encoded_image_string": jpeg}

        def write(writer: Any) -> None:  # not add_image, which would write a large PNG
            from tensorboard.compat.proto.summary_pb2 import Summary  # loads TensorBoard

            writer.file_writer.add_summary(Summary(value=[{"tag": name, "image": encoded}]), step)

        self._to_tensorboard(write)

    def save(self, name: str, contents: Mapping[str, Any]) -> None:
        """Writes the checkpoint `name` atomically; see checkpoint.save."""
        self.saved = time.monotonic()
        checkpoint.save(self.folder / name, contents)
        if self._uploads:
            self._uploads.begin()

    def curves(self) -> None:
        """Draws curves.png from the log."""
        from report import plots  # loads matplotlib

        self.drawn = time.monotonic()
        with files.warn_if_disk_fails():
            plots.draw_curves(self.rows, self.folder / "curves.png", self.marks)

    def close(self) -> None:
        """Draws the final curves, writes what TensorBoard still lacks, and frees the lock of the folder."""
        failed = sys.exc_info()[0] is not None
        try:
            if self.rows:
                self.curves()
        except Exception:
            if not failed:  # otherwise the first error counts; it may have interrupted the import of Matplotlib
                raise
        if self._writer:
            with files.warn_if_disk_fails():
                self._writer.close()
        self._lock.close()
        if self._uploads and (problem := self._uploads.close()):
            if not failed:
                raise FetchError(problem)
            print(f"WARNING: {problem}")

    def _write_log(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns_of(self.rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        with files.atomic_write(self.folder / "log.csv") as file:
            file.write(text.getvalue().encode("utf-8"))

    def _to_tensorboard(self, write: Callable[[Any], None]) -> None:
        """Calls `write(writer)` and flushes the writer. After an error of the disk, the next call begins a new file."""
        from torch.utils.tensorboard import SummaryWriter  # loads TensorBoard

        if not self.folder.is_dir():  # it was moved, and the next save makes a new one
            return
        with files.warn_if_disk_fails():
            writer, self._writer = self._writer or SummaryWriter(self.folder, purge_step=self._hides_from), None
            self._hides_from = None
            write(writer)
            writer.flush()  # raises the error of the thread that writes
            self._writer = writer


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the columns of log.csv, in the same order whichever row comes first: an evaluation, or an epoch without one.

    A column that a row adds stands after the column before it in that row.
    """
    columns = ["epoch"]
    for row in rows:
        place = 0
        for name in row:
            if name not in columns:
                columns.insert(place, name)
            place = columns.index(name) + 1
    return columns


def tensorboard_scalars(row: Mapping[str, float]) -> dict[str, float]:
    """Returns a row of log.csv as scalars of TensorBoard, whose tags are grouped: loss/box, metrics/AP50, time/seconds.

    Metrics of -1 are left out: there was nothing to measure.
    """
    scalars = {}
    for name, value in row.items():
        if name in TAGS:
            scalars[TAGS[name]] = value
        elif name.startswith("loss_"):
            scalars[f"loss/{name.removeprefix('loss_')}"] = value
        elif name != "epoch" and value != -1:
            scalars[f"metrics/{name}"] = value
    return scalars


def _write_json(path: Path, value: Any) -> None:
    with files.atomic_write(path) as file:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
        file.write(text.encode("utf-8", "backslashreplace"))  # a lone surrogate becomes its JSON escape


def open_run(folder: Path, config: dict, ranks: Ranks, *, marks: dict, rows: tuple, training_images: int) -> Run | None:
    """Opens a run folder and returns the Run on rank 0, which writes to it. For the arguments see `Run`."""
    run = None
    facts = {"processes": ranks.world_size, "training_images": training_images}

    def opened() -> None:
        nonlocal run
        run = Run(folder, config, device=ranks.device, marks=marks, rows=rows, run_id=run_id(), facts=facts)

    ranks.on_main(opened)  # an error ends the other ranks, too
    return run
