"""deploy/tiles.py, deploy/tile_merge.py: every pixel is in a tile, an object is found once, and small images change nothing."""

import json

import cv2
import numpy as np
import pytest
import torch
from lively import lively_checkpoint
from painted import COLORS, GRAY
from refused import refused

import evaluate
from deploy.detector import Detector
from deploy.tile_merge import merge
from deploy.tiled_model import TiledModel
from deploy.tiles import Tiles, cut
from nets.postprocess import Detections
from utils.images import into_original, letterbox

LOW = {"device": "cpu", "confidence": 0.7}
EVALUATED = {**LOW, "workers": 0, "batch_size": 4}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt", thresholds={"red": 0.6, "blue": 0.1})


def noise(width, height, seed=0):
    """Smooth random colors, in which the model detects something everywhere."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)


def assert_same(a, b):
    for field in ("boxes", "scores", "labels"):
        assert np.array_equal(getattr(a, field), getattr(b, field))


def test_large_images_have_as_few_tiles_as_the_overlap_allows_and_not_too_many():
    assert len(Tiles(640).windows(1920, 1280)) == 1 + 4 * 3 and len(Tiles(640).windows(641, 640)) == 1 + 2
    with refused(ValueError, "tile=32", "9000x9000", "119,716", "4,096"):
        Tiles(32).windows(9000, 9000)


@pytest.mark.parametrize("overlap", [0.05, 0.2, 0.5, 0.8])
def test_every_pixel_is_in_a_tile_and_neighbors_overlap(overlap):
    rng = np.random.default_rng(0)
    for tile, width, height in zip(*(rng.integers(low, 400, 40).tolist() for low in (32, 1, 1)), strict=True):
        whole, *tiles = Tiles(tile, overlap).windows(width, height).tolist()
        assert whole == [0, 0, width, height] and bool(tiles) == (max(width, height) > tile)
        covered = np.zeros((height, width), int)
        for x1, y1, x2, y2 in tiles:
            assert 0 <= x1 and 0 <= y1 and (x2 - x1, y2 - y1) == (min(tile, width), min(tile, height))
            covered[y1:y2, x1:x2] += 1
        assert not tiles or covered.min() > 0
        for side in (0, 1):
            starts = sorted({one[side] for one in tiles})
            assert all(b - a <= round(tile * (1 - overlap)) for a, b in zip(starts, starts[1:], strict=False))


def windows_and_parts(objects, tiles, size, with_whole, smallest=4.0):
    """What a perfect detector finds in the windows of an image: the visible part of each object, in order of the windows."""
    windows, parts = tiles.windows(*size), []
    for number, window in enumerate(windows.tolist()):
        low = np.maximum(objects[:, :2], window[:2])
        high = np.minimum(objects[:, 2:], window[2:])
        rows = np.flatnonzero((high - low > smallest).all(1) & (with_whole or number > 0))
        boxes = np.concatenate([low, high], 1)[rows].astype(np.float32)
        # a part has a lower score than the object, here the less the smaller it is
        fraction = (high - low)[rows].prod(1) / (objects[rows, 2:] - objects[rows, :2]).prod(1)
        parts.append(
            (boxes, (0.5 * fraction + 0.4 - rows / 1000).astype(np.float32), rows % 2, np.full(len(rows), number))
        )
    return windows, [np.concatenate(field) for field in zip(*parts, strict=True)]


def separate(rng, count, size, side):
    """Random objects that do not touch each other."""
    kept = []
    for _ in range(count):
        corner = rng.uniform(0, np.array(size) - side)
        box = np.concatenate([corner, corner + rng.uniform(np.array(side) / 3, side)])
        if all((box[:2] > other[2:] + 12).any() or (box[2:] < other[:2] - 12).any() for other in kept):
            kept.append(box)
    return np.array(kept)


@pytest.mark.parametrize("with_whole", [False, True], ids=["tiles", "whole and tiles"])
@pytest.mark.parametrize(
    "side", [(20, 24), (90, 40), (260, 30), (300, 300)], ids=["small", "wide", "over two or three tiles", "larger"]
)
def test_an_object_is_found_once_with_its_whole_box(side, with_whole):
    """Objects at borders and corners of tiles, smaller than the overlap or spread over several tiles."""
    for seed in range(5):
        objects = separate(np.random.default_rng(seed), 60, (500, 420), side)
        windows, (boxes, scores, labels, tiles) = windows_and_parts(objects, Tiles(128, 0.25), (500, 420), with_whole)
        found, _, classes = merge(boxes, scores, labels, tiles, windows, 0.5, 300)
        pairs = np.abs(found[:, None] - objects[None]).max(2) < 0.5
        assert pairs.sum(1).tolist() == [1] * len(objects), (len(found), len(objects))
        assert (pairs.argmax(1) % 2 == classes).all()


def test_overlapping_objects_of_one_tile_or_of_different_classes_stay():
    objects = np.array([[100, 20, 150, 60], [118, 20, 168, 60], [60, 20, 110, 60]], float)
    windows, (boxes, scores, labels, tiles) = windows_and_parts(objects, Tiles(128, 0.5), (256, 80), True)
    found, *_ = merge(boxes, scores, np.zeros_like(labels), tiles, windows, 0.65, 300)
    assert sorted(found.tolist()) == sorted(objects.tolist())
    found, _, classes = merge(*(np.concatenate([x, x]) for x in (boxes, scores)), np.repeat([0, 1], len(boxes)),
                              np.concatenate([tiles, tiles]), windows, 0.65, 300)  # fmt: skip
    assert len(found) == 6 and classes.sum() == 3


def random_detections(seed, count, windows):
    """Random boxes in the windows, of two classes, many of them at borders or equal."""
    rng = np.random.default_rng(seed)
    tiles = rng.integers(0, len(windows), count)
    places = windows[tiles]
    corners = rng.integers(0, 9, (count, 4)) / 8 * np.tile(places[:, 2:] - places[:, :2], 2)
    boxes = np.sort(corners.reshape(-1, 2, 2), 1).reshape(-1, 4) + np.tile(places[:, :2], 2) + [0, 0, 1, 1]
    return (
        boxes.astype(np.float32),
        (rng.integers(1, 50, count) / 50).astype(np.float32),
        rng.integers(0, 2, count),
        tiles,
    )


def test_the_order_of_tiles_does_not_matter_and_scores_descend():
    windows = Tiles(64, 0.25).windows(200, 150)
    for seed in range(20):
        boxes, scores, labels, tiles = random_detections(seed, 150, windows)
        expected = merge(boxes, scores, labels, tiles, windows, 0.5, 300)
        assert (np.diff(expected[1]) <= 0).all() and 0 < len(expected[0]) < 150
        rng = np.random.default_rng(seed)
        shuffled = np.concatenate([[0], 1 + rng.permutation(len(windows) - 1)])
        rows = rng.permutation(150)
        place = np.argsort(shuffled)[tiles][rows]
        found = merge(boxes[rows], scores[rows], labels[rows], place, windows[shuffled], 0.5, 300)
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_max_detections_are_the_best_ones():
    windows = Tiles(64, 0.25).windows(200, 150)
    detections = random_detections(0, 400, windows)
    every = merge(*detections, windows, 0.5, 300)
    few = merge(*detections, windows, 0.5, 20)
    assert len(few[1]) == 20 < len(every[1])
    assert few[1].min() >= np.sort(every[1])[::-1][:40].min()
    nothing = merge(*(x[:0] for x in detections), windows, 0.5, 20)
    assert [x.shape for x in nothing] == [(0, 4), (0,), (0,)]


class Perfect(torch.nn.Module):
    """A model that finds the green, blue, red and white rectangles in its input."""

    letterbox = "center"

    def forward(self, images):
        assert len(images) <= 3
        return images

    def detections(self, images, image_size, transforms, **_):
        found = []
        for image, transform in zip(images.permute(0, 2, 3, 1).numpy(), transforms, strict=True):
            rows = []
            for label, color in enumerate(COLORS.astype(int)):
                mask = np.abs(image.astype(int) - color).max(2) < 60
                _, _, areas, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
                rows += [(x, y, x + w, y + h, label, 0.9) for x, y, w, h, size in areas[1:].tolist() if size > 8]
            rows = torch.tensor(rows).reshape(-1, 6)
            boxes = into_original(rows[:, :4], transform)
            found.append(Detections(boxes, rows[:, 5], rows[:, 4].long()))
        return found


def test_rectangles_of_a_painted_image_are_found_at_their_places():
    """Cutting, letterboxing and mapping back, for three images of which one has no tiles."""
    tiles = Tiles(100, 0.4)
    for seed, size in enumerate([(330, 250), (90, 60), (70, 310)]):
        image = np.full((*size[::-1], 3), GRAY, np.uint8)
        objects = separate(np.random.default_rng(seed), 40, size, (30, 30)).round().astype(int)
        for number, (x1, y1, x2, y2) in enumerate(objects.tolist()):
            image[y1:y2, x1:x2] = COLORS[number % 4]
        fitted = [letterbox(crop, (192, 192), "center") for crop in cut(image, tiles.windows(*size))]
        inputs = torch.from_numpy(np.stack([pixels for pixels, _ in fitted])).permute(0, 3, 1, 2)
        transforms = torch.tensor([transform for _, transform in fitted])
        limits = {"confidence": 0.1, "nms_iou": 0.5, "max_detections": 300}
        found, *others = TiledModel(Perfect(), tiles, 3).detections(inputs, (192, 192), transforms, **limits)
        assert len(others) == len(fitted) - 1 and not any(len(window.scores) for window in others)
        pairs = np.abs(found.boxes.numpy()[:, None] - objects[None]).max(2) < 2.5
        assert pairs.sum(0).tolist() == [1] * len(objects) and len(found.scores) == len(objects)
        assert (pairs.argmax(1) % 4 == found.labels.numpy()).all()


def test_images_that_fit_are_detected_exactly_as_without_tiles(weights):
    images = [noise(96 - 8 * i, 64, i) for i in range(5)]
    plain, tiled = (Detector(weights, **LOW, batch_size=2, **more) for more in ({}, {"tile": 96, "overlap": 0.3}))
    assert sum(len(one.scores) for one in plain(images)) > 50
    for a, b in zip(plain(images), tiled(images), strict=True):
        assert_same(a, b)
        assert a.names == b.names


def inside(boxes):
    """Boxes without what lies outside of the largest image; random weights find some that are a hundred times as large."""
    return np.clip(boxes, 0, 300)


def test_a_detector_with_tiles_finds_more_and_batches_do_not_matter(weights, tmp_path):
    images = [noise(300, 200, 1), noise(90, 60, 2), noise(120, 200, 3)]
    detectors = [Detector(weights, **LOW, tile=96, batch_size=size) for size in (1, 4, 64)]
    results = [detector(images) for detector in detectors]
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            assert a.labels.tolist() == b.labels.tolist()
            np.testing.assert_allclose(inside(a.boxes), inside(b.boxes), atol=1e-2)
            np.testing.assert_allclose(a.scores, b.scores, atol=1e-4)
    plain = Detector(weights, **LOW)(images)
    assert len(results[0][0].scores) > len(plain[0].scores) and len(results[0]) == 3
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, images, strict=True):
        cv2.imwrite(str(path), image)
    for a, b in zip(detectors[1](paths), results[1], strict=True):
        assert_same(a, b)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tile": 31}, ["tile=31", "at least 32"]),
        ({"tile": 640, "overlap": 1.0}, ["overlap=1.0", "from 0.05 to 0.9"]),
        ({"tile": 640, "overlap": 0.04}, ["overlap=0.04", "from 0.05 to 0.9"]),
        ({"overlap": 0.3}, ["overlap=0.3", "tile=640"]),
    ],
)
def test_nonsense_is_refused_with_the_fix(weights, options, named):
    with refused(ValueError, *named):
        Detector(weights, device="cpu", **options)


def evaluated(weights, data, output, **more):
    """The detections and metrics of evaluate.py."""
    evaluate.main(evaluate.Config(str(weights), str(data), str(output), **{**EVALUATED, **more}))
    return [json.loads((output / f"{name}.json").read_text()) for name in ("detections", "metrics")]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Five images from 60 to 300 pixels, an annotation file and classes.txt."""
    folder, lines = tmp_path_factory.mktemp("large"), []
    for i, size in enumerate([(90, 60), (300, 200), (64, 64), (96, 220), (200, 96)]):
        cv2.imwrite(str(folder / f"{i}.png"), noise(*size, i))
        lines.append(f"{i}.png 10,10,30,40,{i % 3}")
    (folder / "val.txt").write_text("\n".join(lines))
    (folder / "classes.txt").write_text("red\nblue\ngreen")
    return folder / "val.txt"


def assert_as_the_detector(detections, data, weights, **options):
    """An evaluation has the same detections as a Detector."""
    results = Detector(weights, device="cpu", confidence=0.7, nms_iou=0.65, **options)(
        [data.parent / f"{i}.png" for i in range(5)]
    )
    for number, result in enumerate(results, 1):
        ours = sorted((one for one in detections if one["image_id"] == number), key=lambda one: -one["score"])
        assert [one["category_id"] for one in ours] == result.labels.tolist()
        corners = np.array([one["bbox"] for one in ours]).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        np.testing.assert_allclose(inside(corners), inside(result.boxes), atol=1e-2)
        np.testing.assert_allclose([one["score"] for one in ours], result.scores, atol=1e-4)


@pytest.mark.shared_memory
def test_an_evaluation_with_tiles_has_the_detections_of_the_detector(weights, large, tmp_path):
    plain, _ = evaluated(weights, large, tmp_path / "plain")
    tiled, metrics = evaluated(weights, large, tmp_path / "tiled", tile=96, overlap=0.3)
    assert metrics["settings"]["tile"] == 96 and metrics["settings"]["overlap"] == 0.3
    assert len(tiled) > len(plain) + 20
    assert_as_the_detector(tiled, large, weights, tile=96, overlap=0.3)
    workers, _ = evaluated(weights, large, tmp_path / "workers", tile=96, overlap=0.3, workers=1)
    assert workers == tiled
