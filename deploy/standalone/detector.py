"""Detects objects with a file of Thaw's export.py.

    python detector.py best.onnx image.jpg drawn.jpg
    python detector.py best.onnx video=in.mp4 out.mp4

    from detector import Detector

    detector = Detector("best.onnx")  # or best.tflite, best_openvino, best_ncnn, best.mlpackage
    for result in detector(["a.jpg", "b.jpg"]):
        print(result.boxes, result.scores, result.names)

It needs numpy, OpenCV and the runtime of the file, and nothing else of Thaw: copy it into your program. License: Apache-2.0.
"""

import importlib
import json
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

VERSION = 1  # of the metadata
REQUIRED = {  # metadata and their types
    "version": int,
    "classes": list,
    "image_size": list,
    "letterbox": str,
    "padding": int,
    "clip": bool,
    "outputs": str,
    "confidence": int | float,
    "nms_iou": int | float,
    "max_detections": int,
}
RAW = {"strides": list, "output_names": list}  # in files with outputs=raw, too
MAX_CANDIDATES = 3000  # boxes of a head before NMS
FAR = 1e4  # pixels: NMS clips boxes to +-FAR and moves each class by 2 * FAR, so that classes never overlap
EPS = 1e-9  # added to products of scores in PicoDet


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
    `image_size`: height and width of the network's input, for an ONNX file with dynamic_size=true. `threads`: None: the
    default of the runtime, for LiteRT all cores. `providers`: of onnxruntime. `about` is the metadata of the file. Raises
    ValueError for a file that it cannot use.
    """

    def __init__(self, path, confidence=None, nms_iou=None, image_size=None, threads=None, providers=None):
        self.path, self.file = path, open_file(Path(path), threads, providers)
        self.about = about = self.file.about
        self.classes = tuple(about["classes"])
        self.image_size = tuple(image_size or about["image_size"])
        batch_size = self.file.shape[0]
        self.batch_size = batch_size if isinstance(batch_size, int) else 1  # images per call; any number is one by one
        self.nms_iou = about["nms_iou"] if nms_iou is None else nms_iou
        usual = about["confidence"] if confidence in (None, "per_class") else confidence
        own = about.get("thresholds", {}) if confidence == "per_class" else {}
        if confidence == "per_class" and not own:
            raise ValueError(f"{path} stores no thresholds of classes: give a number as confidence, or None")
        self.thresholds = np.array([own.get(name, usual) for name in self.classes], np.float32)

    def __call__(self, images):
        """Detects objects in an image, or in each image of a list, and returns a list of Results."""
        results = []
        for image, scale, offset, outputs in self.run(images):
            if self.about["outputs"] == "raw":
                outputs = self.select(*decode(self.about, outputs, self.thresholds.min()))
            results.append(self.result(image, scale, offset, *outputs))
        return results

    def before_nms(self, images, min_score=0.0):
        """Returns what a file with outputs=raw predicts before NMS: for each image what `decode` returns."""
        if self.about["outputs"] != "raw":
            raise ValueError(f"{self.path} contains NMS: export it with outputs=raw")
        return [decode(self.about, outputs, min_score) for _, _, _, outputs in self.run(images)]

    def run(self, images):
        """Runs the file. Yields for each image its pixels, its scale and offset in the input, and the outputs of the file."""
        images = list(images) if isinstance(images, list | tuple) else [images]
        size = self.batch_size
        limits = {"confidence": self.thresholds.min(keepdims=True), "nms_iou": np.array([self.nms_iou], np.float32)}
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            batch = [image if isinstance(image, np.ndarray) else self.read(image) for image in batch]
            fitted = [self.letterbox(image) for image in batch]
            inputs = np.zeros((size, *self.image_size, 3), np.uint8)
            inputs[: len(batch)] = [pixels for pixels, _, _ in fitted]
            if self.file.shape[3] != 3:
                inputs = inputs.transpose(0, 3, 1, 2)
            outputs = self.file.run(np.ascontiguousarray(inputs, self.file.dtype), limits)
            for i, (_, scale, offset) in enumerate(fitted):
                yield batch[i], scale, offset, [output[i] for output in outputs]

    def select(self, boxes, scores):
        """Applies thresholds and NMS to what `decode` returns -> boxes [n, 4], scores and labels [n], best first."""
        labels, scores = scores.argmax(1), scores.max(1).astype(np.float32)
        best = np.argsort(-scores, kind="stable")
        best = best[scores[best] >= self.thresholds[labels[best]]]
        kept, added = [], self.about.get("added", ())
        ends = np.cumsum([len(self.classes) - sum(added), *added])  # the limits count for each head
        for head in range(len(ends)):
            of_head = best[np.searchsorted(ends, labels[best], "right") == head][:MAX_CANDIDATES]
            kept += of_head[nms(boxes[of_head], labels[of_head], self.nms_iou, self.about["max_detections"])].tolist()
        kept = best[np.isin(best, kept)]
        return boxes[kept], scores[kept], labels[kept]

    def result(self, image, scale, offset, boxes, scores, labels):
        """Returns the Result of an image. Boxes [N, 4] are in pixels of the network's input; labels of empty places are -1."""
        real = (labels >= 0) & (scores >= self.thresholds[labels])
        boxes = (boxes[real] - offset) / scale
        if self.about["clip"]:
            height, width = image.shape[:2]
            boxes = boxes.clip(0, np.array([width, height] * 2, np.float32))
        return Result(boxes, scores[real], labels[real], tuple(self.classes[label] for label in labels[real]))

    def read(self, path):
        """Reads an image file -> uint8 [H, W, 3] BGR. The values of 16-bit files are scaled as in training."""
        low, high = self.about.get("value_range") or (0, 65535)
        flags = cv2.IMREAD_COLOR
        if high - low < 65535:
            flags |= cv2.IMREAD_ANYDEPTH
        data = np.fromfile(path, np.uint8)  # cv2.imread takes no path with umlauts on Windows
        image = cv2.imdecode(data, flags) if len(data) else None
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


def decode(about, outputs, min_score):
    """Decodes the raw outputs for an image -> boxes [N, 4] x1, y1, x2, y2 in pixels of the input, and scores [N, C] of classes.

    An output is [C, rows, columns]; its name, such as classes_8_added1, has the field, the stride, and for heads that were added
    their number. A box has scores of -1 for the classes of other heads. Boxes without a score of `min_score` are left out.
    """
    maps = dict(zip(about["output_names"], outputs, strict=True))
    all_boxes, all_scores = [], []
    first = 0  # class of the head
    for head in range(1 + len(about.get("added", ()))):
        for stride in about["strides"]:
            place = f"_{stride}_added{head}" if head else f"_{stride}"
            fields = {name.removesuffix(place): x for name, x in maps.items() if name.endswith(place)}
            boxes, scores = decode_map(fields, stride, min_score)
            all_boxes.append(boxes)
            all_scores.append(np.full((len(boxes), len(about["classes"])), -1.0))
            all_scores[-1][:, first : first + scores.shape[1]] = scores
        first += scores.shape[1]
    return np.concatenate(all_boxes), np.concatenate(all_scores)


@np.errstate(all="ignore")  # boxes that are not finite are left out
def decode_map(fields, stride, min_score):
    """Decodes the raw outputs of one head and stride, by name [C, rows, columns] -> as `decode`, with scores of its classes."""
    columns = fields["classes"].shape[2]
    fields = {name: x.reshape(len(x), -1).T for name, x in fields.items()}  # [rows * columns, C]
    best = score(fields["classes"].max(1, keepdims=True), fields)[:, 0].astype(np.float32)
    cells = np.flatnonzero(best >= min_score)  # only few: the others cost no more time
    fields = {name: x[cells] for name, x in fields.items()}
    boxes = decode_boxes(fields["boxes"], np.stack([cells % columns, cells // columns], 1), stride)
    finite = np.isfinite(boxes).all(1)
    return boxes[finite], score(fields["classes"], fields)[finite]


def score(classes, fields):
    """Scores float64 [N, C] of the logits [N, C] of classes: in float32, several high ones would be equal."""
    scores = sigmoid(classes)
    if "objectness" in fields:  # YOLOX
        scores = scores * sigmoid(fields["objectness"])
    if "alignment" in fields:  # PicoDet
        scores = np.sqrt(scores * sigmoid(fields["alignment"]) + EPS)
    return scores


def sigmoid(x):
    """The logistic function, in float64."""
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def decode_boxes(raw, cells, stride):
    """Decodes raw boxes [N, 4 or 4 * bins] of grid cells [N, 2] (column, row) -> x1, y1, x2, y2 in pixels of the input."""
    raw = raw.astype(np.float64)
    if raw.shape[1] == 4:  # YOLOX: center and logarithm of the size, in strides
        center, half = raw[:, :2] + cells, np.exp(raw[:, 2:]) / 2
        sides = np.concatenate([center - half, center + half], 1)
    else:  # the others: a distribution over the distances 0, 1, ... strides to left, top, right and bottom
        bins = raw.shape[1] // 4
        logits = raw.reshape(len(raw), 4, bins)
        weights = np.exp(logits - logits.max(2, keepdims=True))
        distances = weights @ np.arange(bins) / weights.sum(2)
        sides = np.concatenate([cells + 0.5 - distances[:, :2], cells + 0.5 + distances[:, 2:]], 1)
    return (sides * stride).astype(np.float32)


@np.errstate(all="ignore")  # 0 / 0 of boxes without area suppresses nothing
def nms(boxes, labels, nms_iou, max_detections):
    """Non-maximum suppression within each class, of boxes [N, 4] that are sorted, best first -> indices of those kept."""
    moved = boxes.astype(np.float64).clip(-FAR, FAR) + labels[:, None] * (2 * FAR)
    areas = (moved[:, 2] - moved[:, 0]) * (moved[:, 3] - moved[:, 1])
    left, kept = np.arange(len(boxes)), []
    while len(left) and len(kept) < max_detections:
        best, left = left[0], left[1:]
        kept.append(best)
        sides = np.minimum(moved[best, 2:], moved[left, 2:]) - np.maximum(moved[best, :2], moved[left, :2])
        overlap = sides.clip(0).prod(1)
        left = left[~(overlap / (areas[best] + areas[left] - overlap) > nms_iou)]
    return np.array(kept, int)


class File(NamedTuple):
    """An opened file. `run(images, limits)`: images as the file takes them, and the two thresholds -> the list of its outputs."""

    about: dict  # metadata
    shape: list  # of the images: [B, H, W, 3] or [B, 3, H, W]; of a file that takes any number or size, not all are numbers
    dtype: type  # of the images: values are 0-255, BGR
    run: Callable


def open_onnx(onnxruntime, path, threads, providers):
    """best.onnx in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3  # errors only: it warns about inputs with defaults
    session = onnxruntime.InferenceSession(str(path), options, providers or ["CPUExecutionProvider"])
    about = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    (first,), others = session.get_inputs(), session.get_overridable_initializers()  # the thresholds have defaults

    def run(images, limits):
        return session.run(None, {first.name: images, **{x.name: limits[x.name] for x in others}})

    return File(about, first.shape, np.uint8 if first.type == "tensor(uint8)" else np.float32, run)


def open_openvino(openvino, path, threads, providers):
    """best_openvino/ in OpenVINO."""
    about, xml = read_metadata(path / "metadata.json"), next(path.glob("*.xml"), path / "model.xml")
    options = {"INFERENCE_PRECISION_HINT": "f32"}  # some computers choose fewer bits
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
    model = openvino.Core().compile_model(str(xml), "CPU", options)
    first, *others = model.inputs

    def run(images, limits):
        outputs = model({first: images, **{x: limits[x.any_name] for x in others}})
        return [outputs[output] for output in model.outputs]

    return File(about, list(first.shape), first.element_type.to_dtype(), run)


def open_ncnn(ncnn, path, threads, providers):
    """best_ncnn/ in ncnn, which takes one image."""
    about, net = read_metadata(path / "metadata.json"), ncnn.Net()
    if threads:
        net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = about.get("half", False)
    for load, name in ((net.load_param, "model.ncnn.param"), (net.load_model, "model.ncnn.bin")):
        if load(str(path / name)) != 0:
            raise ValueError(f"{name} is missing or damaged")

    def run(images, limits):
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(images[0]).clone())  # with the memory of a NumPy array, ncnn ends the process
        outputs = [extractor.extract(f"out{i}") for i in range(len(about["output_names"]))]
        return [np.array(blob)[None] for _, blob in outputs]

    return File(about, [1, 3, *about["image_size"]], np.float32, run)


def open_tflite(litert, path, threads, providers):
    """best.tflite in LiteRT. Its metadata are in a ZIP file behind the model."""
    about = read_metadata(zipfile.Path(path, "metadata.json"))
    interpreter = litert.Interpreter(str(path), num_threads=threads or os.cpu_count())
    model = interpreter.get_signature_runner()
    ((name, first),) = model.get_input_details().items()

    def run(images, limits):
        outputs = model(**{name: images})
        return [outputs[f"output_{i}"] for i in range(len(outputs))]

    return File(about, first["shape"].tolist(), first["dtype"], run)


def open_coreml(coremltools, path, threads, providers):
    """best.mlpackage in Core ML, on a Mac only. Not run yet."""
    model = coremltools.models.MLModel(str(path))
    about = json.loads(model.user_defined_metadata["thaw"])
    (first,) = model.get_spec().description.input

    def run(images, limits):
        outputs = model.predict({first.name: images})
        return [outputs[name] for name in about["output_names"]]

    return File(about, list(first.type.multiArrayType.shape), np.float32, run)


RUNTIMES = {  # kind of file -> what opens it, the module and the package of its runtime
    ".onnx": (open_onnx, "onnxruntime", "onnxruntime"),
    ".tflite": (open_tflite, "ai_edge_litert.interpreter", "ai-edge-litert"),
    "openvino": (open_openvino, "openvino", "openvino"),
    "ncnn": (open_ncnn, "ncnn", "ncnn"),
    ".mlpackage": (open_coreml, "coremltools", "coremltools"),
}


def open_file(path, threads, providers):
    """Opens a file of export.py in its runtime, which is imported here. Raises ValueError if one of both cannot be used."""
    kind = path.suffix
    if path.is_dir() and kind != ".mlpackage":
        kind = "ncnn" if (path / "model.ncnn.param").exists() else "openvino"
    if kind not in RUNTIMES or not path.exists():
        kinds = "a file .onnx or .tflite, or a folder _openvino, _ncnn or .mlpackage"
        raise ValueError(f"{path} is not there, or no export: give {kinds}")
    if kind == ".mlpackage" and sys.platform != "darwin":
        raise ValueError(f"{path} runs on a Mac only: export another format")
    opener, module, package = RUNTIMES[kind]
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime and OpenVINO send usage data by default
    sys.modules.setdefault("openvino_telemetry", None)  # OpenVINO works without this package
    try:
        runtime = importlib.import_module(module)
        if runtime.__file__ is None:
            raise ImportError(f"the folder {module} is not it")
    except ImportError as error:
        raise ValueError(f"{path} needs a package: pip install {package} ({error})") from error
    try:
        file = opener(runtime, path, threads, providers)
    except Exception as error:  # those of the runtimes have no common class
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be opened ({type(error).__name__}: {why}): export it again") from error
    needed = REQUIRED if file.about.get("outputs") != "raw" else REQUIRED | RAW
    if wrong := [name for name, kind in needed.items() if not isinstance(file.about.get(name), kind)]:
        raise ValueError(f"{path} has no valid {', '.join(wrong)} in its metadata: export it again")
    if file.about["version"] != VERSION:
        raise ValueError(f"{path} is of another version: take the detector.py that export.py wrote next to it")
    return file


def read_metadata(path):
    """Reads the metadata in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def draw(image, result):
    """Draws the boxes with class names and scores into an image."""
    boxes = result.boxes.round().astype(int).tolist()
    for (x1, y1, x2, y2), score, name in zip(boxes, result.scores, result.names, strict=True):
        cv2.rectangle(image, (x1, y1), (x2, y2), (0, 160, 255), 2)
        place, text = (x1, max(y1 - 4, 12)), f"{name} {score:.2f}"
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 160, 255), 1)


def draw_image(detector, source, target):
    """Detects objects in the image file `source`, prints them, and writes the drawn image."""
    image = detector.read(source)
    (result,) = detector(image)
    for box, score, name in zip(result.boxes, result.scores, result.names, strict=True):
        print(f"{name} {score:.4f} {' '.join(f'{side:.1f}' for side in box)}")
    draw(image, result)
    cv2.imencode(Path(target).suffix, image)[1].tofile(target)  # as in `read`


def draw_video(detector, source, target):
    """Detects objects in each frame of the video `source`, and writes the drawn video."""
    video = cv2.VideoCapture(source)
    rate, writer, frames, objects = video.get(cv2.CAP_PROP_FPS) or 25, None, 0, 0
    while (frame := video.read()[1]) is not None:
        if writer is None:
            writer = cv2.VideoWriter(target, cv2.VideoWriter.fourcc(*"mp4v"), rate, frame.shape[1::-1])
            if not writer.isOpened():
                raise ValueError(f"{target}: OpenCV cannot write this video: give a name that ends with .mp4")
        (result,) = detector(frame)
        draw(frame, result)
        writer.write(frame)
        frames, objects = frames + 1, objects + len(result)
    if writer is None:
        raise ValueError(f"{source}: OpenCV cannot read this video")
    writer.release()
    print(f"{target}: {frames} frames, {objects} detections")


def main(words):
    """Runs the command line."""
    if len(words) != 3:
        command = "python detector.py FILE"
        raise ValueError(f"usage: {command} image.jpg drawn.jpg, or {command} video=in.mp4 out.mp4")
    file, source, target = words
    is_video, source = source.startswith("video="), source.removeprefix("video=")
    if not os.path.exists(source):
        raise ValueError(f"{source}: there is no such file")
    if os.path.exists(target) and os.path.samefile(source, target):
        raise ValueError(f"{target} is the source: give another name for what is drawn")
    detector = Detector(file)
    if is_video:
        draw_video(detector, source, target)
    else:
        draw_image(detector, source, target)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:
        raise SystemExit(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
