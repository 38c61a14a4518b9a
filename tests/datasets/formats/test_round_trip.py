"""Other tools read what predict.py labels= writes, and what they write is read here, with equal boxes and classes.

The quick tests read tests/data/tools, which the tools' own libraries wrote. In the slow ones, these libraries read files.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tool_files
from tool_files import CLASSES, IMAGES, truth

from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy.label_files import Labeled, LabelFiles, label_studio_config

TOOLS = Path(__file__).parents[2] / "data" / "tools"
# Of each file that a tool writes: its parts, the folder of the images, and how far a box may be from the truth.
# supervision writes VOC from 1 instead of 0; Label Studio's VOC has whole pixels, rounded down, and no file without boxes.
FILES = {
    "supervision/coco/annotations.json": ("all", "images", 1e-3),
    "supervision/yolo/data.yaml": ("all", None, 1e-3),
    "supervision/voc": ("all", None, 1),
    "datumaro/coco_instances/annotations/instances_train.json": ("train", None, 1e-3),
    "datumaro/coco_instances/annotations/instances_val.json": ("val", None, 1e-3),
    "datumaro/cvat/train.xml": ("train", None, 1e-2),
    "datumaro/cvat/val.xml": ("val", None, 1e-2),
    "datumaro/voc_detection": ("train val", None, 1e-3),
    "datumaro/yolo": ("train val", None, 1e-3),
    "datumaro/yolo_ultralytics": ("train val", None, 1e-3),
    "label_studio/json/export.json": ("all", None, 1e-3),
    "label_studio/json_min/result.json": ("all", None, 1e-3),
    "label_studio/coco/result.json": ("all", None, 1e-3),
    "label_studio/yolo": ("all", None, 1e-3),
    "label_studio/voc": ("all", None, 1),
}


def check_file(folder: Path, file: str) -> None:
    """Compares what is read from a tool's file with the truth, image by image."""
    parts, images, tolerance = FILES[file]
    found = {}
    for part in parts.split():
        root = images and str((folder / file).parent / images)
        data = read(
            str(folder / file), part, ReadOptions(classes=CLASSES if file.endswith("voc") else None, image_root=root)
        )
        assert data.classes == CLASSES
        for index in range(len(data)):
            assert Path(data.path(index)).is_file()
            found[Path(data.path(index)).name.replace("0a1b2c3d-a_1", "a 1").replace("0a1b2c3d-", "")] = data.boxes_of(
                index
            )
    expected = {"train": {"a 1.png", "empty.png"}, "val": {"b.png"}}.get(parts, set(IMAGES))
    assert set(found) in (expected, expected - {"empty.png"} if tolerance == 1 else expected)
    for index, name in enumerate(IMAGES):
        if name in found:
            boxes, labels = truth(index)
            np.testing.assert_allclose(found[name][0], boxes, atol=tolerance)
            assert found[name][1].tolist() == labels.tolist()


@pytest.mark.parametrize("file", FILES)
def test_files_of_other_tools_are_read(file):
    check_file(TOOLS, file)


# ---- what is written here


def detected(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes at fractions of pixels, and their scores."""
    boxes = truth(index)[0]
    (height, width), _ = [*IMAGES.values()][index]
    return (boxes + 0.25).clip(0, (width, height, width, height)), np.linspace(0.9, 0.5, len(boxes))


def write(folder: Path, kind: str) -> Path:
    """Writes images/ and labels/, as YOLO data have them, and returns the folder."""
    images = dict(zip(IMAGES, tool_files.write_images(folder / "images"), strict=True))
    files = LabelFiles(kind, CLASSES, images, "run/best.pt")
    for index, (name, path) in enumerate(images.items()):
        boxes, scores = detected(index)
        height, width = IMAGES[name][0]
        files.add(folder / "labels", Labeled(name, path, (width, height), boxes, truth(index)[1], scores))
    files.finish(folder / "labels")
    return folder


def check(found: dict[str, list], atol: float = 1e-2, shift: int = 0) -> None:
    """Compares name of the image -> rows x1, y1, x2, y2, label (and score) with what was written."""
    assert set(found) <= set(IMAGES) and len(found) >= 2  # some tools leave out images without boxes
    for index, name in enumerate(IMAGES):
        boxes, scores = detected(index)
        expected = np.column_stack([boxes, truth(index)[1], scores])
        expected[:, :2] -= shift
        rows = sorted(found.get(name, []), key=lambda row: row[4])  # labels differ within an image
        assert len(rows) == len(expected)
        for row, wanted in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row, wanted[: len(row)], atol=atol)


def label_studio_rows(tasks: list[dict], key: str) -> dict[str, list]:
    """Rows of the regions of Label Studio's tasks."""
    found = {}
    for task in tasks:
        rows = found.setdefault(Path(task["data"]["image"].replace("%20", " ").rpartition("=")[2]).name, [])
        for region in task[key][0]["result"]:
            value, width, height = region["value"], region["original_width"], region["original_height"]
            x, w = (value[side] * width / 100 for side in ("x", "width"))
            y, h = (value[side] * height / 100 for side in ("y", "height"))
            score = [region["score"]] if "score" in region else []
            rows.append([x, y, x + w, y + h, CLASSES.index(value["rectanglelabels"][0]), *score])
    return found


@pytest.mark.slow
def test_label_studio_accepts_the_predictions_and_exports_the_same_boxes(tmp_path):
    pytest.importorskip("label_studio_sdk")
    from label_studio_sdk.converter import Converter
    from label_studio_sdk.label_interface import LabelInterface
    from label_studio_sdk.label_interface.objects import PredictionValue, TaskValue

    labels = write(tmp_path, "labelstudio") / "labels"
    tasks = json.loads((labels / "labelstudio.json").read_text(encoding="utf-8"))
    interface = LabelInterface((labels / "labelstudio.xml").read_text(encoding="utf-8"))
    interface.validate()
    for task in tasks:
        assert TaskValue(**task).data == task["data"] and interface.validate_task({"data": task["data"]})
        for prediction in task["predictions"]:
            assert interface.validate_prediction(prediction, return_errors=True) == []
            assert PredictionValue(**prediction).model_version == "run/best.pt"
    check(label_studio_rows(tasks, "predictions"))
    annotated = [{"id": i, "data": task["data"], "annotations": task["predictions"]} for i, task in enumerate(tasks)]
    (tmp_path / "tasks.json").write_text(json.dumps(annotated))  # as if a person had accepted all of them
    converter = Converter(label_studio_config(CLASSES), str(tmp_path), download_resources=False)
    converter.convert_to_coco(str(tmp_path / "tasks.json"), str(tmp_path / "coco"), is_dir=False)
    data = read(
        str(tmp_path / "coco" / "result.json"), "all", ReadOptions(classes=CLASSES, image_root=str(tmp_path / "images"))
    )
    for index in range(2):
        np.testing.assert_allclose(data.boxes_of(index)[0], detected(index)[0], atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["yolo", "coco"])
def test_the_converter_of_label_studio_imports_label_files(tmp_path, kind):
    pytest.importorskip("label_studio_sdk")
    from label_studio_sdk.converter.imports import coco, yolo

    write(tmp_path, kind)
    out = tmp_path / "tasks.json"
    if kind == "coco":
        coco.convert_coco_to_ls(str(tmp_path / "labels" / "coco.json"), str(out), out_type="predictions")
    else:
        shutil.copy(tmp_path / "labels" / "classes.txt", tmp_path)
        yolo.convert_yolo_to_ls(str(tmp_path), str(out), out_type="predictions")
    found = label_studio_rows(json.loads(out.read_text()), "predictions")
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_datumaro_which_cvat_uses_imports_label_files(tmp_path, kind):
    pytest.importorskip("datumaro")
    from datumaro.components.dataset import Dataset

    labels = write(tmp_path, kind) / "labels"
    if kind == "coco":
        labels = labels.rename(tmp_path / "annotations")
    elif kind == "voc":
        labels.rename(tmp_path / "Annotations")
        (tmp_path / "images").rename(tmp_path / "JPEGImages")
        (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
        (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("".join(f"{Path(name).stem}\n" for name in IMAGES))
        (tmp_path / "labelmap.txt").write_text("".join(f"{name}:::\n" for name in CLASSES), encoding="utf-8")
    else:
        for folder in ("images", "labels"):
            (tmp_path / folder).rename(tmp_path / "train")
            (tmp_path / folder).mkdir()
            (tmp_path / "train").rename(tmp_path / folder / "train")
        (tmp_path / "data.yaml").write_text(f"train: images/train\nnames: {list(CLASSES)}\n", encoding="utf-8")
    place, name = {
        "coco": (labels / "coco.json", "coco_instances"),
        "voc": (tmp_path, "voc_detection"),
        "yolo": (tmp_path, "yolo"),
    }[kind]
    data, found = Dataset.import_from(str(place), name), {}
    names = [label.name for label in next(iter(data.categories().values()))]
    for item in data:
        rows = found.setdefault(f"{item.id}.png", [])
        for box in item.annotations:
            score = [box.attributes["score"]] if kind == "coco" else []
            rows.append([*box.points, CLASSES.index(names[box.label]), *score])
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_supervision_imports_label_files(tmp_path, kind):
    """It reads VOC from 1 instead of 0: its boxes begin a pixel further to the top left."""
    sv = pytest.importorskip("supervision")
    write(tmp_path, kind)
    images, labels = str(tmp_path / "images"), str(tmp_path / "labels")
    if kind == "coco":
        data = sv.DetectionDataset.from_coco(images, f"{labels}/coco.json")
    elif kind == "voc":
        data = sv.DetectionDataset.from_pascal_voc(images, labels)
    else:
        (tmp_path / "data.yaml").write_text(f"names: {list(CLASSES)}\n", encoding="utf-8")
        data = sv.DetectionDataset.from_yolo(images, labels, str(tmp_path / "data.yaml"))
    order = [CLASSES.index(name) for name in data.classes]
    found = {
        Path(path).name: [[*box, order[label]] for box, label in zip(boxes.xyxy, boxes.class_id, strict=True)]
        for path, _, boxes in data
    }
    check(found, shift=int(kind == "voc"))
