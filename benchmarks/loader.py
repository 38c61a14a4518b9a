"""Training samples per second of one core, compared with other trainers, and the time and memory of annotation files.

    python -m benchmarks.loader data=FOLDER             all parts; FOLDER has instances_*.json and images/
    python -m benchmarks.loader parts=workers           wall time of two worker processes and of one; needs 2 idle cores
    python -m benchmarks.loader parts=lines             CPU seconds and memory for reading annotation files

`peers` is the Python of an environment with ultralytics and libreyolo. Every contender is a process that makes batches on
request. The contenders take turns, round by round, and report the CPU seconds of their process.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from benchmarks import peers  # needs nothing of this project

SEED, BATCH = 0, 32  # Ultralytics keeps 8 * BATCH = 256 images
RANGES = {
    "flip": 0.5,
    "rotation": 0.0,
    "scale": (0.5, 1.5),
    "translate": 0.1,
    "shear": 0.0,
}  # the defaults of Ultralytics
RECIPES = {
    "mosaic": RANGES | {"mosaic": 1.0, "mixup": 0.0},
    "rotated": RANGES | {"mosaic": 1.0, "mixup": 0.0, "rotation": 5.0, "shear": 2.0},
    # the defaults of train.py before November 23, 2026
    "default": RANGES | {"mosaic": 0.5, "mixup": 0.0, "rotation": 5.0, "shear": 2.0},
    "yolox": RANGES | {"mosaic": 1.0, "mixup": 1.0, "rotation": 10.0, "shear": 2.0, "scale": (0.1, 2.0)},
}
CONTENDERS = (
    *(f"thaw {recipe} {memory}" for memory in ("cached", "buffer", "uncached") for recipe in RECIPES),
    *("ultralytics", "libreyolo"),
)


@dataclass(frozen=True)
class Config:
    data: str = "data/coco_val2017"  # a folder with instances_*.json and images/; without it only parts=lines runs
    size: int = 640  # of the network's input
    copies: int = 3  # names per image, for a data set larger than any buffer
    rounds: int = 5  # of all contenders in turn; the table has the medians
    samples: int = 96  # per contender and round
    peers: str = ""  # python of an environment with ultralytics and libreyolo; empty: they are skipped
    parts: tuple[str, ...] = ("samples", "workers", "lines")
    only: tuple[str, ...] = ()  # beginnings of contenders' names; empty: all
    lines: tuple[int, ...] = (10_000, 100_000, 1_000_000)  # lines of the annotation files
    json: str = ""  # a file for the results
    child: str = ""  # the contender that this process is; set by the parent process


def lay_out(cfg: Config, folder: Path) -> None:
    """Writes the data set: `copies` links to every image in images/, boxes in labels/ (YOLO) and in train.txt."""
    import numpy as np

    from datasets.check_images import check_images
    from datasets.formats.annotation_file import annotation_line
    from datasets.formats.options import ReadOptions
    from datasets.formats.read import read
    from datasets.scan import clipped_boxes
    from utils.boxes import xyxy_to_cxcywh

    source = next(Path(cfg.data).glob("instances_*.json"))
    data, _ = check_images(
        read(str(source), "val", ReadOptions(image_root=f"{cfg.data}/images", bad_boxes="drop")),
        ReadOptions(bad_boxes="drop"),
    )
    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    every, lines = clipped_boxes(data), []
    for copy in range(cfg.copies):
        for i, (height, width) in enumerate(data.sizes):
            rows = np.arange(data.starts[i], data.starts[i + 1])
            rows = rows[~data.crowd[rows]]
            boxes, labels, name = every[rows], data.labels[rows], f"{copy}_{i:05d}"
            os.symlink(os.path.abspath(data.path(i)), folder / "images" / f"{name}.jpg")
            lines.append(annotation_line(f"images/{name}.jpg", boxes, labels, data.crowd[rows]))
            rows = xyxy_to_cxcywh(boxes) / (width, height, width, height)
            text = "".join(f"{c} {' '.join(f'{v:.6f}' for v in row)}\n" for c, row in zip(labels, rows, strict=True))
            (folder / "labels" / f"{name}.txt").write_text(text)
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "classes.txt").write_text("\n".join(data.classes) + "\n")


def ours(folder: Path, size: int, recipe: str, memory: str) -> tuple[Callable, Callable]:
    """Returns sample(position) and collate. With memory="cached" all images are decoded in advance."""
    from datasets.cache import ImageCache
    from datasets.check_images import check_images
    from datasets.dataset import DetectionDataset, Key, collate, epoch_order
    from datasets.formats.read import read
    from datasets.mosaic import Augment

    data, _ = check_images(read(str(folder / "train.txt"), "train"))
    files, kept = {"cached": (64e9, None), "buffer": (0.0, None), "uncached": (0.0, 0.0)}[memory]
    found = DetectionDataset(data, "corner", Augment(**RECIPES[recipe]), seed=SEED, cache=ImageCache(files, kept))
    if memory == "cached":
        for index in range(len(found)):
            found.cache.read(found.annotations.path(index), 1)
    shape, count = (size, size), len(found)

    def sample(position: int):
        epoch, place = divmod(position, count)
        return found[Key(epoch, place, int(epoch_order(count, SEED, epoch)[place]), shape)]

    return sample, collate


def in_random_order(data) -> Callable:
    """Returns sample(position), with another order in each epoch."""
    import numpy as np

    orders = {}

    def sample(position: int):
        epoch, place = divmod(position, len(data))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((SEED, epoch)).permutation(len(data))
        return data[int(orders[epoch][place])]

    return sample


def serve(cfg: Config) -> None:
    """A contender: reads numbers of samples from stdin, makes them in batches, and prints {"wall", "cpu"} seconds."""
    import cv2
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr  # libraries may print anything to stdout
    name, *how = cfg.child.split()
    if name == "thaw":
        sample, collate = ours(Path(cfg.data), cfg.size, *how)
    else:
        data, collate = peers.SAMPLES[name](Path(cfg.data), cfg.size, BATCH)
        sample = in_random_order(data)
    cv2.setNumThreads(0)
    print("ready", *([] if name == "thaw" else [version(name)]), file=out, flush=True)
    position = 0
    for line in sys.stdin:
        begin, cpu = time.perf_counter(), time.process_time()
        for first in range(position, position + int(line), BATCH):
            collate([sample(p) for p in range(first, first + BATCH)])
        position += int(line)
        print(json.dumps({"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}), file=out, flush=True)


class Contender:
    """A process that makes samples on request."""

    def __init__(self, python: str, cfg: Config, folder: Path, child: str) -> None:
        command = [python, __file__, f"data={folder}", f"size={cfg.size}", f"child={child}"]
        root = str(Path(__file__).parents[1])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "YOLO_VERBOSE": "false", "YOLO_OFFLINE": "1"}
        env["THAW_CACHE"] = str(folder / "cache")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=env, text=True, **(pipes | {"stderr": open(folder / "log", "a")}))
        word, _, self.version = self._process.stdout.readline().strip().partition(" ")
        if word != "ready":
            raise RuntimeError(f"{child} does not start:\n{(folder / 'log').read_text()[-2000:]}")

    def round(self, samples: int) -> dict[str, float]:
        """Requests samples and returns the seconds that they took."""
        print(samples, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def race(cfg: Config, folder: Path) -> dict[str, dict]:
    """Returns "speeds", samples per CPU second by contender and round, and "peers", versions of the other trainers.

    The first round is a warm-up and does not count.
    """
    children = [name for name in CONTENDERS if not cfg.only or name.startswith(cfg.only)]
    if not cfg.peers:
        print("peers: skipped; give peers=PYTHON of an environment with ultralytics and libreyolo", file=sys.stderr)
        children = [name for name in children if name.startswith("thaw")]
    runners = {c: Contender(sys.executable if c.startswith("thaw") else cfg.peers, cfg, folder, c) for c in children}
    speeds = {child: [] for child in children}
    for number in range(cfg.rounds + 1):
        for child, runner in runners.items():
            seconds = runner.round(cfg.samples if number else 10 * BATCH)
            if number:
                speeds[child].append(cfg.samples / seconds["cpu"])
    for runner in runners.values():
        runner.end()
    return {"speeds": speeds, "peers": {child: runner.version for child, runner in runners.items() if runner.version}}


def two_workers(cfg: Config) -> None:
    """A contender: reads numbers of workers from stdin, runs an epoch of the training loader, prints wall seconds."""
    import torch

    from datasets.cache import ImageCache
    from datasets.check_images import check_images
    from datasets.dataset import DetectionDataset
    from datasets.formats.read import read
    from datasets.loader import TrainSampler, build_loader
    from datasets.mosaic import Augment

    torch.set_num_threads(1)
    data, _ = check_images(read(f"{cfg.data}/train.txt", "train"))
    found = DetectionDataset(data, "corner", Augment(**RECIPES["mosaic"]), seed=SEED, cache=ImageCache(64e9))
    sampler = TrainSampler(len(data), BATCH // 2, (cfg.size, cfg.size), SEED)  # 16 images per step
    loaders = {n: build_loader(found, sampler, n) for n in (1, 2)}
    for loader in loaders.values():
        for _ in loader:  # one epoch starts the workers and decodes the images
            pass
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in loaders[int(line)]:
            pass
        print(json.dumps({"wall": time.perf_counter() - begin}), flush=True)


def parse(cfg: Config) -> None:
    """Reads an annotation file and prints the seconds and the peak memory of this process."""
    from datasets.formats.read import read

    before, begin = peak_mb(), time.process_time()
    count = len(read(cfg.data, "train"))
    seconds = time.process_time() - begin
    print(json.dumps({"lines": count, "seconds": seconds, "mb": peak_mb(), "mb before": before}))


def peak_mb() -> float:
    """Peak memory of this process on Linux (getrusage may report the parent process's)."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024


def parsing(cfg: Config, folder: Path) -> list[dict]:
    """Runs `parse` in a process for each number of lines, with three boxes per line."""
    found = []
    for count in cfg.lines:
        path = folder / f"{count}.txt"
        with open(path, "w") as file:
            for i in range(count):
                boxes = (
                    f"{i % 97 + k},{i % 89 + k}.5,{i % 97 + 50 + k},{i % 89 + 70},{(i + k) % 80}" for k in range(3)
                )
                file.write(f"images/train/{i:012d}.jpg {' '.join(boxes)}\n")
        command = [sys.executable, "-m", "benchmarks.loader", f"data={path}", "child=parse"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[1])
        found.append(json.loads(done.stdout))
        path.unlink()
    return found


def tables(results: dict) -> str:
    """The results as Markdown."""
    medians = {name: statistics.median(speeds) for name, speeds in results["speeds"].items()}
    others = [name for name in ("ultralytics", "libreyolo") if name in medians]
    versions = "".join(f", {name} {number}" for name, number in results["peers"].items())
    lines = [f"{results['hardware']}{versions}, {results['date']}; `{results['command']}`"]
    if medians:
        head = [
            "contender",
            "samples per second of one core",
            "lowest - highest",
            *(f"relative to {p}" for p in others),
        ]
        lines += ["", f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, median in medians.items():
        speeds = results["speeds"][name]
        ratios = [f"{median / medians[peer]:.2f}" for peer in others]
        row = [name, f"{median:.0f}", f"{min(speeds):.0f} - {max(speeds):.0f}", *ratios]
        lines.append(f"| {' | '.join(row)} |")
    if results["workers"]:
        ratio = statistics.median(one / two for one, two in results["workers"])
        lines += [
            "",
            f"Two worker processes make {ratio:.2f} times as many samples as one (wall time, decoded images cached).",
        ]
    if results["parsing"]:
        lines += ["", "| lines | CPU seconds | peak memory, MB | before reading, MB |", "|---:|---:|---:|---:|"]
    for one in results["parsing"]:
        lines.append(f"| {one['lines']:,} | {one['seconds']:.2f} | {one['mb']:.0f} | {one['mb before']:.0f} |")
    return "\n".join(lines)


def about() -> dict[str, str]:
    """Hardware, versions and command."""
    import cv2
    import numpy as np
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, OpenCV {cv2.__version__}"
    hardware = f"{os.cpu_count()} cores {platform.machine()}, {versions}, NumPy {np.__version__}"
    words = [word for word in sys.argv[1:] if not word.startswith(("peers=", "json="))]
    return {
        "hardware": hardware,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.loader", *words]),
    }


def main() -> None:
    """Prints the tables, and writes the results to `json`."""
    from utils.config import override

    cfg = override(Config(), sys.argv[1:])
    if cfg.child:
        {"parse": parse, "workers": two_workers}.get(cfg.child, serve)(cfg)
        return
    results = about() | {"speeds": {}, "peers": {}, "workers": [], "parsing": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if Path(cfg.data).is_dir():
            lay_out(cfg, folder)
        else:
            print(f"{cfg.data}: no such folder; samples per second are skipped", file=sys.stderr)
            cfg = replace(cfg, parts=tuple(part for part in cfg.parts if part == "lines"))
        if "samples" in cfg.parts:
            results |= race(cfg, folder)
        if "workers" in cfg.parts:
            runner = Contender(sys.executable, cfg, folder, "workers")
            results["workers"] = [[runner.round(n)["wall"] for n in (1, 2)] for _ in range(cfg.rounds)]
            runner.end()
        if "lines" in cfg.parts:
            results["parsing"] = parsing(cfg, folder)
    print(tables(results))
    if cfg.json:
        Path(cfg.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
