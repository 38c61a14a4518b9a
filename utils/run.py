"""The folder of a run, `runs/<name>-<date>-<n>`: constants, environment, log, curves, TensorBoard and checkpoints.

One process of a run writes to it; on other machines, the first one there keeps the checkpoints in a folder of that name.
"""

import csv
import hashlib
import io
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from utils import checkpoint

CURVES_EVERY = 60  # seconds between two drawings of curves.png
INK, FAINT = "#33383d", "#d9dde1"
COLOURS = ("#2a6fbb", "#e07b39", "#3a9d5d", "#b5465a", "#7a5ea8", "#8a7a5c")


def create(output: str | Path, name: str, after: int = 0) -> Path:
    """Makes the folder of a new run, `output/name-2026-01-31-1`; never one that exists, whoever else makes one now.
    Its number is larger than `after`, the largest on other machines (`last_number`)."""
    check_name(name)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    number = max(after, last_number(output, name))
    while True:
        number += 1
        try:
            folder = output / f"{name}-{time.strftime('%Y-%m-%d')}-{number}"
            folder.mkdir()
            return folder
        except FileExistsError:
            continue


def check_name(name: str) -> None:
    """Raises ValueError for a name that no folder can have."""
    if not name.strip() or re.search(r'[/\\:*?"<>|]', name):
        raise ValueError(f"name={name!r} becomes the name of a folder: use letters, digits, - and _")


def last_number(output: str | Path, name: str) -> int:
    """The largest number that a run of that name has today; 0: there is none."""
    return max((n for day, n, _ in runs(output, name) if day == time.strftime("%Y-%m-%d")), default=0)


def newest(output: str | Path, name: str) -> Path | None:
    """The folder of the last run of that name, whether it has saved something or not; None where there is none."""
    return max(runs(output, name), default=(None, None, None))[2]


def runs(output: str | Path, name: str) -> list[tuple[str, int, Path]]:
    """Date, number and folder of all runs of that name, in no order."""
    found = [(order(path), path) for path in Path(output).glob("*") if path.is_dir()]
    return [(*place, path) for place, path in found if path.name == f"{name}-{place[0]}-{place[1]}"]


def order(folder: Path) -> tuple[str, int]:
    """Date and number of a run, by which runs of one name are sorted."""
    match = re.fullmatch(r".*-(\d{4}-\d\d-\d\d)-(\d+)", folder.name)
    return (match[1], int(match[2])) if match else ("", 0)


def started(folder: Path, what: str) -> str | None:
    """What environment.json says of the last start: its "id", different for all, or the "run" that torchrun knows."""
    try:
        return json.loads((folder / "environment.json").read_text(encoding="utf-8"))[what]
    except (OSError, ValueError, KeyError):
        return None


class Run:
    """Writes to the folder of a run.

    `rows`: the log so far, as the checkpoint has it that the run goes on from; what was logged after it is cut, so that
    the log has neither gaps nor doubles. None: another machine keeps the log. `run`: what torchrun knows the run by.
    `marks`: what the curves show as vertical lines, name -> first epoch (`{"thaw": 10, "plain": 35}`).
    """

    def __init__(
        self,
        folder: str | Path,
        config: Mapping[str, Any],
        device: torch.device | str = "cpu",
        marks: Mapping[str, int] | None = None,
        rows: Sequence[Mapping[str, Any]] | None = (),
        run: str | None = None,
    ):
        self.folder, self.marks, self.rows = Path(folder), dict(marks or {}), list(rows or ())
        self.id = secrets.token_hex(8)  # of this start
        self._tensorboard, self._drawn = None, time.monotonic()
        self.saved = time.monotonic()  # when it last tried to save
        written, earlier = self.folder / "environment.json", []
        if written.exists():
            before = json.loads(written.read_text(encoding="utf-8"))
            earlier = [*before.pop("earlier_starts"), before]
        _write(self.folder / "config.json", _json(config))
        _write(written, _json({"id": self.id, "run": run, **environment(device), "earlier_starts": earlier}))
        if rows is not None:
            self._write_log()

    def log(self, row: Mapping[str, Any]) -> None:
        """Adds the row of an epoch to log.csv: `epoch`, `AP` and whatever else; new columns are added to the header."""
        self.rows.append({"epoch": row["epoch"], **{key: value for key, value in row.items() if value is not None}})
        self._write_log()
        if time.monotonic() - self._drawn > CURVES_EVERY:
            self.curves()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers for TensorBoard, tag -> value."""
        for tag, value in values.items():
            self._writer().add_scalar(tag, value, step)

    def picture(self, tag: str, image: np.ndarray, step: int) -> None:
        """A picture uint8 BGR `[H, W, 3]` for TensorBoard."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # a JPEG: the PNG of add_image takes half a second for a page of 16 samples
        size = {"height": image.shape[0], "width": image.shape[1], "colorspace": 3}
        picture = Summary.Image(**size, encoded_image_string=cv2.imencode(".jpg", image)[1].tobytes())
        self._writer().file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=picture)]), step)

    def save(self, name: str, contents: Mapping[str, Any]) -> Path:
        """A checkpoint `name` in the folder, atomically; see utils/checkpoint.py."""
        self.saved = time.monotonic()
        checkpoint.save(self.folder / name, contents)
        return self.folder / name

    def curves(self) -> None:
        """Draws curves.png from the log."""
        draw_curves(self.rows, self.folder / "curves.png", self.marks)
        self._drawn = time.monotonic()

    def close(self) -> None:
        if self.rows:
            self.curves()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _write_log(self) -> None:
        columns = list(dict.fromkeys(["epoch", *(key for row in self.rows for key in row)]))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        _write(self.folder / "log.csv", text.getvalue())

    def _writer(self) -> Any:
        if self._tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import

            purge = self.rows[-1]["epoch"] + 1 if self.rows else 1  # what was written after the checkpoint
            self._tensorboard = SummaryWriter(str(self.folder), purge_step=purge)
        return self._tensorboard


def read_log(path: str | Path) -> list[dict[str, str]]:
    """The rows of a log.csv as text, column -> value; cells that were not logged are left out. No file: no rows."""
    if not Path(path).exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def code(root: str | Path) -> str:
    """A digest of the program in the folder `root`, whether committed or not."""
    digest = hashlib.blake2b(digest_size=6)
    for pattern in ("train.py", "nets/*.py", "utils/*.py", "datasets/*.py"):
        for path in sorted(Path(root).glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def environment(device: torch.device | str) -> dict[str, Any]:
    """What else decides what a run computes: versions, device, threads, commit, command line."""
    device = torch.device(device)
    root = Path(__file__).resolve().parents[1]
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": [sys.executable, *sys.argv],
        "commit": _git(root, "rev-parse", "HEAD"),
        "uncommitted_changes": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),  # to import it takes a second
        "cv2": cv2.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "machine": f"{platform.node()}, {platform.platform()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }


def draw_curves(rows: Sequence[Mapping[str, Any]], path: str | Path, marks: Mapping[str, int] | None = None) -> None:
    """Rows of a log -> a picture: training losses, the loss on the validation pictures, AP, learning rate."""
    from matplotlib.figure import Figure  # no pyplot: no window, no state outside this function

    names = list(dict.fromkeys(key for row in rows for key in row))
    losses = [n for n in names if n.startswith("loss")]
    panels = {
        "losses in training": losses,
        "loss in training and on the validation pictures": [n for n in names if n in ("loss", "val_loss")],
        "average precision": [n for n in names if n in ("AP", "AP50", "AP75")],
        "learning rate": [n for n in names if n.startswith("learning_rate")],
    }
    figure = Figure(figsize=(12, 7.5), dpi=110, layout="constrained")
    for axes, (title, columns) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for column, colour in zip(columns, COLOURS * len(columns), strict=False):
            points = [(int(row["epoch"]), float(row[column])) for row in rows if column in row]
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=column,
                lw=1.8,
                marker="o",
                ms=3 if len(points) < 40 else 0,
            )
        _decorate(axes, title, marks or {}, columns)
    temporary = Path(path).with_name(f".{Path(path).name}.tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, path)


def _decorate(axes: Any, title: str, marks: Mapping[str, int], columns: Sequence[str]) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("epoch", color=INK)
    axes.grid(color=FAINT, lw=0.6)
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    for name, epoch in marks.items():
        axes.axvline(epoch - 0.5, color=INK, lw=0.9, ls=(0, (4, 3)))
        axes.annotate(f" {name}", (epoch - 0.5, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8, color=INK)
    if columns:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    if title.startswith("average"):
        axes.set_ylim(0, 1)


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def _write(path: Path, text: str) -> None:
    """The old or the new text, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)
