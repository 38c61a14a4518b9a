"""Boxes on pictures, readable at any size of the picture and in any script; pages of pictures; files under any path.

Images are uint8 BGR [H, W, 3]; nothing that is passed in is changed.
"""

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

Colour = tuple[int, int, int]  # BGR

TEXT = 1 / 36  # height of the letters to the mean side of the picture: 15 pixels at 640 x 480
FEW = 10  # boxes; with more of them on a picture the letters shrink
SMALLEST_TEXT = 11  # pixels; below it Chinese becomes a blot
JPEG_QUALITY = 95
FONTS = ("NotoSansCJK-Regular.ttc", "msyh.ttc", "simhei.ttf", "PingFang.ttc", "Arial Unicode.ttf", "DejaVuSans.ttf")
GAP, PAPER = 8, 245  # contact sheet: pixels between pictures, gray of the page


def colour_of(label: int) -> Colour:
    """A colour for each class: the same in every run, neighbours far apart (hues in steps of the golden ratio)."""
    hue = (0.01 + label * 0.6180339887) % 1
    saturation, value = ((0.82, 1.0), (0.55, 1.0), (0.95, 0.78))[label // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(blue * 255), round(green * 255), round(red * 255)


def draw_boxes(image: np.ndarray, boxes, labels, classes: Sequence[str], scores=None) -> np.ndarray:
    """A copy of the image with boxes [n, 4] xyxy in its pixels, and their class names and scores (best on top)."""
    labels = [int(label) for label in labels]
    texts = [classes[label] for label in labels]
    order = range(len(texts))
    if scores is not None:
        texts = [f"{text} {float(score):.2f}" for text, score in zip(texts, scores, strict=True)]
        order = sorted(order, key=lambda i: float(scores[i]))
    return draw_labelled(image, boxes, texts, [colour_of(label) for label in labels], order)


def draw_labelled(image: np.ndarray, boxes, texts: Sequence[str], colours: Sequence[Colour], order=None) -> np.ndarray:
    """A copy of the image with boxes [n, 4] xyxy, each with a text and a colour, in `order` (None: as they come).

    An empty text has no plate.
    """
    image = np.ascontiguousarray(image).copy()
    height, width = image.shape[:2]
    side = (height * width) ** 0.5
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    size = max(round(side * TEXT * min(FEW / max(len(boxes), 1), 1) ** 0.4), SMALLEST_TEXT)
    line = max(round(side / 260), 1)
    corners = np.round(np.clip(boxes, 0, [width - 1, height - 1] * 2)).astype(int).tolist()
    order = list(range(len(corners)) if order is None else order)
    for i in order:
        x1, y1, x2, y2 = corners[i]
        cv2.rectangle(image, (x1, y1), (x2, y2), colours[i], line)
    taken = np.zeros((0, 4), int)  # the best choose their place first and are painted last
    plates = []
    for i in (i for i in reversed(order) if texts[i]):
        plate = _place(corners[i], text_width(texts[i], size) + size // 2, round(size * 1.35), line, taken, image.shape)
        taken = np.vstack([taken, plate])
        plates.append((i, plate))
    for i, (x1, y1, x2, y2) in reversed(plates):
        cv2.rectangle(image, (x1, y1), (x2 - 1, y2 - 1), colours[i], -1)
        light = np.dot(colours[i], (0.114, 0.587, 0.299)) > 130  # luma
        put_text(image, texts[i], x1 + size // 4, y2 - round(size * 0.35), size, (0, 0, 0) if light else (255,) * 3)
    return image


def _place(box: list[int], width: int, height: int, line: int, taken: np.ndarray, shape: tuple) -> list[int]:
    """xyxy of a plate for the text of a box: above it, inside or below, wherever it hides least of other plates."""
    x = min(max(box[0] - line // 2, 0), max(shape[1] - width, 0))
    least, best = np.inf, []
    for y in (box[1] - height, box[1], box[3], box[3] - height):
        plate = [x, y, x + width, y + height]
        sides = np.minimum(taken[:, 2:], plate[2:]) - np.maximum(taken[:, :2], plate[:2])
        outside = max(-y, y + height - shape[0], 0) * width
        hidden = sides.clip(0).prod(1).sum() + 1000 * outside
        if hidden < least:
            least, best = hidden, plate
    return best


def text_width(text: str, size: int) -> int:
    """Pixels that a text takes in letters `size` pixels high."""
    if hasattr(cv2, "FontFace"):
        return cv2.getTextSize((0, 0), text, (0, 0), _opencv_font(), size)[2]
    return round(_pillow_font(size).getlength(text))


def put_text(image: np.ndarray, text: str, x: int, baseline: int, size: int, colour: Colour) -> None:
    """Writes into the image, in any script that the font has: OpenCV 5 brings one, for OpenCV 4 see FONTS."""
    if hasattr(cv2, "FontFace"):
        cv2.putText(image, text, (x, baseline), colour, _opencv_font(), size)
        return
    from PIL import Image, ImageDraw

    picture = Image.fromarray(image)
    ImageDraw.Draw(picture).text((x, baseline), text, fill=colour, font=_pillow_font(size), anchor="ls")
    image[:] = np.asarray(picture)


@lru_cache(1)
def _opencv_font():
    return cv2.FontFace("uni")


@lru_cache(16)
def _pillow_font(size: int):
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def contact_sheet(images: Sequence[np.ndarray], columns: int, longest: int = 640) -> np.ndarray:
    """One page with all images, row by row, shrunk into cells of at most `longest` pixels. No images: ValueError."""
    if not len(images):
        raise ValueError("a contact sheet needs at least one picture")
    columns = min(columns, len(images))
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    shrink = min(longest / max(height, width), 1)
    height, width = max(round(height * shrink), 1), max(round(width * shrink), 1)
    rows = -(-len(images) // columns)
    page = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), PAPER, np.uint8)
    for number, image in enumerate(images):
        scale = min(height / image.shape[0], width / image.shape[1], 1)
        h, w = max(round(image.shape[0] * scale), 1), max(round(image.shape[1] * scale), 1)
        row, column = divmod(number, columns)
        top = GAP + row * (height + GAP) + (height - h) // 2
        left = GAP + column * (width + GAP) + (width - w) // 2
        page[top : top + h, left : left + w] = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)
    return page


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Writes an image in the format of its ending, and makes the folder.

    Any path will do, while cv2.imwrite needs ASCII on Windows. Raises ValueError for endings that OpenCV cannot write.
    """
    path = Path(path)
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if path.suffix.lower() in (".jpg", ".jpeg") else []
    try:
        written, data = cv2.imencode(path.suffix, image, options)
    except cv2.error:
        written = False
    if not written:
        raise ValueError(f"{path}: OpenCV cannot write {path.suffix or 'a file without an ending'}; use .jpg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.tobytes())
