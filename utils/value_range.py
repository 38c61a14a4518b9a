"""The range of the values of 16-bit images, and their conversion to 8 bits.

Sensors with 10 to 14 bits write 16-bit files whose upper eight bits are nearly empty. Such an image would become black. A data
set has one range (low, high) that becomes 0 to 255. A model keeps the range that it was trained with. 8-bit images stay as
they are.
"""

import cv2
import numpy as np

ValueRange = tuple[int, int]  # the values that become 0 and 255

FULL: ValueRange = (0, 65535)  # the upper eight bits are kept
OUTLIERS = 0.001  # fraction of an image's values that may lie below its limits, and above: dead pixels of a sensor
NO_LIMITS = (-1, -1)  # of an image with 8 bits


def limits_of(image: np.ndarray) -> tuple[int, int]:
    """Returns the least and the largest value of a 16-bit image [H, W, 3] without outliers, NO_LIMITS for one with 8 bits."""
    if image.dtype != np.uint16:
        return NO_LIMITS
    counts = sum(cv2.calcHist([image], [channel], None, [65536], [0, 65536]).ravel() for channel in range(3))
    below = np.cumsum(counts, dtype=np.float64)
    low, high = np.searchsorted(below, [OUTLIERS * below[-1], (1 - OUTLIERS) * below[-1]])
    return int(low), int(high)


def choose(limits: np.ndarray) -> ValueRange | None:
    """Returns the range for images with these limits, int [N, 2]; None: all have 8 bits.

    If the least value is near 0, the range follows from the bits that are used, such as 0 to 4,095. If the values fill half of
    the 16 bits, it is FULL.
    """
    limits = limits[limits[:, 1] >= 0]
    if not len(limits):
        return None
    low, high = int(limits[:, 0].min()), int(limits[:, 1].max())
    if low <= high // 8:
        low, high = 0, (1 << max(high.bit_length(), 8)) - 1
    return (low, high) if low < high and high - low < 1 << 15 else FULL


def to_8_bits(image: np.ndarray, value_range: ValueRange) -> np.ndarray:
    """Converts an image uint16 [H, W, 3] to uint8: `value_range` becomes 0 to 255, values outside of it are clipped."""
    low, high = value_range
    return cv2.convertScaleAbs(np.maximum(image, low) - low, alpha=255 / (high - low))


def are_outside(limits: np.ndarray, value_range: ValueRange | None) -> np.ndarray:
    """Returns whether images with these limits, int [N, 2], have values that `value_range` clips, bool [N].

    None: the model was trained with 8-bit images only. Then 16-bit images that FULL would make dark are outside."""
    low, high = value_range or (0, 65535)
    outside = (limits[:, 0] < low) | (limits[:, 1] > high)
    if value_range is None:
        outside |= limits[:, 1] < 1 << 15
    return outside & (limits[:, 1] >= 0)


def outside_text(limits: tuple[int, int], value_range: ValueRange | None) -> str:
    """Describes an image for which `are_outside` is true."""
    held = f"16 bits with values {limits[0]:,} to {limits[1]:,}"
    if value_range is None:
        return f"{held}, but the model was trained with 8-bit images only, so it becomes dark: save it with 8 bits"
    return f"{held}, but the model was trained with {value_range[0]:,} to {value_range[1]:,}: other values are clipped"
