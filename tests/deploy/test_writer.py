"""deploy/writer.py: the JSON and the crops of detections."""

import json

import cv2
import numpy as np
import pytest
from detections import CLASSES, collect, result
from refused import refused, told

from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy.label_files import LabelFiles
from deploy.writer import DetectionsFile, Results, folder_names


def test_the_json_has_unclipped_boxes_with_ids_and_names(tmp_path):
    collect(tmp_path).finish()
    entries = json.loads((tmp_path / "out/detections.json").read_text(encoding="utf-8"))
    assert [(e["image_id"], e["category_id"], e["class"], e["file_name"]) for e in entries] == [
        (1, 7, "红细胞", "x/pic.png"),
        (1, 90, "a/b", "x/pic.png"),
        (2, 90, "a/b", "y/pic.png"),
    ]
    assert entries[1]["bbox"] == [-5, 0, 205, 9] and entries[0]["score"] == pytest.approx(0.9)


def test_crops_hold_the_pixels_of_their_boxes(tmp_path):
    collect(tmp_path, crops=True)
    image = cv2.imread(str(tmp_path / "images/x/pic.png"))
    first = tmp_path / "out/crops/红细胞/x/pic.png_1.png"
    crop = cv2.imdecode(np.frombuffer(first.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert (crop == image[20:51, 10:30]).all()
    assert len(list((tmp_path / "out/crops").rglob("*.png"))) == 2  # the box outside has no pixels; a/b is one folder
    assert (tmp_path / "out/crops/a_b/x/pic.png_2.png").exists()


def test_the_json_is_complete_after_every_image_for_a_process_that_is_killed(tmp_path):
    results, image = Results(lambda: tmp_path, CLASSES, (7, 90)), np.zeros((20, 20, 3), np.uint8)
    for frame, boxes in enumerate(([], [[1, 1, 9, 9]] * 2, [], [[2, 2, 5, 5]])):
        results.add(image, result(boxes, [0] * len(boxes)), "v.mp4", "v.mp4", frame)
        lines = (tmp_path / "detections.json").read_text(encoding="utf-8").splitlines()
        frames = [entry["frame"] for entry in json.loads("".join(lines))]
        assert frames == [1, 1, 3][: len(frames)] and len(frames) == [0, 2, 2, 3][frame]
        assert len(lines) == len(frames) + 2  # a detection per line


def test_a_full_disk_leaves_the_detections_before_it(tmp_path):
    class Full:
        """A file that takes `free` more bytes."""

        def __init__(self, file):
            self.file, self.free = file, 1000

        def write(self, text):
            if not self.free:
                raise OSError("full")
            written = self.file.write(bytes(text)[: self.free])
            self.free -= written
            return written

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    file = DetectionsFile(tmp_path / "detections.json")
    file.add([{"frame": 0}])
    file._file = Full(file._file)
    with refused(OSError, "full"):
        file.add([{"frame": 1, "class": "x" * 2000}])
    file._file.free = 2  # the end of the array replaces bytes that are on the disk
    file.close()
    assert json.loads((tmp_path / "detections.json").read_text()) == [{"frame": 0}]


def test_a_folder_is_made_for_the_first_image_only(tmp_path):
    folder = tmp_path / "out"
    results = Results(lambda: folder.mkdir() or folder, CLASSES, (7, 90))
    assert results.finish() == "" and not folder.exists()
    results.add(np.zeros((20, 20, 3), np.uint8), result([], []), "a.png", "a.png")
    results.finish()
    assert json.loads((folder / "detections.json").read_text()) == []


def test_the_summary_counts_the_detections_and_the_images_of_each_class(tmp_path):
    results = Results(lambda: tmp_path, CLASSES, (7, 90))
    for labels in ([0, 0, 1], [0], []):
        results.add(np.zeros((20, 20, 3), np.uint8), result([[1, 1, 9, 9]] * len(labels), labels), "a.png", "a.png")
    text = results.finish()
    told(text, "3 images", f"3 {CLASSES[0]} in 2", f"1 {CLASSES[1]} in 1")


@pytest.mark.parametrize(
    "kind, place",
    [
        ("yolo", "images"),
        ("voc", "labels"),
        ("coco", "labels/coco.json"),
        ("txt", "labels/annotations.txt"),
    ],
)
def test_the_kept_frames_and_their_labels_are_data_to_train_on(tmp_path, kind, place):
    results = Results(lambda: tmp_path, CLASSES, (7, 90), labels=LabelFiles(kind, CLASSES, {}))
    for frame in range(0, 30, 10):
        results.add(np.full((40, 60, 3), 114, np.uint8), result([[5, 5, 30, 30]], [1]), "v.mp4", "in/v.mp4", frame)
    results.finish()
    root = None if kind == "yolo" else str(tmp_path / "images")
    options = ReadOptions(image_root=root, classes=CLASSES)
    data = read(str(tmp_path / place), "train", options)
    assert len(data) == 3 and {data.path(i) for i in range(3)} == {
        str(tmp_path / f"images/v.mp4_{frame:06}.jpg") for frame in range(0, 30, 10)
    }
    np.testing.assert_allclose(data.boxes, [[5, 5, 30, 30]] * 3, atol=1e-3)
    assert data.labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind, suffix", [("yolo", ".txt"), ("voc", ".xml")])
def test_a_second_recording_of_the_same_name_replaces_neither_labels_nor_their_images(tmp_path, kind, suffix):
    for gray, frames in ((0, (0, 1)), (200, (0, 1))):
        labels = LabelFiles(kind, CLASSES, {})
        results = Results(lambda: tmp_path, CLASSES, (7, 90), labels=labels)
        for frame in frames:
            results.add(np.full((40, 60, 3), gray, np.uint8), result([[5, 5, 30, 30]], [1]), "v.mp4", "in/v.mp4", frame)
        if gray == 0:
            (tmp_path / "images/v.mp4_000001.jpg").unlink()  # an image that is gone is written again
    images = [cv2.imread(str(path)).mean() for path in sorted((tmp_path / "images").iterdir())]
    assert images == [0, 200] and labels.kept == 2 and len(list((tmp_path / "labels").glob(f"*{suffix}"))) == 2


def test_tracks_are_in_the_json(tmp_path):
    results = Results(lambda: tmp_path, CLASSES, (7, 90))
    image = np.zeros((40, 60, 3), np.uint8)
    for frame, tracks in ((0, [-1, -1]), (10, [3, -1]), (20, [4, 3])):
        one = result([[5, 6, 30, 40], [1, 1, 9, 9]], [1, 0])
        one.tracks = np.array(tracks)
        results.add(image, one, "sub/v.mp4", "in/sub/v.mp4", frame)
    told(results.finish(), "2 objects")
    entries = json.loads((tmp_path / "detections.json").read_text())
    assert [(one["frame"], one["track_id"]) for one in entries] == [
        (0, -1),
        (0, -1),
        (10, 3),
        (10, -1),
        (20, 4),
        (20, 3),
    ]


def test_the_folders_of_classes_are_inside_the_output_folder_and_differ(tmp_path):
    classes = ["..", "../a", "dr.", "C:\\x", "a/b", "a_b", "A_B", *("猫" * 300 + end for end in "ab"), "é" * 200]
    names = folder_names(classes)
    assert names[:4] == ["_", "_a", "dr", "C__x"] and len({name.casefold() for name in names}) == len(classes)
    for name in names:
        (tmp_path / name).mkdir()
        assert (tmp_path / name).resolve().parent == tmp_path


@pytest.mark.parametrize(("limit", "full"), [(1, "2 images"), (2, "1 image"), (3, "")])
def test_images_whose_detections_reach_the_limit_are_counted(tmp_path, limit, full):
    results, image = Results(lambda: tmp_path, CLASSES, (7, 90), limit=limit), np.zeros((20, 20, 3), np.uint8)
    for count in (0, 1, 2):
        results.add(image, result([[1, 1, 9, 9]] * count, [0] * count), f"{count}.png", f"{count}.png")
    (line,) = [line for line in results.finish().splitlines() if "max_detections=" in line] or [""]
    assert line.startswith(full) and bool(line) == bool(full)
