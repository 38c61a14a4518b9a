"""Angles of boxes: the box around a rotated one where the format defines the angle, a problem elsewhere.

CVAT defines the attribute `rotation`, and writes it into COCO, Datumaro and VOC too: degrees around the center of the box,
clockwise on the screen. No format defines the other fields.
"""

import math
from collections.abc import Mapping
from typing import Any

from datasets.formats.named_boxes import Corners, rotated_box

FIELDS = ("rotation", "angle", "theta")  # of an annotation, or columns of a table
FIX = "this format does not define rotated boxes: write the box around the object and remove the field"


class Degrees(float):
    """An angle as a JSON file has it, by itself or in the attributes of an object; 0 for text that is not a number."""

    @classmethod
    def of(cls, value: Any) -> "Degrees":
        """Returns the angle of a number, of text, or of attributes with the entry rotation; NaN if it is not finite."""
        if isinstance(value, dict):
            value = value.get("rotation")
        if isinstance(value, str) and value.strip().lower() == "nan":  # an empty cell of pandas
            return cls(0)
        try:
            angle = float(value)
        except (TypeError, ValueError):
            return cls(0)
        except OverflowError:  # a whole number of more than 300 digits
            return cls("nan")
        return cls(angle if math.isfinite(angle) else "nan")


class NoAngle(float):
    """A field of a JSON file that may only hold an angle of 0, because the format does not define it."""

    @classmethod
    def of(cls, value: Any) -> "NoAngle":
        """Returns 0. Raises ValueError for any other angle."""
        if Degrees.of(value):
            raise ValueError(FIX)
        return cls(0)


def box_around(corners: tuple[float, ...], degrees: float) -> Corners:
    """Returns the bounding box of a box that is rotated around its center, clockwise on the screen."""
    x1, y1, x2, y2 = corners
    return rotated_box(x1, y1, x2, y2, math.radians(degrees), ((x1 + x2) / 2, (y1 + y2) / 2))


def angle_problem(fields: Mapping[str, Any]) -> str:
    """Returns what is wrong with the first angle in `fields` (name -> value), and the fix; "" if all are 0."""
    return next((f"{name} is {value}: {FIX}" for name, value in fields.items() if Degrees.of(value)), "")
