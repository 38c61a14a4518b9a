"""Checks annotations against their images: readable images, sizes, and boxes that reach outside or are there twice."""

import os
from dataclasses import replace

import numpy as np

from datasets.errors import MUCH, first_ten, graded, note_dropped, raise_any
from datasets.formats.options import ReadOptions
from datasets.scan import Scan, clipped_boxes, scan
from datasets.store import Annotations
from utils.boxes import area
from utils.text import amount
from utils.value_range import choose

ROUNDED = 1  # pixel; boxes that reach further out of their image are not rounded, but wrong or cut off
QUESTION = (
    "are these corners in columns for x, y, width, height, or y before x, or were the images resized after labeling?"
)


def check_images(annotations: Annotations, options: ReadOptions | None = None) -> tuple[Annotations, list[str]]:
    """Scans the images and checks the boxes against them -> (annotations with sizes and range of values, lines of report).

    Images that cannot be read are a DataError, or what `bad_images` says (see `_without_unreadable`). Boxes wholly outside
    their image are an error, or left out with `bad_boxes="drop"`. Boxes partly outside stay as written and are counted."""
    options = options or ReadOptions()
    report = list(annotations.notes)
    found = scan([annotations.path(i) for i in range(len(annotations))])
    source = annotations.source
    old, new = annotations.sizes, found.sizes
    differ = np.flatnonzero((old != new).any(1) & old.all(1) & new.all(1))
    if len(differ):
        first = differ[0]
        (old_height, old_width), (height, width) = old[first], new[first]
        text = "images whose size differs from the one in the annotations, so that boxes may be off"
        example = f"{annotations.where(first)}: {old_width}x{old_height}, but the image is {width}x{height}"
        report.append(graded(f"{source}: {text}: {len(differ)}; {example}", len(differ), len(annotations)))
    if turned := int((found.orientations > 1).sum()):
        text = "images that their EXIF orientation turns; their boxes must be those of the upright image"
        report.append(f"{source}: {text}: {turned}")
    if found.several:
        example = annotations.path(found.several[0])
        text = "files with several images (frames, pages), of which the first is read"
        report.append(f"{source}: {text}: {len(found.several)}, for example {example}")
    annotations = replace(annotations, sizes=new, digests=found.digests, hashes=found.hashes, limits=found.limits)
    if found.problems or options.bad_images != "error":
        annotations, notes = _without_unreadable(annotations, found, options.bad_images)
        report += notes
    if annotations.limits is not None:
        annotations = replace(annotations, value_range=choose(annotations.limits))
    annotations, notes = _drop_boxes_outside(annotations, options.bad_boxes)
    return annotations, report + notes


def repeated_boxes(annotations: Annotations) -> list[str]:
    """Returns a note about boxes that are there more than once in their image, with the same class."""
    image = annotations.image_of_boxes()
    columns = (*annotations.boxes.T, annotations.labels, annotations.crowd, image)
    order = np.argsort(sum(np.sqrt(2 + place) * column for place, column in enumerate(columns)))  # equal ones adjoin
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    again = np.flatnonzero(same)
    if not len(again):
        return []
    text = f"boxes that repeat another one of the same image and class: {len(again)}"
    note = f"{annotations.source}: {text}, for example {annotations.where_box(int(order[again[0] + 1]))}"
    return [graded(note, len(again), len(order))]


def _drop_boxes_outside(annotations: Annotations, bad_boxes: str) -> tuple[Annotations, list[str]]:
    """Returns the annotations without the boxes that lie outside their image, and notes about boxes outside or partly outside."""
    clipped, owner = clipped_boxes(annotations), annotations.image_of_boxes()
    beyond = np.abs(clipped - annotations.boxes).max(1, initial=0)  # pixels
    if annotations.is_ignored is not None:
        beyond[annotations.is_ignored] = 0  # ignore regions may be larger than their image
    gone = area(clipped.astype(np.float32)) <= 0
    source, total, far = annotations.source, len(gone), int((beyond > ROUNDED).sum())
    question = ""
    if far > 1 and far >= MUCH * total:
        question = f" (of {total} boxes, {far} reach out of their images: {QUESTION})"
    problems = []
    for row in np.flatnonzero(gone).tolist():
        box = ",".join(f"{value:g}" for value in annotations.boxes[row])
        height, width = annotations.sizes[owner[row]]
        problems.append(f"{annotations.where_box(row)}: box {box} lies outside its image of {width}x{height}")
    notes = note_dropped(f"{source}: boxes outside their images{question}", problems, total, bad_boxes)
    if problems:
        annotations = annotations.keep_boxes(~gone)
    count = int(((beyond > 0.01) & ~gone).sum())  # less is rounding of fractions
    if count:
        note = f"{source}: boxes that reach outside their images and are clipped: {count}"
        notes.append(graded(note + question, far, total))
    return annotations, notes


def _without_unreadable(annotations: Annotations, found: Scan, bad_images: str) -> tuple[Annotations, list[str]]:
    """Returns the annotations without unreadable images, and notes about these. Raises DataError that lists them.

    "skip" leaves them out. "repair" keeps JPEGs that are cut off, with what can be decoded of them."""
    source = annotations.source
    repaired = found.repairable if bad_images == "repair" else set()
    bad = sorted(found.problems.keys() - repaired)
    repaired_lines = [f"{annotations.where(i)}: {found.problems[i]}" for i in sorted(repaired)]
    gone = [i for i in bad if not os.path.exists(annotations.path(i))]
    is_moved = len(gone) == len(annotations)  # one place is enough
    bad_lines = [f"{annotations.where(i)}: {found.problems[i]}" for i in (gone[:1] if is_moved else bad)]
    if bad_images != "skip" or len(bad) == len(annotations):
        fixes = []
        if len(bad) < len(annotations):
            fixes.append("bad_images=skip leaves them out")
        if count := len(found.repairable - repaired):
            fixes.append(f"bad_images=repair uses what can be decoded of {amount(count, 'JPEG')} that are cut off")
        if gone:
            fixes.append("image_root=FOLDER names the folder of the images")
        title = f"{len(bad)} of {amount(len(annotations), 'image')} cannot be read"
        raise_any("; ".join([f"{source}: {title}", *fixes]), bad_lines)
    notes = []
    if repaired:
        notes.append(f"{source}: JPEGs that are cut off, used: {len(repaired)}\n{first_ten(repaired_lines)}")
    if bad:
        note = f"{source}: images that cannot be read, left out: {len(bad)}\n{first_ten(bad_lines)}"
        notes.append(graded(note, len(bad), len(annotations)))
        annotations = annotations.select(np.setdiff1d(np.arange(len(annotations)), bad))
    return annotations, notes
