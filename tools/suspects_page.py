"""Writes suspects.html: one self-contained page with an image of each suspect."""

import base64
from html import escape
from pathlib import Path

import cv2
import numpy as np

from datasets.store import Annotations
from tools.disagreement import Suspect
from utils.draw import draw_labeled

TITLES = {"missing": "Missing boxes", "wrong": "Wrong classes", "loose": "Loose boxes", "doubled": "Doubled boxes"}
LABEL, PROPOSAL, OTHER = (0, 140, 255), (255, 120, 0), (150, 150, 150)  # BGR: orange, blue; gray for other labels
SIDE = 260  # pixels of an image on the page
MARGIN = 0.6  # of the larger side of the boxes, shown around them
PAGE_BYTES = 14_000_000  # of all JPEGs; the page is a third larger, and stays below 20 MB

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>Suspicious labels</title><style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem; }
nav { position: sticky; top: 0; padding: .5rem 0; background: Canvas; }
nav a { margin-right: 1.5rem; }
ol { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 1rem; padding: 0; list-style: none; }
li { border: 1px solid GrayText; border-radius: 6px; padding: .6rem; overflow-wrap: anywhere; scroll-margin-top: 3rem; }
li:focus { outline: 3px solid Highlight; }
img { max-width: 100%; }
.label { border-bottom: 3px solid #ff8c00; } .proposal { border-bottom: 3px solid #0078ff; }
.other { border-bottom: 3px solid #969696; }
</style></head><body><h1>Suspicious labels</h1>
"""


def write_page(
    path: Path, data: Annotations, groups: dict[str, list[Suspect]], lines: dict[int, int], quality: str
) -> None:
    """Writes the page. `groups`: the suspects by kind; `lines`: the line of each image in suspects.txt."""
    links = "".join(f'<a href="#{kind}">{TITLES[kind]} {len(group)}</a>' for kind, group in groups.items())
    parts = [
        f"{HEAD}<p>{escape(data.source)}: {escape(quality)} Correct suspects.txt, where these images come first; its labels",
        'are unchanged. Scores are comparable within a kind. <span class="label">Label</span>,',
        '<span class="proposal">proposal of the models</span>, <span class="other">other labels</span>.</p>',
        f'<nav aria-label="Kinds">{links}</nav>',
    ]
    left = PAGE_BYTES
    for kind, group in groups.items():
        parts.append(f'<section id="{kind}"><h2>{TITLES[kind]}</h2><ol>')
        for number, one in enumerate(group, 1):
            jpeg = b""
            if left > 0:
                jpeg = thumbnail(data.image(one.image), one, data.boxes_of(one.image)[0], data.classes)
            left -= len(jpeg)
            source = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
            image = f'<img alt="" src="{source}"><br>' if jpeg else ""
            change, place = escape(change_of(one, data.classes)), escape(data.where(one.image))
            name, line = escape(data.names[one.image]), lines[one.image]
            text = f"<b>{number}. {change}</b><br>score {one.score:.3f}<br>{name}<br>{place}<br>suspects.txt:{line}"
            parts.append(f'<li tabindex="0">{image}{text}</li>')
        parts.append("</ol></section>")
    text = "\n".join([*parts, "</body></html>\n"])
    path.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def change_of(one: Suspect, classes: tuple[str, ...]) -> str:
    """Returns what the models propose, in words."""
    if one.label is None:
        return f"add {classes[one.proposal.label]}"
    name = classes[one.label.label]
    if one.proposal is None:
        return f"remove {name}: it repeats another label"
    return f"{name}: other edges" if one.kind == "loose" else f"{name}: rather {classes[one.proposal.label]}"


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
    crop = cv2.resize(crop, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    texts = [""] * len(others) + [classes[box.label] for box, _ in shown]
    colors = [OTHER] * len(others) + [color for _, color in shown]
    drawn = draw_labeled(crop, (np.concatenate([others, boxes]) - [x1, y1, x1, y1]) * scale, texts, colors)
    return cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
