"""Writes suspects.html: one self-contained page with an image of each suspect."""

import os
from pathlib import Path

import cv2
import numpy as np

from datasets.store import Annotations
from report import page
from tools.disagreement import Suspect
from utils.draw import draw_labeled

TITLES = {"missing": "Missing boxes", "wrong": "Wrong classes", "loose": "Loose boxes", "doubled": "Doubled boxes"}
LABEL, PROPOSAL, OTHER = (0, 140, 255), (255, 120, 0), (190, 60, 200)  # BGR: orange, blue; purple for other labels
SIDE = 360  # pixels of an image on the page
LINE = 2  # pixels of the outline of a box
MARGIN = 0.6  # of the larger side of the boxes, shown around them
PAGE_BYTES = 14_000_000  # of all JPEGs; the page is a third larger, and stays below 20 MB
TEMPLATE = Path(__file__).with_name("suspects.html")


def write_page(
    path: Path,
    data: Annotations,
    groups: dict[str, list[list[Suspect]]],
    lines: dict[int, int],
    quality: str,
    warning: str,
) -> None:
    """Writes the page.

    `groups`: by kind, each suspect with the same one in near-duplicates of its image, of which the page shows the first;
    `lines`: the line of each image in suspects.txt; `quality`, `warning`: how many labels the models find.
    """
    left, shown, number, names = PAGE_BYTES, {}, 0, short_names(data)
    for kind, group in groups.items():
        cards = []
        for one, *copies in group:
            number += 1  # as in suspects.csv
            jpeg = b""
            if left > 0:
                jpeg = thumbnail(data.image(one.image), one, data.boxes_of(one.image)[0], data.classes)
            left -= len(jpeg)
            card = {"number": number, "uri": "", "change": change_of(one, data.classes), "score": f"{one.score:.3f}"}
            if jpeg:
                card["uri"] = page.data_uri(jpeg)
            card |= {"place": data.where(one.image), "name": names[one.image], "line": lines[one.image]}
            cards.append(card | {"copies": [(names[copy.image], lines[copy.image]) for copy in copies]})
        shown[f"{TITLES[kind]} {len(group)}"] = cards
    texts = {"source": data.source, "quality": quality, "warning": warning}
    html = page.render(TEMPLATE, "Suspicious labels", list(shown), groups=shown, **texts)
    path.write_text(html, encoding="utf-8", errors="replace", newline="\n")


def short_names(data: Annotations) -> list[str]:
    """Returns the path of each image relative to the folder that has all of them, with "/"."""
    paths = [os.path.abspath(data.path(i)) for i in range(len(data))]
    drives = {os.path.splitdrive(path)[0] for path in paths}
    if len(drives) > 1:
        return [path.replace(os.sep, "/") for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, folder).replace(os.sep, "/") for path in paths]


def change_of(one: Suspect, classes: tuple[str, ...]) -> str:
    """Returns what the models propose, in words."""
    first, last = (classes[box.label] for box in (one.boxes()[0], one.boxes()[-1]))
    texts = {"missing": f"add {last}", "wrong": f"{first}: rather {last}", "loose": f"{first}: other edges"}
    return texts.get(one.kind, f"remove {first}: it repeats another label")


def thumbnail(image: np.ndarray, one: Suspect, others: np.ndarray, classes: tuple[str, ...]) -> bytes:
    """Draws the label and the proposal of a suspect, with their surroundings and other labels [n, 4] -> JPEG."""
    shown = [(box, color) for box, color in ((one.label, LABEL), (one.proposal, PROPOSAL)) if box]
    boxes = np.array([box.box for box, _ in shown])
    low, high = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    margin = max(MARGIN * (high - low).max(), 16)
    x1, y1 = np.maximum(low - margin, 0).astype(int)
    x2, y2 = np.minimum(high + margin, image.shape[1::-1]).astype(int)
    others = others[(others[:, :2] < [x2, y2]).all(1) & (others[:, 2:] > [x1, y1]).all(1)]
    crop = image[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)]
    scale = SIDE / max(crop.shape[:2])
    size = [max(round(side * scale), 1) for side in crop.shape[1::-1]]
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    crop = cv2.resize(crop, size, interpolation=method)
    texts = [""] * len(others) + [classes[box.label] for box, _ in shown]
    colors = [OTHER] * len(others) + [color for _, color in shown]
    drawn = draw_labeled(crop, (np.concatenate([others, boxes]) - [x1, y1, x1, y1]) * scale, texts, colors, LINE)
    return cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
