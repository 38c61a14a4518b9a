"""Handling of unreadable images (constant bad_images): list them in an error, skip them, or use what can be decoded."""

import numpy as np

from datasets.errors import DataError, first_ten, raise_any
from datasets.scan import Scan
from datasets.store import Annotations

KINDS = ("error", "skip", "repair")  # values of the constant bad_images


def without_bad(annotations: Annotations, found: Scan, bad_images: str) -> tuple[Annotations, list[str]]:
    """Returns the annotations without unreadable images, and notes about these. Raises DataError that lists them.

    "skip" leaves them out. "repair" keeps JPEGs that are cut off: what can be decoded of them, and gray for the rest."""
    if bad_images not in KINDS:
        raise DataError(f'bad_images is {bad_images!r}; it can be "error", "skip" or "repair"')
    source, repaired, notes = annotations.source, found.cut_off if bad_images == "repair" else set(), []
    bad = sorted(found.problems.keys() - repaired)
    lists = [[f"{annotations.where(i)}: {found.problems[i]}" for i in some] for some in (sorted(repaired), bad)]
    if bad_images != "skip" or len(bad) == len(annotations):
        fix = 'bad_images="skip" leaves them out'
        if cut := len(found.cut_off - repaired):
            fix += f', "repair" uses what can be decoded of {cut} JPEGs that are cut off'
        fix += "; image_root names the folder of the images" if source.endswith(".json") else ""
        raise_any(f"{source}: {len(bad)} of {len(annotations)} images cannot be read; {fix}", lists[1])
    for title, some in zip(
        ("JPEGs that are cut off, used", "images that cannot be read, left out"), lists, strict=True
    ):
        notes += [f"{source}: {title}: {len(some)}\n{first_ten(some)}"] if some else []
    good = np.setdiff1d(np.arange(len(annotations)), bad)
    return annotations.select(good) if bad else annotations, notes
