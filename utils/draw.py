"""Drawing of boxes with class names and scores in any language, contact sheets, and writing of image files.

Images are uint8 BGR [H, W, 3]. Functions return copies, except `put_text`.
"""

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

from utils.files import DRAWN_MARK, naming
from utils.images import ImageError

Color = tuple[int, int, int]  # BGR

TEXT_SIZE = 1 / 36  # font size relative to the mean side of the image: 15 pixels at 640 x 480
FEW_BOXES = 10  # with more boxes in an image the font shrinks
MIN_TEXT_SIZE = 11  # pixels; smaller Chinese is unreadable
MAX_TEXT = 50  # characters that are drawn of a text
JPEG_QUALITY = 95
FONTS = ("NotoSansCJK-Regular.ttc", "msyh.ttc", "simhei.ttf", "PingFang.ttc", "Arial Unicode.ttf", "DejaVuSans.ttf")
GAP, PAPER = 8, 245  # contact sheet: pixels between images, gray level of the background


def color_of(label: int) -> Color:
    """The color of a class: the same in every run, far from the color of the next class (hues in steps of the golden ratio)."""
    hue = (0.01 + label * 0.6180339887) % 1
    saturation, value = ((0.82, 1.0), (0.55, 1.0), (0.95, 0.78))[label // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(blue * 255), round(green * 255), round(red * 255)


def draw_boxes(image: np.ndarray, boxes, labels, classes: Sequence[str], scores=None) -> np.ndarray:
    """Draws boxes [n, 4] xyxy with their class names and scores; the box with the highest score is on top."""
    boxes, labels = np.asarray(boxes), np.asarray(labels, int)
    texts = [classes[label] for label in labels]
    if scores is not None:
        order = np.argsort(scores, kind="stable")
        texts = [f"{texts[i]} {float(scores[i]):.2f}" for i in order]
        boxes, labels = boxes[order], labels[order]
    return draw_labeled(image, boxes, texts, [color_of(int(label)) for label in labels])


def draw_labeled(
    image: np.ndarray,
    boxes,
    texts: Sequence[str],
    colors: Sequence[Color],
    line: int | None = None,
    size: int | None = None,
) -> np.ndarray:
    """Draws boxes [n, 4] xyxy, each with a text and a color; the last one is on top.

    A text fills a rectangle (plate) above its box, or inside it where the image ends above. "" has no plate.
    `line`: the width of the outlines in pixels, `size`: that of the font; None: by the size of the image.
    """
    image = np.ascontiguousarray(image).copy()
    height, width = image.shape[:2]
    side = (height * width) ** 0.5
    boxes, texts = np.asarray(boxes, np.float64).reshape(-1, 4), [drawable(text) for text in texts]
    if size is None:
        size = max(round(side * TEXT_SIZE * min(FEW_BOXES / max(len(boxes), 1), 1) ** 0.4), MIN_TEXT_SIZE)
    if line is None:
        line = max(round(side / 260), 1)
    corners = np.round(np.clip(boxes, 0, [width - 1, height - 1] * 2)).astype(int).tolist()
    for (x1, y1, x2, y2), color in zip(corners, colors, strict=True):
        cv2.rectangle(image, (x1, y1), (x2, y2), color, line)
    plate_height = round(size * 1.35)
    for (left, top, _, _), text, color in zip(corners, texts, colors, strict=True):
        if not text:
            continue
        plate_width = text_width(text, size) + size // 2
        x = min(max(left - line // 2, 0), max(width - plate_width, 0))
        y = top if top < plate_height else top - plate_height
        cv2.rectangle(image, (x, y), (x + plate_width - 1, y + plate_height - 1), color, -1)
        luma = np.dot(color, (0.114, 0.587, 0.299))
        ink = (0, 0, 0) if luma > 130 else (255, 255, 255)
        put_text(image, text, x + size // 4, y + plate_height - round(size * 0.35), size, ink)
    return image


def drawable(text: str) -> str:
    """A text that every font renderer accepts: shortened to `MAX_TEXT` characters, without lone surrogates."""
    text = text.encode("utf-8", errors="replace").decode()  # OpenCV crashes on a lone surrogate
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def text_width(text: str, size: int) -> int:
    """The width of a text in pixels at a font size of `size` pixels."""
    if hasattr(cv2, "FontFace"):
        return cv2.getTextSize((0, 0), text, (0, 0), _opencv_font(), size)[2]
    return round(_pillow_font(size).getlength(text))


def put_text(image: np.ndarray, text: str, x: int, baseline: int, size: int, color: Color) -> None:
    """Writes a text into the image. OpenCV 5 contains a font for all languages, with OpenCV 4 one of FONTS is used."""
    if hasattr(cv2, "FontFace"):
        cv2.putText(image, text, (x, baseline), color, _opencv_font(), size)
        return
    from PIL import Image, ImageDraw

    canvas = Image.fromarray(image)
    ImageDraw.Draw(canvas).text((x, baseline), text, fill=color, font=_pillow_font(size), anchor="ls")
    image[:] = np.asarray(canvas)


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


def resized(image: np.ndarray, scale: float) -> np.ndarray:
    """Returns an image with its sides multiplied by `scale`, at least one pixel; a smaller one averages pixels."""
    size = [max(round(side * scale), 1) for side in image.shape[1::-1]]
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def contact_sheet(images: Sequence[np.ndarray], columns: int, longest: int = 640) -> np.ndarray:
    """Arranges images in a grid, row by row, each shrunk to at most `longest` pixels. Raises ValueError without images."""
    if not len(images):
        raise ValueError("a contact sheet needs at least one image")
    columns = min(columns, len(images))
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    shrink = min(longest / max(height, width), 1)
    height, width = max(round(height * shrink), 1), max(round(width * shrink), 1)
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), PAPER, np.uint8)
    for number, image in enumerate(images):
        image = resized(image, min(height / image.shape[0], width / image.shape[1], 1))
        h, w = image.shape[:2]
        row, column = divmod(number, columns)
        top = GAP + row * (height + GAP) + (height - h) // 2
        left = GAP + column * (width + GAP) + (width - w) // 2
        sheet[top : top + h, left : left + w] = image
    return sheet


def write_image(path: str | Path, image: np.ndarray, is_drawn: bool = False) -> None:
    """Writes an image in the format of its file name extension, and creates the folder.

    `is_drawn`: there are boxes in it, so that the file gets DRAWN_MARK and is never trained on. Unlike cv2.imwrite it accepts
    non-ASCII paths on Windows. Raises ImageError for a format that OpenCV cannot write, or not of an image of this size.
    """
    path = Path(path)
    options = []
    if path.suffix.lower() in (".jpg", ".jpeg"):
        options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    try:
        written, data = cv2.imencode(path.suffix, image, options)
    except cv2.error:
        written = False
    if not written:
        size = f"{image.shape[1]}x{image.shape[0]} pixels as {path.suffix or 'a file without extension'}"
        raise ImageError(f"{path}: OpenCV cannot write {size}: use .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        path.write_bytes(data.tobytes() + (DRAWN_MARK if is_drawn else b""))
