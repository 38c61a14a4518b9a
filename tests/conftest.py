"""What the tests share: reference data, a cache of their own, small painted data sets."""

import ast
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch, as in train.py

import cv2
import numpy as np
import pytest
import torch
from painted import drawn


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the repository, with reference numbers, official weights and real pictures."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the reference data (a folder `shared` beside the repository) are not here")
    return folder


@pytest.fixture(scope="session")
def filler(shared):
    """The rule by which the reference outputs were made."""
    spec = importlib.util.spec_from_file_location("fill", shared / "parity" / "fill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def official_keys(shared) -> Callable[[str], dict[str, tuple[int, ...]]]:
    """`official_keys("yolox_s")` -> names and shapes of all tensors of an official file."""

    def read(name: str) -> dict[str, tuple[int, ...]]:
        lines = (shared / "keys" / f"{name}.txt").read_text().splitlines()
        return {key: ast.literal_eval(shape) for key, shape in (line.split(" ", 1) for line in lines)}

    return read


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests neither read nor write the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THAW_CACHE", str(folder))
        yield folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a CUDA device."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Nine drawn pictures for training and five for validation, as annotation files with their classes."""
    return drawn(tmp_path_factory.mktemp("pictures"), {"train": range(9), "val": range(9, 14)})


@pytest.fixture
def painted(tmp_path: Path) -> Callable[..., Path]:
    """`painted(pictures, name="train")` draws PNGs with filled rectangles -> the annotation file.

    Picture i is 64 x 48 pixels or the other way round and has i % 4 boxes of the classes 0 and 1 (red and blue), so
    every fourth is a background. Its gray level tells the pictures apart.
    """

    def paint(pictures: int, name: str = "train") -> Path:
        lines = []
        for i in range(pictures):
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
