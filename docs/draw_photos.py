"""Draws detections on photographs: before and after a run, added classes, labels next to predictions, and a video."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from deploy.detector import Detector
from deploy.result import Result
from docs.jpeg import DARK, side_by_side, write_jpeg
from utils.boxes import xywh_to_xyxy
from utils.draw import Color, color_of, draw_labeled, put_text
from utils.images import read_image

ROOT = Path(__file__).parents[1]
TEXT, TITLE, HEIGHT = 26, 30, 420  # pixels of a text, a title and a photograph
SURE = 0.45  # least score of a drawn detection
GRAY: Color = (140, 140, 140)
FRAME, STEP = 576, 4  # width of a drawn frame in pixels; every fourth frame of the video is tracked
CHANGED = 40  # a pixel differs from the empty room, in levels of 256
COLORS = 160  # of the GIF


def draw_large(result: Result, colors: list[Color]) -> np.ndarray:
    """Draws detections with texts that are readable in half of the size; the best one is on top."""
    scale = HEIGHT / result.image.shape[0]
    smooth = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    image = cv2.resize(result.image, None, fx=scale, fy=scale, interpolation=smooth)
    order = np.argsort(result.scores, kind="stable").tolist()
    texts = [f"{result.names[index]} {result.scores[index]:.2f}" for index in order]
    return draw_labeled(image, scale * result.boxes[order], texts, [colors[index] for index in order], 3, TEXT)


def titled(image: np.ndarray, title: str) -> np.ndarray:
    band = np.full((TITLE + 20, image.shape[1], 3), DARK, np.uint8)
    put_text(band, title, 14, TITLE + 4, TITLE, (224, 215, 209))
    return np.concatenate([band, image])


def before_after(photo: Path, weights: str, best: Path, output: Path) -> None:
    """Draws what the official weights detect in a photograph, and what a model that was fine-tuned on its class does."""
    images = []
    for title, detector in (
        ("pretrained on COCO", Detector(weights, model="yolox_nano", confidence=SURE)),
        ("after 12 epochs on 159 raccoons", Detector(best, confidence=SURE)),
    ):
        (result,) = detector(str(photo))
        images.append(titled(draw_large(result, [color_of(label) for label in result.labels.tolist()]), title))
    write_jpeg(output, side_by_side(images))


def added_classes(photo: Path, weights: str, best: Path, output: Path) -> None:
    """Draws the old classes in gray and the new one in color, before and after a run with add_classes=true."""
    old, new = (Detector(one, model="yolox_nano", confidence=SURE) for one in (weights, best))
    images = []
    for title, detector in (("before", old), ("after", new)):
        (result,) = detector(str(photo))
        colors = [GRAY if name in old.classes else color_of(0) for name in result.names]
        images.append(titled(draw_large(result, colors), f"{title}: {len(detector.classes)} classes"))
    write_jpeg(output, side_by_side(images))


def predictions(run: Path, output: Path) -> None:
    """Draws the beginning of val_predictions.jpg of a run: two images of the validation, each with its labels and predictions."""
    sheet = read_image(run / "val_predictions.jpg")
    row, half = sheet[: sheet.shape[0] // 4], sheet.shape[1] // 2
    write_jpeg(output, np.concatenate([row[:, :half], row[:, half : 2 * half]]))


def predict(*words: str) -> None:
    """Runs predict.py with YOLOX-nano."""
    subprocess.run([sys.executable, "predict.py", "model=yolox_nano", *words], check=True, cwd=ROOT)


def tracking(video: str, weights: str, frames: range, output: Path) -> None:
    """Draws some frames of a video, as predict.py track=true tracks the people in it, as a GIF."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"checkpoint={weights}", f"source={video}", f"output={folder}", f"every={STEP}", "only=person"]
        predict(*words, "track=true")
        rows = json.loads(Path(folder, "detections.json").read_text(encoding="utf-8"))
    found = {number: [row for row in rows if row["frame"] == number and row["track_id"] > 0] for number in frames}
    write_gif(output, still_background(read_frames(video, frames)), list(found.values()))


def read_frames(video: str, frames: range) -> list[np.ndarray]:
    """Reads frames of a video."""
    capture, images = cv2.VideoCapture(video), []
    for number in range(frames.stop):
        _, image = capture.read()
        if number in frames:
            images.append(image)
    return images


def still_background(images: list[np.ndarray]) -> list[np.ndarray]:
    """Replaces pixels that hardly differ from the median of all images by it: a GIF stores them only once."""
    background = np.median(images, 0).astype(np.uint8)
    shown = []
    for image in images:
        changed = (cv2.absdiff(image, background).max(2) > CHANGED).astype(np.uint8)
        for step, side in ((cv2.MORPH_OPEN, 3), (cv2.MORPH_CLOSE, 21), (cv2.MORPH_DILATE, 9)):
            changed = cv2.morphologyEx(changed, step, np.ones((side, side)))
        shown.append(np.where(changed[..., None] > 0, image, background))
    return shown


def write_gif(output: Path, images: list[np.ndarray], found: list[list[dict]]) -> None:
    """Shrinks the images, draws boxes and numbers of their objects, and writes a GIF of few colors."""
    drawn, scale = [], FRAME / images[0].shape[1]
    for image, rows in zip(images, found, strict=True):
        small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        boxes = scale * xywh_to_xyxy(np.array([row["bbox"] for row in rows]).reshape(-1, 4))
        texts = [f"#{row['track_id']} {row['class']} {row['score']:.2f}" for row in rows]
        drawn.append(draw_labeled(small, boxes, texts, [color_of(row["track_id"]) for row in rows]))
    palette = Image.fromarray(np.vstack(drawn[::6])[..., ::-1]).quantize(COLORS)
    drawn_frames = [Image.fromarray(image[..., ::-1]) for image in drawn]
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in drawn_frames)
    first.save(output, save_all=True, append_images=others, duration=200, loop=0, disposal=1)
