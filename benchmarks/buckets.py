"""Times a data set in a bucket: python -m benchmarks.buckets images=2000. Needs pip install moto[server] s3fs"""

import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

import cv2
import fsspec
import numpy as np

from benchmarks.own_process import in_own_process
from benchmarks.s3_server import S3Server
from benchmarks.table import add_row
from datasets.dataset import DetectionDataset
from datasets.formats.finish import ReadOptions, prepare
from datasets.formats.read import read
from datasets.loader import TrainSampler, build_loader
from datasets.transforms import Augment
from utils.config import override

HEAD = """# A data set in a bucket

`python -m benchmarks.buckets` writes small JPEGs and an annotation file to a server of S3 on the same computer, which answers
each request after `latency`, and adds a row. A start is the time from `read` to the first batch in a new process: listing,
fetching, the scan and the loader. The cache is empty at the first start. Epoch 2: images per CPU second of the process that
loads images, with mosaics, relative to the same images in a folder; medians of 5 epochs in turns. Server and clients share the
cores."""
ROUNDS = 5  # of epochs in turns


@dataclass(frozen=True)
class Config:
    images: int = 2000
    side: int = 96  # pixels
    latency: float = 0.02  # seconds before each answer
    source: str = "files"  # files: an object for each image; tar: one object
    batch_size: int = 16


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
    server = S3Server()
    os.environ.update(server.env)
    files = fsspec.filesystem("s3")
    files.mkdir("data")
    if kind == "tar":
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            tar.add(folder, "set")
        files.pipe_file("data/set.tar", data.getvalue())
    else:
        files.put(f"{folder}/", "data/set/", recursive=True)
    server.latency = latency
    ready.put(server.env)
    server.thread.join()


@contextmanager
def served(folder: str, cfg: Config) -> Iterator[dict[str, str]]:
    """Yields the environment of a client of a server with the files of a folder, which has a separate process."""
    ready: Queue = Queue()
    server = Process(target=serve, args=(folder, cfg.latency, cfg.source, ready), daemon=True)
    server.start()
    try:
        yield ready.get()
    finally:
        server.terminate()


def loader_of(source: str, batch_size: int) -> Any:
    """Returns the loader of a data set, which was read and scanned."""
    data, _ = prepare(read(source, "train"), ReadOptions())
    dataset = DetectionDataset(data, "corner", Augment.of(0.5, 0, 0.5, 0, 0, (0.5, 1.5), (5, 30, 30)))
    return build_loader(dataset, TrainSampler(len(data), batch_size, (96, 96), 0), 0)


def start(source: str, batch_size: int, env: dict[str, str]) -> dict[str, Any]:
    """Returns the seconds from `read` to the first batch."""
    os.environ.update(env)
    began = time.perf_counter()
    next(iter(loader_of(source, batch_size)))
    return {"seconds": time.perf_counter() - began}


def epochs(sources: list[str], batch_size: int, env: dict[str, str]) -> dict[str, Any]:
    """Returns the images per second of each source, in epochs in turns after a first one."""
    os.environ.update(env)
    loaders = {source: loader_of(source, batch_size) for source in sources}
    speeds: dict[str, list[float]] = {source: [] for source in sources}
    for number in range(ROUNDS + 1):
        for source, loader in loaders.items():
            loader.batch_sampler.epoch, began = number, time.process_time()
            count = sum(len(batch.ids) for batch in loader)
            if number:
                speeds[source].append(count / (time.process_time() - began))
    return {"speeds": [statistics.median(speeds[source]) for source in sources]}


def main(cfg: Config) -> None:
    """Measures both starts and the speed, and adds a row to benchmarks/results/buckets.md."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder, "set"), cfg.images, cfg.side)
        with served(f"{folder}/set", cfg) as env:
            env |= {"THAW_CACHE": f"{folder}/cache", "THAW_CACHE_GB": "0"}  # no decoded images in files
            source = "s3://data/set.tar" if cfg.source == "tar" else "s3://data/set/train.txt"
            first, second = (in_own_process(start, source, cfg.batch_size, env) for _ in range(2))
            local = in_own_process(start, f"{folder}/set/train.txt", cfg.batch_size, env)
            both = in_own_process(epochs, [source, f"{folder}/set/train.txt"], cfg.batch_size, env)
    ours, theirs = both["speeds"]
    row = {"source": cfg.source, "images": f"{cfg.images:,}", "latency, ms": f"{1000 * cfg.latency:g}"}
    row |= {"first start, s": f"{first['seconds']:.1f}", "second start, s": f"{second['seconds']:.1f}"}
    row |= {
        "first start of a folder, s": f"{local['seconds']:.1f}",
        "epoch 2, relative to a folder": f"{ours / theirs:.2f}",
    }
    add_row("buckets", HEAD, row | {"memory of the second start, MiB": str(second["peak_MiB"])})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
