"""Exports of annotation tools with their default options: what their exporters write, with the truth written by hand.

Each function of EXPORTS writes a folder as one exporter does; its docstring names the exporter's source. Label Studio and
datumaro, with which CVAT writes its other formats, are in test_round_trip.py; tables and JSON Lines in test_other_tools.py.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from drawn import ALL, BOXES, CLASSES, LABELED, SIZES, Export, coco, each, images, polygon, stem, voc
from files import paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.read import read

# ---- CVAT


def cvat_xml() -> str:
    """Returns an XML file of "CVAT for images 1.1"."""
    labels = "".join(f"<label><name>{name}</name><color>#fff</color><type>any</type></label>" for name in CLASSES)
    rows = []
    for number, name in enumerate(sorted(ALL)):
        shapes = each(
            lambda x1, y1, x2, y2, label: (
                f'<box label="{label}" source="manual" occluded="0" xtl="{x1:.2f}" '
                f'ytl="{y1:.2f}" xbr="{x2:.2f}" ybr="{y2:.2f}" z_order="0"></box>'
            ),
            name,
        )
        subset = f' subset="{"Validation" if name == "b.jpg" else "Train"}" task_id="7"'
        width, height = SIZES[name]
        head = f'id="{number}" name="{name}"{subset} width="{width}" height="{height}"'
        rows.append(f"<image {head}>{''.join(shapes)}</image>")
    meta = f"<meta><project><id>7</id><labels>{labels}</labels></project><dumped>2024</dumped></meta>"
    return (
        f'<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>{meta}{"".join(rows)}</annotations>'
    )


def cvat_project(folder: Path) -> Export:
    """cvat-ai/cvat, cvat/apps/dataset_manager/formats/cvat.py, commit a01a8a8f, of a project: the subset of each image."""
    text(folder / "annotations.xml", cvat_xml())
    (
        images(folder / "images" / "Train", ["one cat.jpg", "empty.jpg"]),
        images(folder / "images" / "Validation", ["b.jpg"]),
    )
    return Export(splits={"train": ["empty.jpg", "one cat.jpg"], "val": ["b.jpg"]})


# ---- LabelMe


def labelme(folder: Path) -> Export:
    """wkentaro/labelme, labelme/_label_file.py, write_label_file, and the shapes of labelme/_shape.py, commit 51e50e43."""
    images(folder)
    mask = base64.b64encode(cv2.imencode(".png", np.ones((36, 12), np.uint8))[1].tobytes()).decode()
    drawn = {
        "one cat.jpg": [
            ("cat", "rectangle", [[40.0, 36.0], [8.0, 6.0]], None),
            ("dog", "polygon", polygon(41, 12, 80, 54), None),
            ("dog", "point", [[3.0, 3.0]], None),
        ],
        "b.jpg": [("dog", "mask", [[7.0, 5.0], [18.0, 40.0]], mask)],
        "empty.jpg": [],
    }
    for name, shapes in drawn.items():
        rows = [
            {"label": label, "points": points, "group_id": None, "description": "", "shape_type": kind}
            | {"flags": {}, "mask": mask}
            for label, kind, points, mask in shapes
        ]
        width, height = SIZES[name]
        image = base64.b64encode((folder / name).read_bytes()).decode()
        contents = {"version": "6.0.0", "flags": {}, "shapes": rows, "imagePath": name, "imageData": image}
        text(folder / f"{stem(name)}.json", contents | {"imageHeight": height, "imageWidth": width})
    return Export(notes=("'dog' (point)",))


# ---- Supervisely


def supervisely(folder: Path) -> Export:
    """supervisely/supervisely, annotation/annotation.py, Annotation.to_json, commit 021c3f2e; geometry/rectangle.py, 0933cf38."""
    text(folder / "meta.json", {"classes": [{"title": name, "shape": "rectangle"} for name in CLASSES], "tags": []})
    for name in ALL:
        paint(folder / "ds" / "img" / name, *SIZES[name])
        shapes = each(
            lambda x1, y1, x2, y2, label: (
                {"id": 5, "classId": 3, "classTitle": label, "geometryType": "rectangle"}
                | {"points": {"exterior": [[x1, y1], [x2, y2]], "interior": []}, "tags": [], "labelerLogin": "me"}
            ),
            name,
        )
        size = {"height": SIZES[name][1], "width": SIZES[name][0]}
        contents = {"description": "", "size": size, "tags": [], "objects": shapes, "customBigData": {}}
        text(folder / "ds" / "ann" / f"{name}.json", contents)
    return Export()


# ---- Make Sense


def make_sense_vgg(folder: Path) -> Export:
    """SkalskiP/make-sense, src/logic/export/polygon/VGGExporter.ts, commit ee5ee68b: closed polygons, regions in an object."""
    images(folder)
    rows = {}
    for name in LABELED:
        regions = each(
            lambda *row: {"shape_attributes": closed(*row[:4]), "region_attributes": {"label": row[4]}}, name
        )
        rows[name] = {"fileref": "", "size": 1, "filename": name, "base64_img_data": "", "file_attributes": {}}
        rows[name]["regions"] = {str(number): region for number, region in enumerate(regions)}
    text(folder / "labels_my-project-name.json", rows)
    return Export(splits={"train": LABELED}, notes=("empty.jpg",))


def closed(*corners: int) -> dict[str, Any]:
    points = polygon(*corners)
    xs, ys = zip(*points, points[0], strict=True)
    return {"name": "polygon", "all_points_x": xs, "all_points_y": ys}


# ---- VoTT


def vott_voc(folder: Path) -> Export:
    """microsoft/VoTT, src/providers/export/pascalVOC.ts, commit 47f5e007: lists of each tag, with 1 and -1."""
    images(folder / "JPEGImages", LABELED)
    for name in LABELED:
        text(
            folder / "Annotations" / f"{stem(name)}.xml",
            voc(name, more=f"<path>x-PascalVOC-export/Annotations/{name}</path>"),
        )
    for part, name in (("train", "one cat.jpg"), ("val", "b.jpg")):
        for label in CLASSES:
            flag = "1" if any(row[-1] == label for row in BOXES[name]) else "-1"
            text(folder / "ImageSets" / "Main" / f"{label}_{part}.txt", f"{name} {flag}")
    text(folder / "pascal_label_map.pbtxt", "item {\n id: 1\n name: 'cat'\n}\nitem {\n id: 2\n name: 'dog'\n}\n")
    return Export(splits={"train": ["one cat.jpg"], "val": ["b.jpg"]})


# ---- Roboflow


def of_roboflow(name: str) -> str:
    return f"{stem(name).replace(' ', '-')}_jpg.rf.2f319e949748145fb22dcb52bb325a0c.jpg"


def roboflow_coco(folder: Path) -> Export:
    """Written by Roboflow: chroma-core/chroma, chroma-ui/src/components/DataViewer/cocodetection.tsx: category 0 is a group."""
    groups = [{"id": 0, "name": "animals", "supercategory": "none"}]
    groups += [{"id": number, "name": name, "supercategory": "animals"} for number, name in enumerate(CLASSES, 1)]
    for part, names in (("train", ["one cat.jpg", "empty.jpg"]), ("valid", ["b.jpg"])):
        images(folder / part, names, of_roboflow)
        info = {"info": {"year": "2020", "description": "Exported from roboflow.ai"}, "licenses": [{"id": 1}]}
        contents = coco(names, 0, of_roboflow) | {"categories": groups}
        text(folder / part / "_annotations.coco.json", info | contents)
    splits = {"train": ["one cat.jpg", "empty.jpg"], "val": ["b.jpg"]}
    return Export(splits=splits, renamed=of_roboflow, notes=("animals",))


# ---- Create ML


def create_ml(names: list[str], renamed: Callable[[str], str] = str) -> list[dict[str, Any]]:
    """Returns images with the centers and the sizes of their boxes."""

    def labeled(x1: int, y1: int, x2: int, y2: int, label: str) -> dict[str, Any]:
        return {
            "label": label,
            "coordinates": {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1},
        }

    return [{"image": renamed(name), "annotations": each(labeled, name)} for name in names]


def apple_createml(folder: Path) -> Export:
    """developer.apple.com/documentation/createml, MLObjectDetector.DataSource: the fields imagefilename and annotation."""
    images(folder)
    rows = [{"imagefilename": row["image"], "annotation": row["annotations"]} for row in create_ml(ALL)]
    text(folder / "annotations.json", rows)
    return Export()


# ---- SageMaker Ground Truth


def manifest(folder: Path) -> Export:
    """docs.aws.amazon.com/sagemaker, sms-data-output, "Bounding box job output"; the class map is that of each image."""
    images(folder)
    rows = []
    for name in ALL:
        labels = [CLASSES.index(row[-1]) for row in BOXES[name]]
        boxes = each(
            lambda x1, y1, x2, y2, label: (
                {"class_id": CLASSES.index(label), "left": x1, "top": y1, "width": x2 - x1, "height": y2 - y1}
            ),
            name,
        )
        size = {"width": SIZES[name][0], "height": SIZES[name][1], "depth": 3}
        job = {"class-map": {str(n): CLASSES[n] for n in labels}, "type": "groundtruth/object-detection"}
        rows.append(
            {"source-ref": f"s3://bucket/pets/{name}", "pets": {"image_size": [size], "annotations": boxes}}
            | {"pets-metadata": job | {"human-annotated": "yes", "objects": [{"confidence": 0.9}] * len(boxes)}}
        )
    text(folder / "output.manifest", "".join(f"{json.dumps(row)}\n" for row in rows))
    return Export()


EXPORTS = (
    *(cvat_project, labelme, supervisely, make_sense_vgg, vott_voc),
    *(roboflow_coco, apple_createml, manifest),
)


@pytest.mark.parametrize("write", EXPORTS, ids=lambda write: write.__name__)
def test_the_export_of_a_tool_is_read_as_it_was_drawn(tmp_path: Path, write: Callable[[Path], Export]) -> None:
    export = write(tmp_path)
    for split, names in export.splits.items():
        found = read(str(tmp_path / export.source), split, export.options)
        assert found.classes == CLASSES
        drawn = {export.renamed(name): BOXES[name] for name in names}
        assert sorted(Path(found.path(index)).name for index in range(len(found))) == sorted(drawn)
        for index in range(len(found)):
            boxes, labels, crowd = found.boxes_of(index)
            rows = drawn[Path(found.path(index)).name]
            assert Path(found.path(index)).is_file() and not crowd.any()
            assert [found.classes[label] for label in labels] == [row[-1] for row in rows]
            np.testing.assert_allclose(boxes, np.array([row[:4] for row in rows]).reshape(-1, 4), atol=export.atol)
        assert len(found.notes) == len(export.notes), found.notes
        assert all(word in note for word, note in zip(export.notes, found.notes, strict=True))


def make_sense_csv(folder: Path) -> None:
    """SkalskiP/make-sense, src/logic/export/RectLabelsExporter.ts, exportAsCSV, commit ee5ee68b."""
    images(folder)
    head = "label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height"
    rows = [
        f"{label},{x1},{y1},{x2 - x1},{y2 - y1},{name},{SIZES[name][0]},{SIZES[name][1]}"
        for name in ALL
        for x1, y1, x2, y2, label in BOXES[name]
    ]
    text(folder / "labels_my-project-name_2024-05-01-10-00-00.csv", "\n".join([head, *rows]))


def test_the_csv_of_make_sense_is_refused_with_the_header_to_write(tmp_path: Path) -> None:
    """Its corners would be read as sizes."""
    images(tmp_path), make_sense_csv(tmp_path)
    with refused(
        DataError, "labels_my-project-name_2024-05-01-10-00-00.csv:1", "filename,width,height,class,xmin,ymin,xmax,ymax"
    ):
        read(str(tmp_path), "train")


MISTAKES = {  # changes of a line of a manifest -> what the error names
    "class": ({"pets": {"annotations": [{"class_id": 7, "left": 1, "top": 2, "width": 3, "height": 4}]}}, "class-map"),
    "text": ({"pets": {"annotations": [{"class_id": 0, "left": "x", "top": 2, "width": 3, "height": 4}]}}, "pets"),
    "two jobs": ({"dogs": {"annotations": []}, "dogs-metadata": {"type": "groundtruth/object-detection"}}, "dogs"),
    "no image": ({"source-ref": None}, "source-ref"),
    "unlabeled": ({"pets-metadata": {"failure-reason": "x"}}, "output manifest"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_in_a_manifest_are_named(tmp_path: Path, what: str) -> None:
    change, named = MISTAKES[what]
    boxes = [{"class_id": 0, "left": 1, "top": 2, "width": 3, "height": 4}]
    job = {"class-map": {"0": "cat"}, "type": "groundtruth/object-detection"}
    row = {"source-ref": "s3://b/a.jpg", "pets": {"annotations": boxes}, "pets-metadata": job}
    path = text(tmp_path / "output.manifest", json.dumps(row | change) + "\n")
    with refused(DataError, path, named):
        read(str(path), "train")


def test_images_of_a_manifest_that_were_not_labeled_are_counted(tmp_path: Path) -> None:
    manifest(tmp_path)
    path = tmp_path / "output.manifest"
    path.write_text(path.read_text() + '{"source-ref": "s3://bucket/pets/later.jpg"}\n')
    (note,) = read(str(path), "train").notes
    assert ": 1" in note and "output.manifest:4" in note


def test_an_image_of_create_ml_without_a_list_is_no_background(tmp_path: Path) -> None:
    path = text(tmp_path / "x.json", [*create_ml(["b.jpg"]), {"image": "a.jpg"}])
    with refused(DataError, "x.json: [1]"):
        read(str(path), "train")
