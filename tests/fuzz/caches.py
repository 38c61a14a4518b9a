"""Fuzzer of the cache folder: files that a disk has damaged change no pixel and no result of the scan."""

import json
import random
from pathlib import Path

import numpy as np

from datasets.cache import ImageCache
from datasets.scan import scan
from utils.files import cache_folder
from utils.images import read_reduced

from . import spoil
from .harness import Case, Failure, Fuzzer
from .images import encoded


def make(rng: random.Random) -> Case:
    case = {f"{name}.jpg": encoded(rng, "jpg", "RGB") for name in "ab"}
    return case | {"how.json": json.dumps({"seed": rng.getrandbits(32), "part": rng.choice(("all", "head"))}).encode()}


def results(paths: list[str]) -> list:
    """Everything that the program reads through the cache."""
    found = scan(paths)
    images = [ImageCache(1e9, 0.0).read(path, reduction) for path in paths for reduction in (1, 2)]
    return [*found[:4], found.limits, found.problems, found.repairable, *images]


def run(folder: Path) -> None:
    paths = sorted(str(path) for path in folder.glob("*.jpg"))
    how = json.loads((folder / "how.json").read_text())
    expected, rng = results(paths), random.Random(how["seed"])
    for path, image in zip((path for path in paths for _ in range(2)), expected[7:], strict=True):
        if not any(np.array_equal(image, read_reduced(path, reduction)) for reduction in (1, 2)):
            raise Failure("wrong", "the cache returns other pixels")
    files = sorted(path for path in cache_folder().rglob("*") if path.is_file())
    if any(place.stat().st_mode & 0o077 for place in (cache_folder(), *cache_folder().glob("*/"))):
        raise Failure("wrong", "other users may open the cache folder")
    for file in rng.sample(files, rng.randint(1, len(files))):
        data = file.read_bytes()
        head = data[:40] if how["part"] == "head" and "sqlite" not in file.name else data
        file.write_bytes(spoil.spoil(rng, head, 40) + data[len(head) :])
    for _ in range(2):
        if not all(np.array_equal(a, b) for a, b in zip(results(paths), expected, strict=True)):
            raise Failure("wrong", "a damaged cache changes a result")


FUZZERS = (Fuzzer("cache", make, run, (), fraction=0.1),)
