"""Measures the seconds from `python train.py` to the end of the first step, by part: python -m benchmarks.startup

Makes a data set of `lines` lines over the images of `data` and starts a training once, which scans all images. Then it
starts `rounds` trainings for each number of workers, in turn, which reuse the scan but have no cache of decoded images.
Times are medians. Other programs slow everything down, so the load is printed.
"""

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOMENTS = {  # first call of this function (or, with "after", its first return) -> the part that ends there
    "train.main": "imports",
    "train.nets.build": "data read and checked",
    "train.open_run": "model, optimizer, summary",
    "train.open_run after": "run folder",
    "train.fit_one_epoch": "loader",
    "datasets.dataset.Batch.to": "first batch",
    "nets.losses.grid": "forward",
    "train.Updater.step": "assignment, loss",
    "train.Updater.step after": "backward, update",
}
LAST = list(MOMENTS.values())[-1]


@dataclass(frozen=True)
class Config:
    data: str = "data/coco_val2017"  # a folder with instances_*.json and images/
    lines: int = 10_000  # of the annotation file: links to the images under other names
    model: str = "yolox_nano"
    size: int = 416
    batch_size: int = 16
    workers: tuple[int, ...] = (4, 0)
    rounds: int = 3
    json: str = ""  # a file for the measurements


def lay_out(cfg: Config, folder: Path) -> None:
    """Writes train.txt with `lines` lines, and val.txt with one line for each image."""
    from benchmarks import loader

    count = len(list(Path(cfg.data, "images").iterdir()))
    loader.lay_out(loader.Config(data=cfg.data, copies=-(-cfg.lines // count) + 1), folder)
    lines = (folder / "train.txt").read_text().splitlines(keepends=True)
    (folder / "train.txt").write_text("".join(lines[: cfg.lines]))
    (folder / "val.txt").write_text("".join(lines[-count:]))


def stamp(place: str, note: Callable[[], None]) -> None:
    """Makes the function at `place` call `note()` when it is called, or when it returns."""
    path, _, after = place.partition(" ")
    *owners, name = path.split(".")
    owner = sys.modules[owners[0]]
    for part in owners[1:]:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    def noting(*args, **kwargs):
        if not after:
            note()
        answer = function(*args, **kwargs)
        if after:
            note()
        return answer

    setattr(owner, name, noting)


def start(words: list[str]) -> None:
    """Runs `python train.py WORDS` until the first step is done, and prints the times of MOMENTS."""
    marks, out = {}, os.dup(1)

    def note(what: str) -> None:
        marks.setdefault(what, [time.time(), time.process_time()])
        if what == LAST:
            os.write(out, b"\n" + json.dumps(marks).encode())
            os.killpg(0, signal.SIGKILL)  # also the workers: the next start needs the cores

    compile(
        (ROOT / "train.py").read_text(encoding="utf-8"), "train.py", "exec"
    )  # as Python does at every start of a script
    import train

    for place, what in MOMENTS.items():
        stamp(place, lambda what=what: note(what))
    train.main(train.from_command_line(words))


def first_step(cfg: Config, folder: Path, workers: int) -> dict[str, list[float]]:
    """Starts a training and returns the end of each part: seconds since the start in wall time, and in CPU time."""
    words = [f"train={folder}/train.txt", f"val={folder}/val.txt", f"output={folder}/runs", f"workers={workers}"]
    words += [f"model={cfg.model}", f"image_size={cfg.size}", f"batch_size={cfg.batch_size}", "weights=none"]
    command = [sys.executable, __file__, "child", *words, "freeze_epochs=0"]
    shutil.rmtree(folder / "cache" / "decoded-2", ignore_errors=True)
    env = {**os.environ, "THAW_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    with open(folder / "log", "w") as log:
        begin = time.time()
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True
        )
    try:
        marks = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        output = done.stdout[-1000:] + (folder / "log").read_text()[-2000:]
        raise RuntimeError(f"there was no first step:\n{output}") from None
    return {what: [when - begin, cpu] for what, (when, cpu) in marks.items()}


def import_torch() -> list[float]:
    """Seconds of a process that only imports torch: wall time and CPU time."""
    begin = time.time()
    code = "import time, torch; print(time.time(), time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    when, cpu = map(float, done.stdout.split())
    return [when - begin, cpu]


def measure(cfg: Config, folder: Path) -> dict:
    """Seconds of the first start ("cold"), of `import torch` per round, and per number of workers [round][moment]."""
    load = os.getloadavg()[0]
    lay_out(cfg, folder)
    first, torch, found = first_step(cfg, folder, 0), [], {str(n): [] for n in cfg.workers}
    for _ in range(cfg.rounds):
        torch.append(import_torch())
        for workers in cfg.workers:
            marks = first_step(cfg, folder, workers)
            found[str(workers)].append([marks[what] for what in MOMENTS.values()])
    return {"cold": first[LAST], "torch": torch, "starts": found, "load": load}


def table(measured: dict) -> str:
    """The measurements as Markdown: median seconds of wall time (of CPU time) for each part."""
    head = [f"workers={n}" for n in measured["starts"]]
    lines = ["| seconds of wall time (CPU time) | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    parts = []  # [workers][moment] -> seconds of wall time and of processor time
    for rounds in measured["starts"].values():
        over = [[0.0, 0.0]] + [[statistics.median(x) for x in zip(*m, strict=True)] for m in zip(*rounds, strict=True)]
        parts.append([[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(over)])
    for name, *cells in zip(MOMENTS.values(), *parts, strict=True):
        lines.append(f"| {name} | " + " | ".join(f"{wall:.2f} ({cpu:.2f})" for wall, cpu in cells) + " |")
    sums = [[sum(x) for x in zip(*cells, strict=True)] for cells in parts]
    lines.append("| total | " + " | ".join(f"**{wall:.2f}** ({cpu:.2f})" for wall, cpu in sums) + " |")
    wall, cpu = (statistics.median(x) for x in zip(*measured["torch"], strict=True))
    lines.append(
        f"\n`import torch` alone takes {wall:.2f} ({cpu:.2f}). "
        f"The first start, which scans all images, takes {measured['cold'][0]:.1f}."
    )
    return "\n".join(lines)


def main(cfg: Config) -> None:
    """Measures and prints the table."""
    with tempfile.TemporaryDirectory() as name:
        measured = measure(cfg, Path(name))
    import torch

    measured["machine"] = (
        f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    words = [word for word in sys.argv[1:] if not word.startswith("json=")]
    print(f"{measured['machine']}, load {measured['load']:.1f} at the start, {time.strftime('%Y-%m-%d')}; ", end="")
    print(f"`{' '.join(['python -m benchmarks.startup', *words])}`\n\n{table(measured)}")
    if cfg.json:
        Path(cfg.json).write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        start(sys.argv[2:])
    else:
        from utils.config import override

        main(override(Config(), sys.argv[1:]))
