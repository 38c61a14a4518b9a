"""Fixtures for all tests: real data, an empty cache folder, and small generated data sets."""

import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch, as in train.py
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for processes that tests start: two tests run at the same time

import cv2
import numpy as np
import pytest
import tiny  # noqa: F401  registers model="tiny_n"
import torch
from hypothesis import settings
from painted import drawn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

torch.set_num_threads(1)
settings.register_profile("slow computer", deadline=None)
settings.load_profile("slow computer")

ROOT = Path(__file__).parents[1]
NO_SHARED = "no real data sets and weights (a folder `shared` next to the repository)"
NO_GPU = "no CUDA device"
NO_SHARED_MEMORY = "processes cannot share memory: /dev/shm cannot be written"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` next to the repository, with real data sets and official weights. Skips the test without it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(NO_SHARED)
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary cache folder: tests neither read nor write the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THAW_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def no_threads_left() -> Iterator[None]:
    """Fails if a thread of a test file runs on for a minute: it could end the process in the middle of another test."""
    yield
    end = time.monotonic() + 60
    while left := [thread for thread in threading.enumerate() if is_ours(thread)]:
        assert time.monotonic() < end, f"threads that still run: {left}"
        time.sleep(0.02)


@pytest.fixture
def no_loader_left() -> Iterator[None]:
    """Ends the processes of a loader that an error interrupted.

    The error and its traceback hold the loader, in a cycle. If the garbage collector finds it, the processes do not end when
    PyTorch tells them to, and it waits 5 seconds for each of them.
    """
    yield
    for loader in [thing for thing in gc.get_objects() if type(thing) is _MultiProcessingDataLoaderIter]:
        loader._shutdown_workers()


def is_ours(thread: threading.Thread) -> bool:
    """Whether a thread runs a function of this repository. Those of PyTorch may never end."""
    target = getattr(thread, "_target", None)
    module = sys.modules.get(getattr(target, "__module__", ""))
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(ROOT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` without a CUDA device, and those marked `shared_memory` without shared memory."""
    missing = {
        "gpu": None if torch.cuda.is_available() else NO_GPU,
        "shared_memory": None if sys.platform != "linux" or os.access("/dev/shm", os.W_OK) else NO_SHARED_MEMORY,
    }
    for item in items:
        for mark, reason in missing.items():
            if reason is not None and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_sessionstart() -> None:
    """Collects no garbage while tests are collected: their objects stay, and each search among them takes longer."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leaves the imported modules and the collected tests out of garbage collection, which else visits them each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Gives the modules back to garbage collection: triton prints 40 lines at the end of a process about what is left."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints the number of skipped tests per reason."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.write_line("skipped: " + "; ".join(f"{count} x {why}" for why, count in reasons.most_common()))


@pytest.fixture(scope="module")
def demo_images(tmp_path_factory) -> Path:
    """A folder with nine generated images for training (train.txt), five for validation (val.txt), and classes.txt."""
    return drawn(tmp_path_factory.mktemp("demo"), {"train": range(9), "val": range(9, 14)})


@pytest.fixture
def painted(tmp_path: Path) -> Callable[..., Path]:
    """`painted(count, name="train")` draws PNGs with filled rectangles and returns the annotation file.

    Image i has 64 x 48 pixels or 48 x 64, and i % 4 boxes of the classes 0 (red) and 1 (blue): every fourth image is a
    background. The gray level differs between images.
    """

    def paint(count: int, name: str = "train") -> Path:
        lines = []
        for i in range(count):
            rng = np.random.default_rng((7, i))
            width, height = (64, 48) if i % 2 else (48, 64)
            image, words = np.full((height, width, 3), 40 + 5 * (i % 40), np.uint8), [f"{name}_{i}.png"]
            for label in rng.integers(0, 2, i % 4).tolist():
                x, y = rng.integers(0, width - 20), rng.integers(0, height - 20)
                w, h = rng.integers(10, 20, 2)
                image[y : y + h, x : x + w] = (0, 0, 255) if label == 0 else (255, 0, 0)
                words.append(f"{x},{y},{x + w},{y + h},{label}")
            (tmp_path / words[0]).write_bytes(cv2.imencode(".png", image)[1].tobytes())
            lines.append(" ".join(words))
        file = tmp_path / f"{name}.txt"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    return paint
