"""tools/convert.py with tile=: the boxes of tiles come from the images, nothing is lost, names are safe."""

import errno
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from refused import refused, told

from datasets.errors import DataError
from datasets.formats.read import read
from tools import tiles
from tools.convert import convert
from utils.images import read_image

SIZES = [(300, 200), (64, 60), (120, 400), (90, 128)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four images of noise with ten boxes each, a crowd region, hostile names and a background without boxes."""
    rng, lines = np.random.default_rng(0), []
    names = ["a/图 ..;rm -rf $HOME.png", "b/a.png", "b/con.jpg", "c/a.png"]
    for i, ((width, height), name) in enumerate(zip(SIZES, names, strict=True)):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        smooth = cv2.resize(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), (width, height))
        path.write_bytes(cv2.imencode(path.suffix, smooth)[1].tobytes())
        corners = np.sort(rng.uniform(0, 1, (10, 2, 2)), 1).reshape(-1, 4) * [width, height, width, height]
        words = [",".join(f"{v:.2f}" for v in box) + f",{k % 2}" + ",1" * (k == 9) for k, box in enumerate(corners)]
        lines.append(" ".join([name, *words * (i < 3)]))
    (tmp_path / "set" / "all.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "set" / "classes.txt").write_text("cat\ndog")
    return tmp_path / "set" / "all.txt"


@pytest.fixture(autouse=True)
def all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "BACKGROUND", 1.0)


def cut(source: Path, target: Path, **options):
    report = convert(str(source), str(target), **{"tile": 96, "overlap": 0.25, **options})
    return read(str(target), "train"), report


def place(path: str) -> tuple[int, int, int]:
    """The number of the image and the corner of the tile, from the file name of a tile."""
    number, *_, x, y = Path(path).stem.split("-")
    return int(number) - 1, int(x), int(y)


def test_pixels_and_boxes_of_tiles_map_back_to_the_image(source: Path, tmp_path: Path) -> None:
    old, (new, _) = read(str(source), "train"), cut(source, tmp_path / "out" / "t.txt")
    covered = [np.zeros((h, w), bool) for w, h in SIZES]
    found = {(i, k): 0.0 for i in range(4) for k in range(len(old.boxes_of(i)[0]))}
    for row in range(len(new)):
        path, image = new.path(row), read_image(new.path(row))
        index, x, y = place(path) if "t_tiles" in path else (1, 0, 0)
        height, width = image.shape[:2]
        assert (height, width) == (min(96, SIZES[index][1]), min(96, SIZES[index][0]))
        covered[index][y : y + height, x : x + width] = True
        original = read_image(old.path(index))[y : y + height, x : x + width]
        difference = np.abs(image.astype(int) - original).max()
        assert difference == 0 if not path.endswith(".jpg") else difference <= 16
        boxes, labels, crowd = old.boxes_of(index)
        window = np.array([x, y, x + width, y + height])
        low, high = np.maximum(boxes[:, :2], window[:2]), np.minimum(boxes[:, 2:], window[2:])
        fraction = (high - low).clip(0).prod(1) / (boxes[:, 2:] - boxes[:, :2]).prod(1)
        kept = np.where(crowd, fraction > 0, fraction >= 0.3)
        mine, my_labels, my_crowd = new.boxes_of(row)
        np.testing.assert_allclose(mine, np.concatenate([low, high], 1)[kept] - np.tile([x, y], 2), atol=1e-5)
        assert my_labels.tolist() == labels[kept].tolist() and my_crowd.tolist() == crowd[kept].tolist()
        for k in np.flatnonzero(kept):
            found[index, k] = max(found[index, k], fraction[k])
    assert all(one.all() for one in covered) and len(new) > 12
    assert sum(value == 0 for value in found.values()) < 12  # only large boxes are nowhere visible enough


def test_small_boxes_are_whole_in_a_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "VISIBLE", 1.0)
    rng = np.random.default_rng(1)
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((300, 500, 3), np.uint8))
    corner = rng.uniform(0, 1, (300, 2)) * [480, 280]
    boxes = np.concatenate([corner, corner + 20], 1).round(2)
    words = [",".join(map(str, box)) + ",0" for box in boxes.tolist()]
    (tmp_path / "all.txt").write_text(" ".join(["a.png", *words]))
    new, report = cut(tmp_path / "all.txt", tmp_path / "t.txt")
    back = {
        tuple((box + np.tile(place(new.path(i))[1:], 2)).round(2))
        for i in range(len(new))
        for box in new.boxes_of(i)[0]
    }
    assert back == set(map(tuple, boxes.tolist()))
    assert any(line.endswith("enough of: 0") for line in report)


def test_names_are_safe_and_images_that_fit_stay_where_they_are(source: Path, tmp_path: Path) -> None:
    new, report = cut(source, tmp_path / "out" / "t.txt")
    paths = [Path(new.path(i)).resolve() for i in range(len(new))]
    assert paths.count((source.parent / "b/a.png").resolve()) == 1
    cuts = [path for path in paths if path.parent == (tmp_path / "out" / "t_tiles").resolve()]
    assert len(cuts) == len(paths) - 1 == len(set(cuts)) == len(list((tmp_path / "out" / "t_tiles").iterdir()))
    assert all(path.name.isascii() and all(c.isalnum() or c in "-." for c in path.name) for path in cuts)
    assert {path.suffix for path in cuts if path.name.startswith("000003")} == {".jpg"}
    told("\n".join(report), "3 images", "1 fit")


def test_tiles_are_the_same_each_time_and_backgrounds_are_chosen_by_the_seed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(name: str, background: float = 1.0, **options) -> dict[str, bytes]:
        monkeypatch.setattr(tiles, "BACKGROUND", background)
        cut(source, tmp_path / name / "t.txt", **options)
        return {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}

    every = contents("every")
    assert contents("again") == every
    none, half, other = (
        contents(f"some {n}", background=b, seed=s) for n, (b, s) in enumerate([(0, 0), (0.5, 0), (0.5, 1)])
    )
    empty = len(every) - len(none)
    assert empty >= 2 and len(half) == len(other) == len(none) + round(empty / 2)
    assert half.keys() <= every.keys() and (half.keys() != other.keys() or empty < 4)


def test_coco_json_and_splits(source: Path, tmp_path: Path) -> None:
    data = json.loads(Path(cut_to_json(source, tmp_path)).read_text(encoding="utf-8"))
    assert {(image["width"], image["height"]) for image in data["images"]} >= {(96, 96), (64, 60)}
    convert(str(source), str(tmp_path / "s" / "x.txt"), tile=96, split=(0.5, 0.5))
    parts = [read(str(tmp_path / "s" / f"x_{part}.txt"), "train") for part in ("train", "val")]
    images = [{place(p.path(i))[0] if "x_tiles" in p.path(i) else -1 for i in range(len(p))} for p in parts]
    assert not images[0] & images[1]  # tiles of one image stay in one part
    assert sum(map(len, parts)) == len(data["images"])


def test_the_area_of_a_cut_object_is_cut_with_its_box(tmp_path: Path) -> None:
    """An object of half the area of its box: a tile that shows a part of the box has half the area of this part."""
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 160, 3), np.uint8))
    images = [{"id": 7, "file_name": "a.png", "width": 160, "height": 100}]
    boxes = [[10, 10, 20, 40], [80, 20, 30, 40]]
    annotations = [
        {"id": n, "image_id": 7, "category_id": 5, "bbox": box, "area": box[2] * box[3] / 2}
        for n, box in enumerate(boxes)
    ]
    contents = {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "cat"}]}
    (tmp_path / "x.json").write_text(json.dumps(contents))
    convert(str(tmp_path / "x.json"), str(tmp_path / "out.json"), tile=96, overlap=0.1)
    data = json.loads((tmp_path / "out.json").read_text())
    sizes = [(row["bbox"][2:], row["area"]) for row in data["annotations"]]
    assert [20, 40] in [size for size, _ in sizes] and len(sizes) > 2  # a whole box, and cut ones
    assert [area for _, area in sizes] == pytest.approx([width * height / 2 for (width, height), _ in sizes])
    assert data["categories"] == contents["categories"]


def cut_to_json(source: Path, folder: Path) -> Path:
    convert(str(source), str(folder / "j.json"), tile=96)
    return folder / "j.json"


def test_errors_leave_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    for options, named in (
        ({"tile": 20}, ["tile=20", "at least 32"]),
        ({"overlap": 1.0}, ["overlap=1.0", "from 0 to 0.9"]),
        ({"tile": None}, ["overlap=", "tile="]),
    ):
        with refused(ValueError, *named):
            cut(source, out / "t.txt", **options)
    monkeypatch.setattr("tools.tiles.annotations_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cut(source, out / "t.txt")
    assert not out.exists() or not list(out.iterdir())
    monkeypatch.undo()
    cut(source, out / "t.txt")
    (out / "t.txt").unlink()
    with refused(DataError, out / "t_tiles"):
        cut(source, out / "t.txt")


def test_a_full_disk_is_named_with_the_tile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused(OSError, "out", ".png"):
        cut(source, tmp_path / "out" / "t.txt")
