"""Perceptual hashes and groups of nearly same images."""

import time
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from datasets.scan import scan
from datasets.similar import NEAR, bits_apart, copies_between, similar_groups


def scene(seed: int, height: int = 256, width: int = 336) -> np.ndarray:
    """An image of random blots, smooth as photographs are."""
    small = np.random.default_rng(seed).integers(0, 256, (20, 26, 3)).astype(np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def write(path: Path, image: np.ndarray, quality: int = 90) -> str:
    cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, quality] if path.suffix == ".jpg" else [])
    return str(path)


def groups_of(paths: list[str]) -> list[int]:
    found = scan(paths)
    return similar_groups(found.digests, found.hashes).tolist()


def test_copies_are_in_one_group_and_other_images_are_not(tmp_path: Path) -> None:
    paths = []
    for seed in range(4):
        image = scene(seed)
        turned = Image.fromarray(np.rot90(image)[..., ::-1])  # stands upright by its EXIF orientation
        exif = turned.getexif()
        exif[0x0112] = 6
        turned.save(tmp_path / f"{seed}_turned.jpg", exif=exif, quality=95)
        paths += [
            write(tmp_path / f"{seed}.jpg", image),
            write(tmp_path / f"{seed}_same.jpg", image),
            write(tmp_path / f"{seed}_poor.jpg", image, 30),
            write(tmp_path / f"{seed}_small.jpg", cv2.resize(image, (200, 150), interpolation=cv2.INTER_AREA)),
            write(tmp_path / f"{seed}_large.jpg", cv2.resize(image, (640, 640))),
            write(tmp_path / f"{seed}_bright.png", cv2.convertScaleAbs(image, alpha=0.9, beta=20)),
            write(tmp_path / f"{seed}.png", image),
            str(tmp_path / f"{seed}_turned.jpg"),
        ]
    assert groups_of(paths) == [8 * seed for seed in range(4) for _ in range(8)]


def test_images_without_contrast_or_content_are_alone(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{gray}.png", np.full((50, 60, 3), gray, np.uint8)) for gray in (0, 99, 100, 255)]
    paths.append(write(tmp_path / "again.png", np.full((50, 60, 3), 99, np.uint8)))
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    paths += [str(tmp_path / "bad.jpg"), str(tmp_path / "missing.jpg"), str(tmp_path / "missing2.jpg")]
    assert groups_of(paths) == [0, 1, 2, 3, 1, 5, 6, 7]
    assert similar_groups(np.zeros(0, np.int64), np.zeros((0, 4), np.uint64)).tolist() == []


def test_groups_are_those_of_all_pairs() -> None:
    random = np.random.default_rng(1)
    hashes = random.integers(0, 2**63, (40, 4)).astype(np.uint64)[random.integers(0, 40, 300)]
    for _ in range(5):
        hashes[np.arange(300), random.integers(0, 4, 300)] ^= np.uint64(1) << random.integers(0, 64, 300).astype(
            np.uint64
        )
    digests = np.append(random.integers(1, 2**60, 298), [7, 7])
    near = np.array([bits_apart(row[None], hashes) <= NEAR for row in hashes])
    near |= (digests[:, None] == digests) | np.eye(300, dtype=bool)
    expected = np.arange(300)
    for _ in range(300):
        expected = np.where(near, expected, 300).min(1)
    found = similar_groups(digests, hashes)
    assert np.array_equal(found, expected) and 40 < len(np.unique(found)) < 300


def test_near_images_are_found_in_their_one_equal_band_behind_others_that_are_equal_there() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (20, 8), np.uint32)
    words[:, 7], words[:, 0] = 5, 1
    words[[0, -1]] = 0, 0, 0, 0, 0, 0, 0, 5
    words[-1, :NEAR] = 2  # one bit in each band: the images with a 1 are between these two in sorted order
    groups = similar_groups(np.arange(1, 21), words.view(np.uint64))
    assert groups.tolist() == [*range(19), 0]


def test_copies_between_two_sets_are_of_images_of_the_first_one() -> None:
    none = np.zeros((3, 4), np.uint64)
    assert copies_between((np.array([4, 7]), none[:2]), (np.array([9, 7, 9]), none)).tolist() == [-1, 1, -1]


def test_a_hundred_thousand_images_take_seconds() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**63, (100_000, 4)).astype(np.uint64)
    hashes[50_000:] = hashes[:50_000] ^ np.array([3, 0, 1, 0], np.uint64)
    start = time.process_time()
    found = similar_groups(np.arange(1, 100_001), hashes)
    assert np.array_equal(found, np.tile(np.arange(50_000), 2)) and time.process_time() - start < 10
