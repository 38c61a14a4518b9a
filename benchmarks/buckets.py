"""Times a data set in a bucket: python -m benchmarks.buckets images=2000. Needs pip install moto[server] s3fs"""

import io
import multiprocessing
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import Queue
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.own_process import in_own_process
from benchmarks.s3_server import S3Server
from benchmarks.table import add_row
from datasets.check_images import check_images
from datasets.dataset import DetectionDataset
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.loader import TrainSampler, build_loader
from datasets.transforms import Augment
from utils.config import override
from utils.files import files_under

HEAD = """# A data set in a bucket

`python -m benchmarks.buckets` writes small JPEGs and an annotation file into a bucket, which a server of S3 (moto) on the same
computer holds, and adds a row. The server answers each request after `latency`, and its own time. A start is the time from
`read` to the first batch in a new process: listing, fetching, the scan and the loader. The cache is empty at the first start.
In brackets are the CPU seconds of that process, which other programs on the computer change less. Epoch 2: images per
CPU second of the process that loads images, with mosaics, relative to the same images in a folder: the median of 5 pairs. A
training keeps decoded images in the cache folder, as far as there is room; without them each image is read again."""
ROUNDS = 5  # of epochs in turns


@dataclass(frozen=True)
class Config:
    images: int = 2000
    side: int = 96  # pixels
    latency: float = 0.02  # seconds before each answer
    source: str = "files"  # files: an object for each image; tar: one object
    batch_size: int = 16
    batches: int = 200  # the most that are timed of each epoch
    decoded: bool = False  # keep decoded images in the cache folder, as a training does


def draw(folder: Path, count: int, side: int) -> None:
    """Writes JPEGs of noise around a rectangle, and an annotation file."""
    rng, lines = np.random.default_rng(0), []
    (folder / "images").mkdir(parents=True)
    for number in range(count):
        image = cv2.resize(rng.integers(0, 256, (12, 12, 3), np.uint8), (side, side))
        x, y = (int(value) for value in rng.integers(0, side // 2, 2))
        cv2.rectangle(image, (x, y), (x + side // 3, y + side // 3), (0, 0, 255), -1)
        cv2.imwrite(str(folder / "images" / f"{number:06}.jpg"), image)
        lines.append(f"images/{number:06}.jpg {x},{y},{x + side // 3},{y + side // 3},0\n")
    (folder / "train.txt").write_text("".join(lines))
    (folder / "classes.txt").write_text("red\n")


def serve(folder: str, latency: float, kind: str, ready: Queue) -> None:
    """Serves the files of a folder from a bucket, in this process, until it is ended."""
    from moto.s3.models import s3_backends

    server = S3Server(latency)
    bucket = s3_backends["123456789012"]["aws"]  # without requests, which take an hour for 100,000 objects
    bucket.create_bucket("data", "us-east-1")
    if kind == "tar":
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            tar.add(folder, ".")
        bucket.put_object("data", "set.tar", data.getvalue())
    else:
        for name in files_under(folder):
            bucket.put_object("data", f"set/{name}", Path(folder, name).read_bytes())
    ready.put(server.env)
    server.thread.join()


@contextmanager
def served(folder: str, cfg: Config) -> Iterator[dict[str, str]]:
    """Yields the environment of a client of a server with the files of a folder, which has a separate process."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    ready = context.Queue()
    server = context.Process(target=serve, args=(folder, cfg.latency, cfg.source, ready), daemon=True)
    server.start()
    try:
        yield ready.get()
    finally:
        server.terminate()


def loader_of(source: str, batch_size: int) -> Any:
    """Returns the loader of a data set, which was read and scanned."""
    data, _ = check_images(read(source, "train"), ReadOptions())
    dataset = DetectionDataset(data, "corner", Augment.of(0.5, 0, 0.5, 0, 0, (0.5, 1.5), (5, 30, 30)))
    return build_loader(dataset, TrainSampler(len(data), batch_size, (96, 96), 0), 0)


def start(source: str, batch_size: int, env: dict[str, str]) -> dict[str, Any]:
    """Returns the time from `read` to the first batch, as text, and the memory."""
    os.environ.update(env)
    began, used = time.perf_counter(), time.process_time()
    next(iter(loader_of(source, batch_size)))
    return {"time": f"{time.perf_counter() - began:.1f} ({time.process_time() - used:.1f})"}


def epochs(sources: list[str], cfg: Config, env: dict[str, str]) -> dict[str, Any]:
    """Returns the speed of loading from the first source relative to the second one: the median of epochs in turns."""
    os.environ.update(env)
    loaders = [loader_of(source, cfg.batch_size) for source in sources]
    ratios = []
    for number in range(ROUNDS + 1):
        seconds = []
        for loader in loaders:
            loader.batch_sampler.epoch, began = number, time.process_time()
            for _ in islice(loader, cfg.batches):
                pass
            seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    return {"ratio": statistics.median(ratios[1:])}


def main(cfg: Config) -> None:
    """Measures starts, speed and memory, and adds a row to benchmarks/results/buckets.md."""
    with tempfile.TemporaryDirectory() as folder:
        local = f"{folder}/set/train.txt"
        draw(Path(folder, "set"), cfg.images, cfg.side)
        with served(f"{folder}/set", cfg) as env:
            env |= {"THAW_CACHE": f"{folder}/cache"}
            env |= {} if cfg.decoded else {"THAW_CACHE_GB": "0"}
            source = "s3://data/set.tar" if cfg.source == "tar" else "s3://data/set/train.txt"
            ours = [in_own_process(start, source, cfg.batch_size, env) for _ in range(2)]
            theirs = [in_own_process(start, local, cfg.batch_size, env) for _ in range(2)]
            ratio = in_own_process(epochs, [source, local], cfg, env)["ratio"]
    row = {
        "source": cfg.source,
        "decoded images are kept": "yes" if cfg.decoded else "no",
        "images": f"{cfg.images:,}",
        "latency, ms": f"{1000 * cfg.latency:g}",
    }
    for number, name in enumerate(("first", "second")):
        row |= {f"{name} start, s": ours[number]["time"], f"{name} start of a folder, s": theirs[number]["time"]}
    row["epoch 2, relative to a folder"] = f"{ratio:.2f}"
    row["memory, MiB; of a folder"] = f"{ours[1]['peak_MiB']}; {theirs[1]['peak_MiB']}"
    add_row("buckets", HEAD, row)


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
