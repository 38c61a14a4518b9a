"""The same small data set as labeling tools write it, by their own libraries: `python -m tests.tool_files` in the repository.

It writes tests/data/tools, which the quick tests read without the libraries;
tests/datasets/formats/test_round_trip.py writes it anew.
"""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np

from deploy.label_files import label_studio_config

CLASSES = ("cat", "small dog", "鸟")
IMAGES = {  # name -> height and width, boxes x1, y1, x2, y2 and label
    "a 1.png": ((60, 80), [(10, 20, 30, 50, 0), (0, 0, 80, 9, 2)]),
    "b.png": ((48, 64), [(7, 5, 18, 40, 1)]),
    "empty.png": ((32, 32), []),
}
PACKAGES = {"supervision": "supervision", "datumaro": "datumaro", "label_studio": "label-studio-sdk"}


def truth(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [n, 4] xyxy and labels [n] of an image."""
    rows = np.array([*IMAGES.values()][index][1], float).reshape(-1, 5)
    return rows[:, :4], rows[:, 4].astype(int)


def write_images(folder: Path) -> list[str]:
    """Draws the images and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for level, (name, ((height, width), _)) in enumerate(IMAGES.items()):
        image = np.full((height, width, 3), 50 * level, np.uint8)
        (folder / name).write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return [str(folder / name) for name in IMAGES]


def uploaded(name: str) -> str:
    """The name that Label Studio gives to an uploaded image."""
    return f"0a1b2c3d-{name.replace(' ', '_')}"


def supervision(folder: Path) -> None:
    """COCO, YOLO and VOC."""
    import supervision as sv

    paths = write_images(folder / "source")
    found = {}
    for index, path in enumerate(paths):
        boxes, labels = truth(index)
        found[path] = sv.Detections(xyxy=boxes, class_id=labels) if len(boxes) else sv.Detections.empty()
    data = sv.DetectionDataset(classes=list(CLASSES), images=paths, annotations=found)
    data.as_coco(str(folder / "coco" / "images"), str(folder / "coco" / "annotations.json"))
    yolo = folder / "yolo"
    data.as_yolo(str(yolo / "images"), str(yolo / "labels"), str(yolo / "data.yaml"))
    data.as_pascal_voc(str(folder / "voc" / "images"), str(folder / "voc" / "annotations"))
    shutil.rmtree(folder / "source")


def datumaro(folder: Path) -> None:
    """COCO, CVAT, VOC and both YOLO layouts: the formats in which CVAT exports, with the library that CVAT uses."""
    from datumaro.components.annotation import Bbox
    from datumaro.components.dataset import Dataset
    from datumaro.components.dataset_base import DatasetItem
    from datumaro.components.media import Image

    items = []
    for index, path in enumerate(write_images(folder / "source")):
        boxes = [
            Bbox(x1, y1, x2 - x1, y2 - y1, label=int(label), id=number, group=number)
            for number, ((x1, y1, x2, y2), label) in enumerate(zip(*truth(index), strict=True))
        ]
        items.append(
            DatasetItem(
                Path(path).stem, subset="val" if index == 1 else "train", media=Image.from_file(path), annotations=boxes
            )
        )
    data = Dataset.from_iterable(items, categories=list(CLASSES))
    for name in ("coco_instances", "cvat", "voc_detection", "yolo", "yolo_ultralytics"):
        data.export(str(folder / name), name, save_media=True)
    shutil.rmtree(folder / "source")


def label_studio(folder: Path) -> None:
    """The tasks of a JSON export, and COCO, YOLO and VOC by the converter that Label Studio's own exports use."""
    from label_studio_sdk.converter import Converter

    tasks = []
    for index, (name, ((height, width), _)) in enumerate(IMAGES.items()):
        regions = []
        for number, ((x1, y1, x2, y2), label) in enumerate(zip(*truth(index), strict=True)):
            value = {"x": x1 / width, "y": y1 / height, "width": (x2 - x1) / width, "height": (y2 - y1) / height}
            value = {key: 100 * fraction for key, fraction in value.items()}
            value |= {"rotation": 0, "rectanglelabels": [CLASSES[label]]}
            fixed = {"type": "rectanglelabels", "from_name": "label", "to_name": "image", "image_rotation": 0}
            regions.append(
                {"id": f"r{number}", **fixed, "original_width": width, "original_height": height, "value": value}
            )
        annotation = {"id": index + 1, "result": regions, "was_cancelled": False, "completed_by": 1}
        data = {"image": f"/data/upload/1/{uploaded(name)}"}
        tasks.append({"id": index + 1, "data": data, "annotations": [annotation], "predictions": []})
    file = folder / "json" / "export.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")
    converter = Converter(label_studio_config(CLASSES), str(folder), download_resources=False)
    converter.convert_to_json_min(str(file), str(folder / "json_min"), is_dir=False)
    converter.convert_to_coco(str(file), str(folder / "coco"), is_dir=False)
    converter.convert_to_yolo(str(file), str(folder / "yolo"), is_dir=False)
    converter.convert_to_voc(str(file), str(folder / "voc"), is_dir=False)
    for kind in ("json", "json_min", "coco", "yolo", "voc"):
        for path in write_images(folder / kind / "images"):
            Path(path).rename(Path(path).with_name(uploaded(Path(path).name)))


def main(folder: Path) -> None:
    """Writes the files of all tools, and README.md with their versions."""
    for tool in PACKAGES:
        shutil.rmtree(folder / tool, ignore_errors=True)
        globals()[tool](folder / tool)
    rows = "".join(f"| `{tool}` | {package} {version(package)} |\n" for tool, package in PACKAGES.items())
    text = "# One data set, written by other tools\n\nThree images with three boxes. "
    text += "`python -m tests.tool_files` writes the files anew.\n\n"
    (folder / "README.md").write_text(f"{text}| folder | written by |\n|---|---|\n{rows}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/tools"))
