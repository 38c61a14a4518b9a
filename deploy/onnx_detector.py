"""Detects objects with an ONNX file that Thaw's export.py wrote: python onnx_detector.py best.onnx image.jpg drawn.jpg

    from onnx_detector import Detector

    detector = Detector("best.onnx")
    for result in detector(["a.jpg", "b.jpg"]):
        print(result.boxes, result.scores, result.names)

This file needs numpy, OpenCV and onnxruntime, and nothing else of Thaw: copy it into your program. License: Apache-2.0.
"""

import json
import sys
from dataclasses import dataclass

import cv2
import numpy as np
import onnxruntime


@dataclass(eq=False)
class Result:
    """The detections in one image, best first."""

    boxes: np.ndarray  # float32 [n, 4] x1, y1, x2, y2 in pixels of the image
    scores: np.ndarray  # float32 [n]
    labels: np.ndarray  # int64 [n]
    names: tuple[str, ...]  # class names of the labels

    def __len__(self) -> int:
        return len(self.scores)


class Detector:
    """A file of export.py as a callable: `Detector(path)(images)` returns one Result per image.

    An image is a path, or an array uint8 [H, W, 3] in BGR order as in OpenCV. `confidence`: the lowest score, or "per_class" for
    the thresholds of the classes; `nms_iou`: boxes of a class that overlap more are one object. None: as in the file.
    `image_size`: height and width of the network's input, for a file with dynamic_size=true. `about` is the metadata of the file.
    """

    def __init__(self, path, confidence=None, nms_iou=None, image_size=None, providers=("CPUExecutionProvider",)):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only: it warns about inputs with defaults
        self.session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
        written = self.session.get_modelmeta().custom_metadata_map
        if written.get("version") != "1" or written.get("outputs") != '"detections"':
            fix = "give a file of export.py with outputs=detections, and the onnx_detector.py next to it"
            raise ValueError(f"{path}: {fix}")
        self.about = {name: json.loads(text) for name, text in written.items()}
        self.classes = tuple(self.about["classes"])
        self.image_size = tuple(image_size or self.about["image_size"])
        self.input = self.session.get_inputs()[0]
        usual = self.about["confidence"] if confidence in (None, "per_class") else confidence
        own = self.about.get("thresholds", {}) if confidence == "per_class" else {}
        if confidence == "per_class" and not own:
            raise ValueError(f"{path} stores no thresholds of classes: give a number as confidence, or None")
        self.thresholds = np.array([own.get(name, usual) for name in self.classes], np.float32)
        self.limits = {"confidence": self.thresholds.min(keepdims=True)}
        if nms_iou is not None:
            self.limits["nms_iou"] = np.array([nms_iou], np.float32)

    def __call__(self, images):
        """Detects objects in an image, or in each image of a list, and returns a list of Results."""
        images = list(images) if isinstance(images, list | tuple) else [images]
        size = self.input.shape[0]
        size = size if isinstance(size, int) else 1  # images per call of the file; any number is one by one
        results = []
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            batch = [image if isinstance(image, np.ndarray) else self.read(image) for image in batch]
            fitted = [self.letterbox(image) for image in batch]
            inputs = np.zeros((size, *self.image_size, 3), np.uint8)
            inputs[: len(batch)] = [pixels for pixels, _, _ in fitted]
            if self.input.type != "tensor(uint8)":
                inputs = inputs.transpose(0, 3, 1, 2).astype(np.float32)
            boxes, scores, labels = self.session.run(None, {self.input.name: inputs, **self.limits})
            for i, (_, scale, offset) in enumerate(fitted):
                results.append(self.result(batch[i], scale, offset, boxes[i], scores[i], labels[i]))
        return results

    def result(self, image, scale, offset, boxes, scores, labels):
        """Returns the Result of an image from the outputs of the file: boxes [N, 4] in pixels of its input, scores and labels."""
        real = (labels >= 0) & (scores >= self.thresholds[labels])
        boxes = (boxes[real] - offset) / scale
        if self.about["clip"]:
            height, width = image.shape[:2]
            boxes = boxes.clip(0, np.array([width, height] * 2, np.float32))
        return Result(boxes, scores[real], labels[real], tuple(self.classes[label] for label in labels[real]))

    def read(self, path):
        """Reads an image file -> uint8 [H, W, 3] BGR. The values of 16-bit files are scaled as in training."""
        low, high = self.about["value_range"] or (0, 65535)
        flags = cv2.IMREAD_COLOR
        if high - low < 65535:
            flags |= cv2.IMREAD_ANYDEPTH
        image = cv2.imdecode(np.fromfile(path, np.uint8), flags)  # cv2.imread takes no path with umlauts on Windows
        if image is None:
            raise ValueError(f"{path}: OpenCV cannot read this image")
        if image.dtype == np.uint16:
            image = cv2.convertScaleAbs(cv2.subtract(image, (low, low, low, 0)), alpha=255 / (high - low))
        return image

    def letterbox(self, image):
        """Fits an image into the network's input -> pixels, and the scale and offset of x1, y1, x2, y2 in it."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(f"the image is {image.dtype} {list(image.shape)}: give uint8 [H, W, 3] in BGR order")
        height, width = self.image_size
        scale_y, scale_x = height / image.shape[0], width / image.shape[1]
        h, w, top, left, method = height, width, 0, 0, cv2.INTER_CUBIC
        if self.about["letterbox"] != "stretch":
            scale_y = scale_x = min(scale_y, scale_x)
            h, w = (max(int(side * scale_y + 1e-6), 1) for side in image.shape[:2])
            method = cv2.INTER_LINEAR
        if self.about["letterbox"] == "center":
            top, left = (height - h) // 2, (width - w) // 2
        if scale_y * scale_x < 0.25:
            method = cv2.INTER_AREA
        fitted = np.full((height, width, 3), self.about["padding"], np.uint8)
        fitted[top : top + h, left : left + w] = cv2.resize(image, (w, h), interpolation=method)
        return fitted, np.array([scale_x, scale_y] * 2, np.float32), np.array([left, top] * 2, np.float32)


def draw(image, result):
    """Draws the boxes with class names and scores into an image."""
    for (x1, y1, x2, y2), score, name in zip(
        result.boxes.round().astype(int).tolist(), result.scores, result.names, strict=True
    ):
        cv2.rectangle(image, (x1, y1), (x2, y2), (0, 160, 255), 2)
        place, text = (x1, max(y1 - 4, 12)), f"{name} {score:.2f}"
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 160, 255), 1)


def main(file, source, target):
    """Detects objects in the image file `source`, prints them, and writes the drawn image."""
    detector = Detector(file)
    image = detector.read(source)
    (result,) = detector(image)
    for box, score, name in zip(result.boxes, result.scores, result.names, strict=True):
        print(f"{name} {score:.4f} {' '.join(f'{side:.1f}' for side in box)}")
    draw(image, result)
    if not cv2.imwrite(target, image):
        raise ValueError(f"{target}: OpenCV cannot write this file")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: python onnx_detector.py best.onnx image.jpg drawn.jpg")
    try:
        main(*sys.argv[1:])
    except Exception as error:  # those of onnxruntime have no common class
        raise SystemExit(f"{type(error).__name__}: {error}") from None
