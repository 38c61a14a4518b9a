"""Writes the suspects for a person: suspects.html, a page that needs no other file, with an image of each."""

from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np

from datasets.store import Annotations
from report import page
from tools.disagreement import Suspect
from utils.draw import draw_labeled, resized
from utils.images import ImageError
from utils.outputs import write_all

TITLES = {"missing": "Missing boxes", "wrong": "Wrong classes", "loose": "Loose boxes", "doubled": "Doubled boxes"}
LABEL, PROPOSAL, OTHER = (0, 140, 255), (255, 120, 0), (190, 60, 200)  # BGR: orange, blue; purple for other labels
SIDE = 360  # pixels of an image on the page
LINE = 2  # pixels of the outline of a box
MARGIN = 0.6  # of the larger side of the boxes, shown around them
TEMPLATE = Path(__file__).with_name("suspects.html")


def write_page(
    path: Path, data: Annotations, groups: dict[str, list[Suspect]], lines: dict[int, int], quality: str
) -> None:
    """Writes the page of the suspects of each kind.

    `lines`: the line of each image in suspects.txt; `quality`: how many labels the models find."""
    shown = {}
    for kind, suspects in groups.items():
        cards = []
        for suspect in suspects:
            jpeg = b""
            with suppress(ImageError):  # the file is gone by now: its card has no image
                jpeg = thumbnail(data.image(suspect.image), suspect, data.boxes_of(suspect.image)[0], data.classes)
            card = {"uri": page.data_uri(jpeg) if jpeg else "", "change": change_of(suspect, data.classes)}
            card |= {"score": f"{suspect.score:.3f}", "line": str(lines[suspect.image])}
            cards.append(card | {"place": data.where(suspect.image), "name": Path(data.path(suspect.image)).name})
        shown[f"{TITLES[kind]} {len(suspects)}"] = cards
    html = page.render(TEMPLATE, "Suspicious labels", list(shown), groups=shown, source=data.source, quality=quality)
    write_all({path: html.encode("utf-8", "replace")})


def change_of(suspect: Suspect, classes: tuple[str, ...]) -> str:
    """Returns what the models propose, in words."""
    first, last = (classes[box.label] for box in (suspect.boxes()[0], suspect.boxes()[-1]))
    texts = {"missing": f"add {last}", "wrong": f"{first}: rather {last}", "loose": f"{first}: other edges"}
    return texts.get(suspect.kind, f"remove {first}: it repeats another label")


def thumbnail(image: np.ndarray, suspect: Suspect, others: np.ndarray, classes: tuple[str, ...]) -> bytes:
    """Draws the label and the proposal of a suspect, with their surroundings and other labels [n, 4] -> JPEG."""
    shown = [(box, color) for box, color in ((suspect.label, LABEL), (suspect.proposal, PROPOSAL)) if box]
    boxes = np.array([box.box for box, _ in shown])
    low, high = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    margin = max(MARGIN * (high - low).max(), 16)
    x1, y1 = np.maximum(low - margin, 0).astype(int)
    x2, y2 = np.minimum(high + margin, image.shape[1::-1]).astype(int)
    others = others[(others[:, :2] < [x2, y2]).all(1) & (others[:, 2:] > [x1, y1]).all(1)]
    crop = image[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)]
    scale = SIDE / max(crop.shape[:2])
    crop = resized(crop, scale)
    texts = [*("" for _ in others), *(classes[box.label] for box, _ in shown)]
    colors = [*(OTHER for _ in others), *(color for _, color in shown)]
    drawn = draw_labeled(crop, (np.concatenate([others, boxes]) - [x1, y1, x1, y1]) * scale, texts, colors, LINE)
    return cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
