"""The files of a run folder: constants, environment, log, curves, TensorBoard and checkpoints."""

import csv
import io
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from engine.clock import Clock
from engine.environment import changes_of_code, changes_of_rounding, environment, last_start, run_id
from engine.run_lock import RunInUse, in_use, lock, saved_ns
from engine.run_store import Uploads
from utils import checkpoint, files
from utils.processes import Ranks
from utils.remote import FetchError

CURVES_EVERY = 60  # seconds between two updates of curves.png
TAGS = {  # of TensorBoard, for columns of log.csv
    **{"loss": "loss/total", "val_loss": "loss/validation"},
    **{name: f"time/{name}" for name in ("seconds", "images_per_second")},
    **{name: f"training/{name}" for name in ("learning_rate", "positives", "skipped_steps")},
}
ONLY_LAST = ("code", "earlier_starts")  # large entries of environment.json, kept for the last start only


class Run:
    """Writes the files of a run folder.

    `rows`: the rows of the log up to the checkpoint that the run resumes from. Later rows are removed from log.csv, so that
    it has neither gaps nor repeated epochs. `saved_at`: when that checkpoint was saved (`saved_ns`); raises RunInUse if another
    process has saved since. `run_id`: see `environment.run_id`. `facts`: more entries of environment.json.
    `marks`: vertical lines of the curves, name -> first epoch (`{"thaw": 10}`).

    `clock`: counts what is written, and is written to environment.json at the end.

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
        saved_at: int | None = None,
        run_id: str | None = None,
        facts: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ):
        self.folder, self.marks, self.rows = Path(folder), dict(marks or {}), list(rows)
        self.clock = clock or Clock()
        self.id = secrets.token_hex(8)  # unique for each start of the run
        self.drawn = time.monotonic()  # when the curves were drawn
        self._drawn_rows = 0  # rows of the log in the curves
        self._undrawn: dict[str, Callable[[], np.ndarray]] = {}  # images to draw with the curves
        self.config, self.start = config, {"id": self.id, "run": run_id, **environment(device), **(facts or {})}
        self._writer: Any = None  # of TensorBoard
        # The first epoch of this start: events of an earlier start after its last save are hidden.
        self._hides_from: int | None = self.rows[-1]["epoch"] + 1 if self.rows else 1
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.folder)
        if saved_at and saved_at != saved_ns(self.folder / "last.pt"):
            self._lock.close()
            raise RunInUse(f"{self.folder}: another process has trained this run since this one began: start again")
        self._note_changes(last_start(self.folder))
        _write_json(self.folder / "config.json", self.config)
        self._write_log()
        self._uploads = Uploads(self.folder)
        self._uploads.begin()

    def _note_changes(self, before: Mapping[str, Any]) -> None:
        """Writes environment.json, and prints what has changed since the start `before`."""
        self._earlier = list(before.get("earlier_starts", []))
        if before:
            self._earlier.append({key: value for key, value in before.items() if key not in ONLY_LAST})
        if changes := changes_of_rounding(before, self.start):
            print(f"note: since the last start of this run, {changes}: it is equal up to rounding, not bit-identical")
        if changes := changes_of_code(before, self.start):
            print(f"WARNING: code changed since the last start of this run: {changes}; it continues with the new code")
        self._write_environment()

    def _write_environment(self) -> None:
        _write_json(self.folder / "environment.json", {**self.start, "earlier_starts": self._earlier})

    def is_own(self) -> bool:
        """Whether no other process has opened the folder after this one."""
        last = last_start(self.folder)
        return not last or last.get("id") == self.id  # without a last start, environment.json was deleted

    def require_own(self) -> None:
        """Raises RunInUse if another process has opened the folder after this one."""
        if not self.is_own():
            raise RunInUse(f"{in_use(self.folder)}; this process ends without a save")

    def change(self, config: Mapping[str, Any], marks: Mapping[str, int]) -> None:
        """Replaces the constants, also in config.json, and the vertical lines of the curves."""
        self.config, self.marks = config, dict(marks)
        with files.warn_if_disk_fails():
            _write_json(self.folder / "config.json", self.config)

    def log(self, row: Mapping[str, Any], is_last: bool = False) -> None:
        """Adds the row of an epoch to log.csv: `epoch`, `AP` and any others. New columns are added to the header."""
        self.rows.append({"epoch": row["epoch"], **{key: value for key, value in row.items() if value is not None}})
        with self.clock.during("log"):
            self._write_log()
        if is_last or time.monotonic() - self.drawn > CURVES_EVERY:
            self.curves()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers to TensorBoard, tag -> value."""

        from torch.utils.tensorboard import SummaryWriter  # loads TensorBoard

        with self.clock.during("log"), files.warn_if_disk_fails():
            # After an error of the disk, the next call begins a new file.
            writer, self._writer = self._writer or SummaryWriter(self.folder, purge_step=self._hides_from), None
            self._hides_from = None
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)
            writer.flush()  # raises the error of the thread that writes
            self._writer = writer

    def image(self, name: str, image: np.ndarray) -> None:
        """Writes an image, uint8 BGR `[H, W, 3]`, to the run folder as NAME.jpg."""
        with self.clock.during("log"), files.warn_if_disk_fails():
            jpeg = cv2.imencode(".jpg", image)[1].tobytes()
            with files.atomic_write(self.folder / f"{name}.jpg") as file:
                file.write(jpeg + files.DRAWN_MARK)

    def image_later(self, name: str, draw: Callable[[], np.ndarray]) -> None:
        """Writes an image when the curves are drawn next, unless a later one takes its place: reading photos takes a second."""
        self._undrawn[name] = draw

    def save(self, name: str, contents: Mapping[str, Any]) -> None:
        """Writes the checkpoint `name` atomically; see checkpoint.save."""
        checkpoint.save(self.folder / name, contents)
        self._uploads.begin()

    def curves(self) -> None:
        """Draws curves.png from the log, and the images of `image_later`."""
        self.drawn = time.monotonic()
        with self.clock.during("log"), files.warn_if_disk_fails():
            from report import plots  # loads matplotlib, which needs a folder that it can write to

            plots.draw_curves(self.rows, self.folder / "curves.png", self.marks)
            self._drawn_rows = len(self.rows)
            for name in list(self._undrawn):
                self.image(name, self._undrawn.pop(name)())

    def close(self) -> None:
        """Draws the final curves, writes what TensorBoard still lacks and the account of the time, and frees the folder."""
        failed = sys.exc_info()[0] is not None
        try:
            if len(self.rows) > self._drawn_rows:
                self.curves()
        except Exception:
            if not failed:  # otherwise the first error counts; it may have interrupted the import of Matplotlib
                raise
        if self._writer:
            with files.warn_if_disk_fails():
                self._writer.close()
        if self.is_own():
            self.start["seconds"] = {part: round(seconds, 3) for part, seconds in self.clock.seconds.items()}
            with files.warn_if_disk_fails():
                self._write_environment()
        self._lock.close()
        if problem := self._uploads.close():
            if not failed:
                raise FetchError(problem)
            print(f"WARNING: {problem}")

    def _write_log(self) -> None:
        with files.atomic_write(self.folder / "log.csv") as file:
            file.write(log_text(self.rows))


def log_text(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the contents of log.csv."""
    text, columns = io.StringIO(newline=""), dict.fromkeys(name for row in ({"epoch": 0}, *rows) for name in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


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


def open_run(folder: Path, config: dict, ranks: Ranks, **options: Any) -> Run | None:
    """Opens a run folder and returns the Run on rank 0, which writes to it. For the arguments see `Run`."""
    run = None

    def opened() -> None:
        nonlocal run
        run = Run(folder, config, device=ranks.device, run_id=run_id(), **options)

    ranks.on_main(opened)  # an error ends the other ranks, too
    return run
