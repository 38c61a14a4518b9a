"""Writes images with suspects for Label Studio and CVAT: their labels, and what the models propose."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datasets.store import Annotations
from deploy.label_files import (
    NOT_IN_XML,
    Labeled,
    add_children,
    label_studio_boxes,
    label_studio_config,
    label_studio_task,
    xml_text,
)
from tools.disagreement import Suspect
from utils.boxes import clip
from utils.outputs import write_all

MODEL = "tools.suspects"  # the name of the predictions in Label Studio
MARKS = ("no", "missing", "wrong", "loose", "doubled", "proposal")  # values of the attribute `suspect` of CVAT


def write_label_files(
    folder: Path, data: Annotations, order: list[int], suspects: list[Suspect], names: list[str]
) -> list[str]:
    """Writes labelstudio.json, labelstudio.xml and cvat.xml of the images in `order`, and returns notes of what they lack.

    Label Studio gets the labels as an annotation, and the labels after all proposals as a prediction. CVAT gets the labels
    and the proposals as boxes, whose attribute `suspect` tells which is which. `names` [N]: the image files in CVAT.
    """
    of_image: dict[int, list[Suspect]] = {index: [] for index in order}
    for one in suspects:
        of_image[one.image].append(one)
    tasks, marked = [], []
    for index, found in of_image.items():
        corrected = labeled(data, index, names[index], *after_proposals(data, index, found))
        task = label_studio_task(corrected, data.classes, MODEL)
        present = label_studio_boxes(labeled(data, index, names[index], *present_labels(data, index)), data.classes)
        for box in present:
            del box["score"]
        tasks.append(task | {"annotations": [{"result": present}]})
        boxes, labels, scores, marks = with_proposals(data, index, found)
        marked.append((labeled(data, index, names[index], boxes, labels, scores), marks))
    notes = []
    texts = {folder / "labelstudio.json": json.dumps(tasks, ensure_ascii=False)}
    texts[folder / "labelstudio.xml"] = label_studio_config(data.classes)
    unwritable = [name for name in (*names, *data.classes) if NOT_IN_XML.search(name)]
    if unwritable:
        notes.append(f"cvat.xml is not written, because XML cannot hold the name {unwritable[0]!r}: rename it")
    else:
        texts[folder / "cvat.xml"] = cvat_text(marked, data.classes)
    crowd = sum(int(data.boxes_of(index)[2].sum()) for index in order)
    if crowd:
        notes.append(f"labelstudio.json and cvat.xml lack the crowd regions of their images: {crowd}")
    write_all(texts)
    return notes


def labeled(
    data: Annotations, index: int, name: str, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray
) -> Labeled:
    """Returns an image with boxes, clipped to it, for the label files."""
    height, width = data.sizes[index].tolist()
    boxes = clip(np.asarray(boxes, np.float64).reshape(-1, 4), width, height)
    return Labeled(name, data.path(index), (width, height), boxes, labels, scores)


def present_labels(data: Annotations, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns boxes, labels and scores of the labels of an image, without its crowd regions."""
    boxes, labels, crowd = data.boxes_of(index)
    return boxes[~crowd], labels[~crowd], np.ones(len(boxes) - crowd.sum())


def after_proposals(data: Annotations, index: int, suspects: list[Suspect]) -> tuple[np.ndarray, ...]:
    """Returns boxes, labels and scores after all proposals. A changed or new box has the score of its suspect."""
    boxes, labels, crowd = (part.copy() for part in data.boxes_of(index))
    scores, stays, new = np.ones(len(boxes)), ~crowd, []
    for one in suspects:
        if one.kind == "missing":
            new.append(one)
            continue
        scores[one.row] = one.score
        if one.kind == "wrong":
            labels[one.row] = one.proposal.label
        elif one.kind == "loose":
            boxes[one.row] = one.proposal.box
        else:
            stays[one.row] = False
    boxes = np.concatenate([boxes[stays], *(one.proposal.box[None] for one in new)])
    labels = np.append(labels[stays], [one.proposal.label for one in new]).astype(int)
    return boxes, labels, np.append(scores[stays], [one.score for one in new])


def with_proposals(
    data: Annotations, index: int, suspects: list[Suspect]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Returns boxes, labels and scores of the labels and of the proposals of an image, and their marks for CVAT."""
    boxes, labels, crowd = data.boxes_of(index)
    marks = np.full(len(boxes), "no", object)
    proposals = [one for one in suspects if one.proposal is not None]
    for one in suspects:
        if one.row >= 0:
            marks[one.row] = one.kind
    boxes = np.concatenate([boxes[~crowd], *(one.proposal.box[None] for one in proposals)])
    labels = np.append(labels[~crowd], [one.proposal.label for one in proposals]).astype(int)
    words = ["missing" if one.kind == "missing" else "proposal" for one in proposals]
    return boxes, labels, np.ones(len(boxes)), [*marks[~crowd], *words]


def cvat_text(images: Sequence[tuple[Labeled, Sequence[str]]], classes: Sequence[str]) -> str:
    """Formats images, each with a mark per box (one of MARKS), as "CVAT for images 1.1" XML, which has no place for scores."""
    root = ET.Element("annotations")
    add_children(root, version="1.1")
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    add_children(task, size=len(images), mode="annotation")
    labels = ET.SubElement(task, "labels")
    for name in classes:
        label = ET.SubElement(labels, "label")
        add_children(label, name=name)
        attribute = ET.SubElement(ET.SubElement(label, "attributes"), "attribute")
        add_children(attribute, name="suspect", mutable="False", input_type="select")
        add_children(attribute, default_value=MARKS[0], values="\n".join(MARKS))
    for number, (image, marks) in enumerate(images):
        width, height = map(str, image.size)
        node = ET.SubElement(root, "image", id=str(number), name=image.name, width=width, height=height)
        for (box, name, _), mark in zip(image.rows(classes), marks, strict=True):
            corners = {key: f"{value:.2f}" for key, value in zip(("xtl", "ytl", "xbr", "ybr"), box, strict=True)}
            shape = ET.SubElement(node, "box", label=name, source="auto", occluded="0", **corners, z_order="0")
            ET.SubElement(shape, "attribute", name="suspect").text = mark
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml_text(root)
