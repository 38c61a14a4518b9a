"""Writes images with suspects for Label Studio: their labels as an annotation, and what the models propose as a prediction."""

import json
from pathlib import Path

import numpy as np

from datasets.store import Annotations
from deploy.label_files import Labeled, label_studio_boxes, label_studio_config, label_studio_task
from tools.disagreement import Suspect
from utils.boxes import clip
from utils.outputs import write_all

MODEL = "tools.suspects"  # the name of the predictions in Label Studio


def write_label_files(folder: Path, data: Annotations, order: list[int], suspects: list[Suspect]) -> list[str]:
    """Writes labelstudio.json and labelstudio.xml of the images in `order`, and returns notes of what they lack."""
    of_image: dict[int, list[Suspect]] = {index: [] for index in order}
    for suspect in suspects:
        of_image[suspect.image].append(suspect)
    tasks, crowds = [], 0
    for index, found in of_image.items():
        boxes, labels, crowd = data.boxes_of(index)
        crowds += int(crowd.sum())
        present = label_studio_boxes(labeled(data, index, boxes[~crowd], labels[~crowd]), data.classes)
        for box in present:
            del box["score"]
        task = label_studio_task(labeled(data, index, *after_proposals(data, index, found)), data.classes, MODEL)
        tasks.append(task | {"annotations": [{"result": present}]})
    texts = {"labelstudio.json": json.dumps(tasks, ensure_ascii=False)}
    texts["labelstudio.xml"] = label_studio_config(data.classes)
    write_all({folder / name: text for name, text in texts.items()})
    return [f"labelstudio.json lacks the crowd regions of its images: {crowds}"] if crowds else []


def labeled(
    data: Annotations, index: int, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray | None = None
) -> Labeled:
    """Returns an image with boxes, clipped to it, for the label files; without `scores` they are 1."""
    height, width = data.sizes[index].tolist()
    boxes = clip(boxes.astype(np.float64), width, height)
    if scores is None:
        scores = np.ones(len(boxes))
    return Labeled(data.path(index), data.path(index), (width, height), boxes, labels, scores)


def after_proposals(
    data: Annotations, index: int, suspects: list[Suspect]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns boxes, labels and scores after all proposals. A changed or new box has the score of its suspect."""
    boxes, labels, crowd = (part.copy() for part in data.boxes_of(index))
    scores, stays, new = np.ones(len(boxes)), ~crowd, []
    for suspect in suspects:
        if suspect.proposal is None:
            stays[suspect.row] = False
        elif suspect.kind == "missing":
            new.append((suspect.proposal, suspect.score))
        else:
            scores[suspect.row] = suspect.score
            if suspect.kind == "wrong":
                labels[suspect.row] = suspect.proposal.label
            else:
                boxes[suspect.row] = suspect.proposal.box
    boxes = np.concatenate([boxes[stays], *(box.box[None] for box, _ in new)])
    labels = np.append(labels[stays], [box.label for box, _ in new]).astype(int)
    return boxes, labels, np.append(scores[stays], [score for _, score in new])
