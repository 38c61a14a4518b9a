"""Training samples a second of one core, beside other trainers, and what annotation files cost.

    python -m benchmarks.loader                     all parts; peers=PYTHON of an environment with ultralytics and libreyolo
    python -m benchmarks.loader parts=workers       two worker processes against one, by the clock: needs two idle cores
    python -m benchmarks.loader parts=lines         seconds and memory for annotation files

Every contender is a process of its own that makes batches when it is told to; all take turns, round by round, and count
the seconds that their processor worked.
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

SEED, BATCH = 0, 32  # Ultralytics keeps 8 * BATCH = 256 pictures
RANGES = {"flip": 0.5, "rotation": 0.0, "scale": (0.5, 1.5), "translate": 0.1, "shear": 0.0}  # Ultralytics' own
RECIPES = {
    "mosaic": RANGES | {"mosaic": 1.0, "mixup": 0.0},
    "turned": RANGES | {"mosaic": 1.0, "mixup": 0.0, "rotation": 5.0, "shear": 2.0},
    "shipped": RANGES | {"mosaic": 0.5, "mixup": 0.0, "rotation": 5.0, "shear": 2.0},
    "yolox": RANGES | {"mosaic": 1.0, "mixup": 1.0, "rotation": 10.0, "shear": 2.0, "scale": (0.1, 2.0)},
}
CONTENDERS = (
    *(f"thaw {recipe} {memory}" for memory in ("cached", "buffer", "nothing") for recipe in RECIPES),
    *("ultralytics", "libreyolo"),
)


@dataclass(frozen=True)
class Config:
    data: str = "../shared/data/coco_val326"  # a folder with instances_*.json and images/; skipped where there is none
    size: int = 640  # of the network's input
    copies: int = 3  # each picture under so many names: a data set larger than any bounded buffer
    rounds: int = 5  # of all contenders in turn; medians are told
    samples: int = 96  # of a contender and round
    peers: str = ""  # the python of an environment with ultralytics and libreyolo; nothing: they are skipped
    parts: tuple[str, ...] = ("samples", "workers", "lines")
    only: tuple[str, ...] = ()  # contenders that begin so; nothing: all of them
    lines: tuple[int, ...] = (10_000, 100_000, 1_000_000)  # of annotation files
    json: str = ""  # a file for the figures
    child: str = ""  # what this process is, where another one started it


def lay_out(cfg: Config, folder: Path) -> None:
    """`copies` names for every picture in folder/images, boxes in folder/labels (YOLO) and folder/train.txt."""
    import numpy as np

    from datasets.annotations import annotation_line
    from datasets.formats import read
    from datasets.images import clipped_boxes, prepare

    source = next(Path(cfg.data).glob("instances_*.json"))
    data, _ = prepare(read(str(source), "val", image_root=f"{cfg.data}/images", bad_boxes="drop"), bad_boxes="drop")
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
            shares = np.column_stack([boxes[:, :2] + boxes[:, 2:], 2 * (boxes[:, 2:] - boxes[:, :2])])
            shares = shares / (2 * width, 2 * height, 2 * width, 2 * height)
            text = "".join(f"{c} {' '.join(f'{v:.6f}' for v in row)}\n" for c, row in zip(labels, shares, strict=True))
            (folder / "labels" / f"{name}.txt").write_text(text)
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "classes.txt").write_text("\n".join(data.classes) + "\n")


def ours(folder: Path, size: int, recipe: str, memory: str) -> tuple[Callable, Callable, int]:
    """-> sample(position), collate, number of samples; what is cached has been decoded before."""
    from datasets.cache import Pictures
    from datasets.dataset import DetectionDataset, Key, collate, epoch_order
    from datasets.formats import read
    from datasets.images import prepare
    from datasets.mosaic import Augment

    data, _ = prepare(read(str(folder / "train.txt"), "train"))
    files, kept = {"cached": (64e9, None), "buffer": (0.0, None), "nothing": (0.0, 0.0)}[memory]
    found = DetectionDataset(data, "corner", Augment(**RECIPES[recipe]), seed=SEED, pictures=Pictures(files, kept))
    if memory == "cached":
        for index in range(len(found)):
            found.pictures.read(found.annotations.path(index), 1)
    shape, count = (size, size), len(found)

    def sample(position: int):
        epoch, place = divmod(position, count)
        return found[Key(epoch, place, int(epoch_order(count, SEED, epoch)[place]), shape)]

    return sample, collate, count


def ultralytics(folder: Path, size: int) -> tuple[Callable, Callable, int]:
    """Its training data set with its default augmentation; the buffer holds 8 * BATCH pictures."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset

    names = dict(enumerate((folder / "classes.txt").read_text().split("\n")[:-1]))
    data = {"names": names, "nc": len(names), "channels": 3}
    found = YOLODataset(str(folder / "images"), size, augment=True, hyp=get_cfg(), batch_size=BATCH, data=data)
    return in_random_order(found), YOLODataset.collate_fn, len(found)


def libreyolo(folder: Path, size: int) -> tuple[Callable, Callable, int]:
    """The data set that its YOLOX trainer builds, with the ranges of its YOLOX configuration; it keeps no pictures."""
    from libreyolo.data.dataset import YOLODataset, yolox_collate_fn
    from libreyolo.training.augment import MosaicMixupDataset, TrainTransform
    from libreyolo.training.config import YOLOXConfig

    cfg = YOLOXConfig()
    pictures = sorted((folder / "images").iterdir())
    labels = [folder / "labels" / f"{path.stem}.txt" for path in pictures]
    preproc = TrainTransform(max_labels=50, flip_prob=cfg.flip_prob, hsv_prob=cfg.hsv_prob)
    plain = YOLODataset(img_files=pictures, label_files=labels, img_size=(size, size), preproc=preproc)
    names = ("degrees", "translate", "mosaic_scale", "mixup_scale", "shear", "mosaic_prob", "mixup_prob")
    ranges = {name: getattr(cfg, name) for name in names}
    found = MosaicMixupDataset(plain, (size, size), mosaic=True, preproc=preproc, enable_mixup=True, **ranges)
    return in_random_order(found), yolox_collate_fn, len(found)


def in_random_order(data) -> Callable:
    """position -> sample, in an order of its own each epoch."""
    import numpy as np

    orders = {}

    def sample(position: int):
        epoch, place = divmod(position, len(data))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((SEED, epoch)).permutation(len(data))
        return data[int(orders[epoch][place])]

    return sample


def serve(cfg: Config) -> None:
    """A contender: for every line with a number makes so many samples in batches -> {"wall", "cpu"} seconds."""
    import cv2
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints
    name, *how = cfg.child.split()
    makers = {"thaw": ours, "ultralytics": ultralytics, "libreyolo": libreyolo}
    sample, collate, _ = makers[name](Path(cfg.data), cfg.size, *how)
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
    """A process that makes samples when it is told to."""

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
        print(samples, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def race(cfg: Config, folder: Path) -> dict[str, dict]:
    """-> "speeds": samples a second of processor time, of every round, by contender; "peers": their versions. The first
    round warms up."""
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
    """A contender: batches of the training loader, with as many workers as it is told -> seconds by the clock."""
    import torch

    from datasets.cache import Pictures
    from datasets.dataset import DetectionDataset
    from datasets.formats import read
    from datasets.images import prepare
    from datasets.loader import TrainSampler, build_loader
    from datasets.mosaic import Augment

    torch.set_num_threads(1)
    data, _ = prepare(read(f"{cfg.data}/train.txt", "train"))
    found = DetectionDataset(data, "corner", Augment(**RECIPES["mosaic"]), seed=SEED, pictures=Pictures(64e9))
    sampler = TrainSampler(len(data), BATCH // 2, (cfg.size, cfg.size), SEED)  # 16, as train.py has it
    loaders = {n: build_loader(found, sampler, n) for n in (1, 2)}
    for loader in loaders.values():
        for _ in loader:  # one epoch: the workers are started, the pictures decoded
            pass
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in loaders[int(line)]:
            pass
        print(json.dumps({"wall": time.perf_counter() - begin}), flush=True)


def parse(cfg: Config) -> None:
    """Reads an annotation file -> seconds, and the peak of this process' memory."""
    from datasets.formats import read

    before, begin = peak_mb(), time.process_time()
    count = len(read(cfg.data, "train"))
    seconds = time.process_time() - begin
    print(json.dumps({"lines": count, "seconds": seconds, "mb": peak_mb(), "mb before": before}))


def peak_mb() -> float:
    """The most memory that this process has had, where Linux tells (getrusage tells that of its parent, where it had more)."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024


def parsing(cfg: Config, folder: Path) -> list[dict]:
    """A process for each file of `lines` lines with three boxes each."""
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


def tables(figures: dict) -> str:
    """The figures as Markdown."""
    medians = {name: statistics.median(speeds) for name, speeds in figures["speeds"].items()}
    peers = [name for name in ("ultralytics", "libreyolo") if name in medians]
    versions = "".join(f", {name} {number}" for name, number in figures["peers"].items())
    lines = [f"{figures['machine']}{versions}, {figures['date']}; `{figures['command']}`"]
    if medians:
        head = ["made by", "samples a second of a core", "lowest - highest", *(f"times {p}" for p in peers)]
        lines += ["", f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, median in medians.items():
        speeds = figures["speeds"][name]
        ratios = [f"{median / medians[peer]:.2f}" for peer in peers]
        row = [name, f"{median:.0f}", f"{min(speeds):.0f} - {max(speeds):.0f}", *ratios]
        lines.append(f"| {' | '.join(row)} |")
    if figures["workers"]:
        ratio = statistics.median(one / two for one, two in figures["workers"])
        lines += [
            "",
            f"Two worker processes make {ratio:.2f} times the samples of one (by the clock, decoded pictures cached).",
        ]
    if figures["parsing"]:
        lines += ["", "| lines, 3 boxes each | seconds | peak memory, MB | before, MB |", "|---:|---:|---:|---:|"]
    for one in figures["parsing"]:
        lines.append(f"| {one['lines']:,} | {one['seconds']:.2f} | {one['mb']:.0f} | {one['mb before']:.0f} |")
    return "\n".join(lines)


def about() -> dict[str, str]:
    """Machine, versions and command."""
    import cv2
    import numpy as np
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, OpenCV {cv2.__version__}"
    machine = f"{os.cpu_count()} cores {platform.machine()}, {versions}, NumPy {np.__version__}"
    words = [word for word in sys.argv[1:] if not word.startswith(("peers=", "json="))]
    return {
        "machine": machine,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.loader", *words]),
    }


def main() -> None:
    """Prints the tables, and writes the figures where `json` says."""
    from utils.config import override

    cfg = override(Config(), sys.argv[1:])
    if cfg.child:
        {"parse": parse, "workers": two_workers}.get(cfg.child, serve)(cfg)
        return
    figures = about() | {"speeds": {}, "peers": {}, "workers": [], "parsing": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if Path(cfg.data).is_dir():
            lay_out(cfg, folder)
        else:
            print(f"{cfg.data}: no such folder; samples a second are skipped", file=sys.stderr)
            cfg = replace(cfg, parts=tuple(part for part in cfg.parts if part == "lines"))
        if "samples" in cfg.parts:
            figures |= race(cfg, folder)
        if "workers" in cfg.parts:
            runner = Contender(sys.executable, cfg, folder, "workers")
            figures["workers"] = [[runner.round(n)["wall"] for n in (1, 2)] for _ in range(cfg.rounds)]
            runner.end()
        if "lines" in cfg.parts:
            figures["parsing"] = parsing(cfg, folder)
    print(tables(figures))
    if cfg.json:
        Path(cfg.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
