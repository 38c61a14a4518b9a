"""Bounding boxes x1, y1, x2, y2 of drawn shapes. Angles are in radians and turn clockwise on the screen."""

import math
from collections.abc import Iterable

Corners = tuple[float, float, float, float]


def points_box(points: Iterable[tuple[float, float]]) -> Corners:
    """Returns the bounding box of points x, y. Raises ValueError if there are none."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def rotated_box(x1: float, y1: float, x2: float, y2: float, angle: float, pivot: tuple[float, float]) -> Corners:
    """Returns the bounding box of a rectangle that is rotated around the point `pivot`."""
    if not angle:
        return x1, y1, x2, y2
    sine, cosine = math.sin(angle), math.cos(angle)
    moved = [(x - pivot[0], y - pivot[1]) for x in (x1, x2) for y in (y1, y2)]
    return points_box((pivot[0] + x * cosine - y * sine, pivot[1] + x * sine + y * cosine) for x, y in moved)


def ellipse_box(x: float, y: float, radius_x: float, radius_y: float, angle: float = 0.0) -> Corners:
    """Returns the bounding box of an ellipse around x, y."""
    sine, cosine = math.sin(angle), math.cos(angle)
    width, height = math.hypot(radius_x * cosine, radius_y * sine), math.hypot(radius_x * sine, radius_y * cosine)
    return x - width, y - height, x + width, y + height
