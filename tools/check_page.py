"""The data check as something to look at: an HTML page that needs no other file, or a contact sheet."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from datasets.errors import first_ten
from datasets.store import Annotations
from report import page
from tools.check_report import EDGES, HARD, SUSPICIOUS, Part
from utils.draw import contact_sheet, draw_boxes
from utils.images import ImageError, read_image

SIDE, QUALITY = 400, 80  # of a thumbnail: pixels of its longer side, JPEG quality
LIMIT = 12 * 2**20  # bytes of all thumbnails; base64 adds a third
BOXES = 500  # boxes drawn in an image at most
SAMPLES, PAIRS, PLACES, ROWS = 12, 12, 6, 200  # images, groups of copies, images of each problem, classes at most
NAMES = 4  # class names under a thumbnail


def html_page(report: dict[str, Any], parts: dict[str, Part]) -> str:
    """Returns the page for a report and the parts of `tools.check_report.check`."""
    shown = _Thumbnails(parts)
    sections = {
        "Classes": _classes(report, parts),
        "Box sizes": "".join(_sizes(name, report) for name in parts),
        "Samples": "".join(_samples(shown, name) for name in parts),
        "Copies": _copies(shown, report),
        "Most and smallest boxes": "".join(_extremes(shown, name) for name in parts),
        "Problems": _problems(shown, report),
    }
    return page.document("Data check", _head(report, parts), sections)


def _head(report: dict[str, Any], parts: dict[str, Part]) -> str:
    verdict = "Training would refuse these data" if report["errors"] else "Training would accept these data"
    height, width = report["size"]
    html = f'<header><h1>Data check</h1><p class="{"bad" if report["errors"] else "good"}">{verdict}</p>'
    html += f'<p class="faint">sizes in pixels of the network\'s input of {height}x{width}</p></header>'
    for name in parts:
        part = report[name]
        cards = {
            "images": part["images"],
            "boxes": part["boxes"],
            "images without boxes": part["backgrounds"],
            "images that cannot be read": len(part["unreadable"]),
            "crowd regions": part["crowd"],
            "rotated by EXIF": part["turned_by_exif"],
        }
        html += f'<h3>{name} <span class="faint">{page.text(part["source"])}</span></h3><dl>'
        html += "".join(
            f'<div class="{"" if value else "zero"}"><dd>{value:,}</dd><dt>{key}</dt></div>'
            for key, value in cards.items()
        )
        html += "</dl>"
        html += f"<p>{page.text(part['sixteen_bits'])}</p>" if part["sixteen_bits"] else ""
    for kind in ("errors", "warnings"):
        lines = "".join(f"<li>{page.text(line)}</li>" for line in report[kind][:ROWS])
        html += f'<h3>{kind}</h3><ul class="{kind}">{lines}</ul>' if lines else ""
    return html


def _classes(report: dict[str, Any], parts: dict[str, Part]) -> str:
    """A table of the classes with a bar, the boxes and images, and the median size of the boxes, in each part."""
    heads = "".join(f'<th class="wide">{name} boxes<th>images<th>median px' for name in parts)
    most = max([1, *(count for name in parts for count in report[name]["classes"].values())])
    rows = []
    for label, name in enumerate(list(report["train"]["classes"])[:ROWS]):
        cells = ""
        for part in (report[key] for key in parts):
            count = part["classes"].get(name, 0)
            bar = f'<span class="bar" style="width:{100 * count / most:.1f}%;background:{page.color(label)}"></span>'
            side = f"{part['class_sides'][label]:g}" if count else "–"
            cells += f'<td class="wide">{count:,}{bar}<td>{part["class_images"][label]:,}<td>{side}'
        rows.append(f'<tr><th scope="row">{page.dot(label)}{page.text(name)}{cells}')
    more = len(report["train"]["classes"]) - len(rows)
    note = f'<p class="faint">and {more:,} more classes</p>' if more else ""
    return f'<div class="scroll"><table><thead><tr><th>class{heads}</thead>{"".join(rows)}</table></div>{note}'


def _sizes(name: str, report: dict[str, Any]) -> str:
    """A histogram of the box sizes, and in words what they mean for the size of the input."""
    part = report[name]
    counts, most = part["histogram"], max(1, *part["histogram"])
    ends = [f"{low}–{high}" for low, high in zip(EDGES, EDGES[1:], strict=False)] + [f"{EDGES[-1]}+"]
    bars = "".join(
        f'<div class="{"hard" if low < HARD else ""}"><span>{count:,}</span>'
        f'<i style="height:{150 * count / most:.0f}px"></i><span class="faint">{end}</span></div>'
        for low, end, count in zip(EDGES, ends, counts, strict=True)
    )
    kind = "advice" if "image" in part["advice"] else "advice fits"
    words = f'<p class="{kind}">{page.text(part["advice"])}</p>' if part["advice"] else ""
    median = f"median {part['median_side']:g} px, square root of the area; below {HARD} px a box is hard to find"
    return (
        f'<h3>{name}</h3>{words}<div class="scroll"><div class="bars">{bars}</div></div><p class="faint">{median}</p>'
    )


def _samples(shown: "_Thumbnails", name: str) -> str:
    good = shown.parts[name].good
    chosen = np.unique(np.linspace(0, len(good) - 1, min(SAMPLES, len(good))).astype(int)).tolist()
    return f"<h3>{name}</h3>{_grid(shown.figure(name, good.path(i)) for i in chosen)}"


def _extremes(shown: "_Thumbnails", name: str) -> str:
    part = shown.parts[name]
    most = (
        shown.figure(name, path, f"{count} box{'es' * (count > 1)}")
        for path, count in part.report["most_boxes"]
        if count
    )
    small = zip(part.report["smallest"], part.rows["smallest"].tolist(), strict=True)
    least = (shown.box(name, row, f"{side:g} px") for (_, side), row in small)
    return f"<h3>{name}: most boxes</h3>{_grid(most)}<h3>{name}: smallest boxes</h3>{_grid(least)}"


def _copies(shown: "_Thumbnails", report: dict[str, Any]) -> str:
    """Equal and nearly same images side by side, first those that are in both parts."""
    groups = [("in train and val: equal", [[("train", a), ("val", b)] for a, b in report.get("between", ())])]
    both = [[(name, path) for name in group for path in group[name][:2]] for group in report.get("similar_between", ())]
    groups.append(("in train and val: nearly same", both))
    for name in shown.parts:
        for key, words in (("duplicates", "equal"), ("similar", "nearly same")):
            groups.append(
                (f"within {name}: {words}", [[(name, path) for path in group] for group in report[name][key]])
            )
    html = ""
    for title, found in groups:
        pairs = (
            _grid((shown.figure(*place, place[0]) for place in group[:4]), len(group) - 4) for group in found[:PAIRS]
        )
        more = f"<p class=faint>and {len(found) - PAIRS:,} more groups</p>" if len(found) > PAIRS else ""
        opened = " open" if "val:" in title else ""
        html += f"<details{opened}>{_summary(title, len(found))}{''.join(pairs)}{more}</details>" if found else ""
    return html or '<p class="faint">No two images are equal or nearly the same.</p>'


def _problems(shown: "_Thumbnails", report: dict[str, Any]) -> str:
    """All problems by kind: the number, images with the box where there is one, and the first ten places."""
    html = ""
    for name, part in shown.parts.items():
        for kind, title in SUSPICIOUS.items():
            places, rows = part.report["suspicious"][kind], part.rows[kind][:PLACES].tolist()
            html += _problem(f"{name}: {title}", places, (shown.box(name, row) for row in rows))
        html += _problem(f"{name}: images that cannot be read", part.report["unreadable"], ())
        for note in part.report["notes"]:
            first, _, rest = note.partition("\n")
            html += f"<details><summary>{page.text(f'{name}: {first}')}</summary><pre>{page.text(rest or first)}</pre></details>"
    return html or '<p class="faint">None.</p>'


def _problem(title: str, places: list[str], figures: Iterable[str]) -> str:
    if not places:
        return ""
    return f"<details>{_summary(title, len(places))}{_grid(figures)}<pre>{page.text(first_ten(places))}</pre></details>"


def _summary(title: str, count: int) -> str:
    return f"<summary>{page.text(title)} <b>{count:,}</b></summary>"


def _grid(figures: Iterable[str], more: int = 0) -> str:
    rest = f'<p class="faint">and {more:,} more</p>' if more > 0 else ""
    return f'<div class="grid">{"".join(figures)}{rest}</div>'


class _Thumbnails:
    """Images with their boxes as figures, up to a number of bytes."""

    def __init__(self, parts: dict[str, Part]) -> None:
        self.parts, self._bytes = parts, 0
        self._index = {name: {part.good.path(i): i for i in range(len(part.good))} for name, part in parts.items()}

    def box(self, name: str, row: int, caption: str = "") -> str:
        """The image of one box, with only this box."""
        good = self.parts[name].good
        index = int(np.searchsorted(good.starts, row, "right")) - 1
        return self._figure(good, good.path(index), np.array([row]), caption)

    def figure(self, name: str, path: str, caption: str = "") -> str:
        """An image with all its boxes."""
        good, index = self.parts[name].good, self._index[name].get(path)
        rows = np.arange(0) if index is None else np.arange(good.starts[index], good.starts[index + 1])
        return self._figure(good, path, rows, caption)

    def _figure(self, good: Annotations, path: str, rows: np.ndarray, caption: str) -> str:
        labels = np.where(good.crowd[rows], -1, good.labels[rows]).tolist()
        counts = Counter(labels).most_common()
        chips = "".join(
            f"<span>{page.dot(label)}{_name(good, label)} {count}</span>" for label, count in counts[:NAMES]
        )
        more = len(counts) - NAMES
        chips += f"<span>+{more} class{'es' * (more > 1)}</span>" if more > 0 else ""
        words = f"<b>{page.text(caption)}</b>" if caption else ""
        words += f'<span class="file" title="{page.text(path)}">{page.text(Path(path).name)}</span>'
        image = self._image(path, list(zip(good.boxes[rows].tolist(), labels, strict=True)), good)
        return f"<figure>{image}<figcaption>{words}{chips}</figcaption></figure>"

    def _image(self, path: str, boxes: list, good: Annotations) -> str:
        if self._bytes > LIMIT:
            return '<div class="none">the page is full</div>'
        try:
            image = read_image(path, value_range=good.value_range)
        except ImageError:
            return '<div class="none">cannot be read</div>'
        height, width = image.shape[:2]
        jpeg = page.small_jpeg(image, SIDE, QUALITY)
        self._bytes += len(jpeg)
        uri = page.data_uri(jpeg)
        rects = "".join(
            f'<rect x="{x1:g}" y="{y1:g}" width="{x2 - x1:g}" height="{y2 - y1:g}" stroke="{page.color(label)}">'
            f"<title>{_name(good, label)}</title></rect>"
            for (x1, y1, x2, y2), label in boxes[:BOXES]
        )
        size = f'width="{width}" height="{height}"'
        return f'<svg viewBox="0 0 {width} {height}" role="img"><image href="{uri}" {size}/>{rects}</svg>'


def _name(good: Annotations, label: int) -> str:
    return page.text(good.classes[label]) if label >= 0 else "crowd"


def contact_page(annotations: Annotations, columns: int = 4, cell: int = 320) -> np.ndarray:
    """Draws a contact sheet of up to columns * columns images, spread over the data set, with boxes and class names.

    Crowd regions are labeled "crowd". Returns uint8 [H, W, 3] BGR.
    """
    chosen = np.unique(np.linspace(0, len(annotations) - 1, columns * columns).astype(int))
    names, drawn = (*annotations.classes, "crowd"), []
    for index in chosen.tolist():
        image = annotations.image(index)
        scale = cell / max(image.shape[:2])  # before drawing, so that the text stays readable
        shape = [max(round(side * scale), 1) for side in image.shape[1::-1]]
        image = cv2.resize(image, shape, interpolation=cv2.INTER_AREA)
        boxes, labels, crowd = annotations.boxes_of(index)
        drawn.append(draw_boxes(image, boxes * scale, np.where(crowd, len(names) - 1, labels), names))
    return contact_sheet(drawn, columns, cell)
