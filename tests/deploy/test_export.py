"""export.py: exported files compute what PyTorch computes, and a file that does not is never written."""

import contextlib
import io
import json
import re
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lively import lively_checkpoint
from refused import refused, told
from small import TINY_WEIGHTS
from torch import nn

import evaluate
import export
import nets
import predict
from datasets import demo
from deploy.agreement import ExportError
from deploy.detector import Detector
from deploy.load import load
from export import Config, main, write
from nets.model import DetectionModel
from nets.postprocess import MAX_CANDIDATES, select
from utils import checkpoint
from utils.config import ConfigError

MOVING = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"}  # operators that only move numbers
SMALLEST = ["yolox_nano", "yolov9_t", "ppyoloe_s", "picodet_s"]


def run(weights, **changes):
    return main(Config(**{"checkpoint": str(weights), "check_images": 3, **changes}))


def images(count=5):
    return [demo.draw_image(number)[0] for number in range(count)]


def assert_same(ours, theirs, boxes=0.05, scores=1e-4):
    assert sum(len(one.scores) for one in ours) > 5
    for a, b in zip(ours, theirs, strict=True):
        free = list(range(len(b.names)))  # detections with equal scores may come in any order
        for box, score, name in zip(a.boxes, a.scores, a.names, strict=True):
            near = (np.abs(b.boxes - box).max(1) <= boxes) & (np.abs(b.scores - score) <= scores)
            partner = next((i for i in free if near[i] and b.names[i] == name), None)
            assert partner is not None, (box, score, name)
            free.remove(partner)
        assert not free


OPTIONS = {
    "one image": {"max_detections": 290},
    "two float images": {"batch_size": 2, "uint8_input": False},
    "any number and size": {"batch_size": 0, "dynamic_size": True},
    "half": {"half": True},
    "raw": {"outputs": "raw", "uint8_input": False, "batch_size": 2},
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    stored = {"metrics": {"confidence": 0.42}, "thresholds": {"red": 0.6, "green": 0.25}}
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt", **stored)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, weights):
    """`exported(name)` -> the file exported with OPTIONS[name], written once, and the output of the program."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def make(name):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return run(weights, output=str(folder / f"{name}.onnx"), **OPTIONS[name]), printed.getvalue()

    return make


@pytest.mark.parametrize(
    "name",
    [
        "one image",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("any number and size", "two float images", "raw")),
    ],
)
def test_an_exported_file_detects_the_same_as_its_checkpoint(exported, weights, name):
    file, _ = exported(name)
    for limits in ({}, {"confidence": 0.3, "nms_iou": 0.7}, {"confidence": 0.05, "nms_iou": 0.3, "batch_size": 2}):
        assert_same(Detector(weights, device="cpu", **limits)(images()), Detector(file, **limits)(images()))
    (nothing,) = Detector(file, confidence=1.0)(images(1))
    assert nothing.boxes.shape == (0, 4) and nothing.names == ()


@pytest.mark.slow
def test_a_dynamic_file_works_at_other_sizes(exported, weights):
    file, printed = exported("any number and size")
    told(printed, "64 x 96", "128 x 128")
    for size in ((32, 32), (160, 64)):
        limits = {"confidence": 0.2, "image_size": size}
        assert_same(Detector(weights, device="cpu", **limits)(images()), Detector(file, **limits)(images()))
    for value in (*onnx.load(file).graph.input, *onnx.load(file).graph.output):
        if value.name in ("images", "boxes", "scores", "labels"):
            batch = value.type.tensor_type.shape.dim[0]
            assert batch.dim_param and not batch.dim_value  # no batch size is left in the file


@pytest.mark.slow
def test_raw_outputs_are_static_tensors_of_each_stride(exported):
    file = onnx.load(exported("raw")[0])
    shapes = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in file.graph.output}
    grids = {8: [8, 12], 16: [4, 6], 32: [2, 3]}
    fields = {"boxes": 4, "objectness": 1, "classes": 3}
    assert shapes == {f"{name}_{stride}": [2, c, *grids[stride]] for name, c in fields.items() for stride in grids}
    assert [x.name for x in file.graph.input] == ["images"]
    assert not operators(exported("raw")[0]) & MOVING


def operators(file):
    return {node.op_type for node in onnx.load(file).graph.node}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"half": True}], ids=["exact", "half"])
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_models_pass_the_comparison(tmp_path, name, options):
    file = run(lively_checkpoint(tmp_path / "best.pt", name), **options)
    stored = {tensor.data_type for tensor in onnx.load(file).graph.initializer if len(tensor.dims) == 4}
    assert stored == {onnx.TensorProto.FLOAT16 if options else onnx.TensorProto.FLOAT}
    assert "MatMul" not in operators(file)  # slow in onnxruntime with a vector, as in the decoding of distances


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, pytest.param({"half": True}, marks=pytest.mark.slow)], ids=["exact", "half"])
def test_a_model_whose_scores_are_nearly_equal_passes_the_comparison(tmp_path, capsys, options):
    """As after an epoch from scratch: rounding decides which of the overlapping boxes NMS keeps, and which class a box has."""
    path = lively_checkpoint(tmp_path / "best.pt", "picodet_s", image_size=(128, 128))
    contents = checkpoint.load(path)
    for name, value in contents["model"].items():
        if name.startswith(("head.class_predictors.", "head.alignments.")) and value.is_floating_point():
            value *= 1e-6 if name.endswith(("weight", "bias")) else 1
    checkpoint.save(path, contents)
    run(path, **options)  # raises if a detection has no partner
    assert re.search(r"[1-9][\d,]* detections", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_raw_files_contain_only_the_network(tmp_path, name):
    """Converters for small devices support few operators that join levels or move channels, or run them slowly."""
    found = operators(run(lively_checkpoint(tmp_path / "best.pt", name), outputs="raw", uint8_input=False))
    assert "Conv" in found and not found & MOVING


class Given(DetectionModel):
    """Its input is its prediction: six numbers per anchor point, box, score and label."""

    letterbox, strides, num_classes = "corner", (8, 16, 32), 5

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return images.flatten(1).unflatten(1, (-1, 6))

    def decode(self, predictions, image_size):
        return predictions[..., :4], predictions[..., 4], predictions[..., 5].round().long()


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A file with only the post-processing: scored boxes in, detections out."""
    path = tmp_path_factory.mktemp("given") / "given.onnx"
    about = {"image_size": (32, 32), "dynamic_size": True, "outputs": "detections", "confidence": 0.3, "nms_iou": 0.5}
    write(path, Given().eval(), about | {"max_detections": 50, "half": False}, 0, False)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def scored_boxes(case, rows, rng):
    """float32 [2, anchor points, 6] for images of `rows` x 64 pixels."""
    count = rows * 64 // 2
    corner = rng.uniform(0, 200, (2, count, 2))
    scores = rng.uniform(0, 1, (2, count, 1))
    if case == "equal scores":
        scores = rng.integers(0, 4, scores.shape) / 4
    sizes = rng.uniform(5, 80, (2, count, 2)) * (case != "no area")
    labels = rng.integers(0, 5, (2, count, 1))
    if case == "one class":
        labels[:] = 3
    numbers = np.concatenate([corner, corner + sizes, scores, labels], 2).astype(np.float32)
    if case == "not finite":
        numbers[:, ::7, 2] = np.inf
        numbers[:, ::11, 1] = np.nan
        numbers[:, ::5, 3] *= 1e6
    return numbers


@pytest.mark.parametrize("case", ["usual", "equal scores", "one class", "no area", "not finite"])
@pytest.mark.parametrize("rows", [32, 128])  # fewer and more anchor points than MAX_CANDIDATES
def test_nms_of_the_file_equals_nms_of_pytorch(given, case, rows):
    numbers = scored_boxes(case, rows, np.random.default_rng(0))
    assert (numbers.shape[1] > MAX_CANDIDATES) == (rows == 128)
    inputs = numbers.reshape(2, 3, rows, 64)
    transforms = torch.tensor([[64.0, rows, 1, 1, 0, 0]] * 2)
    for confidence, nms_iou in ((0.0, 0.65), (0.5, 0.5), (0.75, 0.0), (0.99999, 0.5)):
        limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": 50}
        ours = select(*Given().decode(torch.from_numpy(numbers), None), transforms, **limits)
        thresholds = {name: np.array([limits[name]], np.float32) for name in ("confidence", "nms_iou")}
        theirs = given.run(None, {"images": inputs, **thresholds})
        for a, boxes, scores, labels in zip(ours, *map(torch.from_numpy, theirs), strict=True):
            real = labels >= 0
            assert (confidence > 0.9) or len(a.scores) > 5
            assert torch.equal(a.scores, scores[real]) and torch.equal(a.labels, labels[real])
            torch.testing.assert_close(a.boxes, boxes[real], rtol=1e-6, atol=1e-5)


def spoiled(model, what):
    """A model that differs from the exported one."""
    if what == "boxes":
        model.decode = lambda *args: (lambda b, s, c: (b + 0.6, s, c))(*type(model).decode(model, *args))
    for predictor in model.head.class_predictors:
        if what == "classes":
            predictor.weight.data[:2] = predictor.weight.data[[1, 0]]
        if what == "scores":
            predictor.bias.data += 0.05
    return model


@pytest.mark.parametrize("what", ["boxes", "classes", "scores", "nothing"])
def test_the_comparison_notices_every_difference(exported, weights, what):
    file, model = exported("one image")[0], spoiled(load(weights).model, what)
    outcome = contextlib.nullcontext()
    if what != "nothing":
        outcome = refused(ExportError, "boxes=0.5", "scores=0.001", "image 1")
    with outcome:
        export.verify(file, model, images(3))


def test_a_file_that_differs_is_not_written_and_the_previous_one_is_kept(tmp_path, monkeypatch, exported):
    weights, previous = lively_checkpoint(tmp_path / "best.pt"), exported("one image")[0].read_bytes()
    weights.with_suffix(".onnx").write_bytes(previous)
    before = sorted(weights.parent.iterdir())
    monkeypatch.setattr(export, "write", lambda file, model, *more: write(file, spoiled(model, "scores"), *more))
    with refused(ExportError, "boxes=0.5", "scores=0.001", "image 1", "class 2"):
        run(weights)
    assert sorted(weights.parent.iterdir()) == before
    assert weights.with_suffix(".onnx").read_bytes() == previous
    for options, named in (({"half": True}, "half=false"), ({"outputs": "raw"}, "outputs=detections")):
        with refused(ConfigError, "best.onnx", named, "output="):  # a program may use it
            run(weights, **options)
    weights.with_suffix(".onnx").write_bytes(b"of another program")
    with refused(ConfigError, "best.onnx", "output="):
        run(weights)
    assert weights.with_suffix(".onnx").read_bytes() == b"of another program"


@pytest.mark.slow
def test_a_model_without_detections_is_refused(tmp_path):
    model = nets.build("tiny_n", 2)
    for predictor in model.head.class_predictors:
        nn.init.constant_(predictor.bias, -20)
    contents = {"config": {"model": "tiny_n", "image_size": (64, 64)}, "classes": ["a", "b"], "epoch": 1, "step": 1}
    checkpoint.save(tmp_path / "a.pt", contents | {"metrics": {}, "model": model.state_dict()})
    with refused(ExportError, "images=FOLDER"):
        run(tmp_path / "a.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_metadata_describe_the_file_without_paths_of_the_computer(exported, weights):
    file = onnx.load(exported("one image")[0])
    about = {entry.key: json.loads(entry.value) for entry in file.metadata_props}
    assert about["version"] == 1 and about["classes"] == ["red", "blue", "green"] and about["image_size"] == [64, 96]
    assert (about["letterbox"], about["padding"], about["model"]) == ("center", 114, "tiny_n")
    assert (about["confidence"], about["nms_iou"], about["max_detections"]) == (0.42, 0.5, 290)
    assert [(entry.domain, entry.version) for entry in file.opset_import] == [("", 18)]
    assert not {node.domain for node in file.graph.node} - {""} and not file.functions
    text = file.SerializeToString()
    for trace in (b".py", b"site-packages", str(weights.parent).encode()):
        assert trace not in text
    tensors = (*file.graph.input, *file.graph.output)
    shapes = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in tensors}
    assert shapes["images"] == [1, 64, 96, 3]
    assert shapes["boxes"] == [1, 290, 4] and shapes["scores"] == shapes["labels"] == [1, 290]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"outputs": "raw", "batch_size": 0}, ["outputs=raw", "dynamic_size", "batch_size"]),
        ({"outputs": "boxes"}, ["outputs=boxes", "detections, raw"]),
        ({"output": "a.pt"}, ["output=a.pt", ".onnx"]),
        ({"image_size": (60, 64)}, ["image_size=60,64", "64,64"]),
        ({"max_detections": 3001}, ["max_detections=3001", "at most 3000"]),
    ],
)
def test_invalid_constants_are_refused_with_the_reason(weights, changes, named):
    with refused(ValueError, *named):
        run(weights, **changes)


def test_images_to_compare_on_come_from_the_training_or_a_folder(demo_images, tmp_path, capsys):
    loaded = load(lively_checkpoint(tmp_path / "a.pt", "tiny_n", demo.CLASSES, val=str(demo_images / "val.txt")))
    for most, count in ((1, 1), (4, 4), (99, 5)):  # of five images
        found, source = export.find_images(None, loaded, most)
        assert len(found) == count and source == f"images of {demo_images / 'val.txt'}"
        assert len({image.tobytes() for image in found}) == count  # none twice
    found, source = export.find_images(str(demo_images), loaded, 4)
    assert len(found) == 4 and source == f"images of {demo_images}"
    found, source = export.find_images(None, loaded._replace(config={"val": "gone.txt"}), 4)
    assert len(found) == 4 and str(tmp_path) not in source  # generated ones
    told(capsys.readouterr().out, "gone.txt")
    (tmp_path / "empty").mkdir()
    with refused(ConfigError, f"images={tmp_path / 'empty'}"):
        export.find_images(str(tmp_path / "empty"), loaded, 4)


@pytest.mark.parametrize("name", ["one image", pytest.param("raw", marks=pytest.mark.slow)])
def test_thresholds_of_classes_are_used_with_every_kind_of_file(exported, weights, name):
    file = exported(name)[0]
    ours, theirs = (Detector(path, confidence="per_class", device="cpu") for path in (weights, file))
    assert theirs.loaded.thresholds == {"red": 0.6, "green": 0.25}
    assert torch.equal(theirs.limits["confidence"], torch.tensor([0.6, 0.42, 0.25]))
    assert_same(ours(images()), theirs(images()))
    found = [
        (name, score) for result in theirs(images()) for name, score in zip(result.names, result.scores, strict=True)
    ]
    for name, least in {"red": 0.6, "blue": 0.42, "green": 0.25}.items():
        assert min(score for other, score in found if other == name) >= least - 1e-6
    assert min(score for name, score in found if name == "green") < 0.4


@pytest.mark.slow
def test_evaluate_and_predict_give_the_same_with_the_file_and_the_checkpoint(demo_images, tmp_path):
    evaluated, predicted = [], []
    for one in (TINY_WEIGHTS, run(TINY_WEIGHTS, batch_size=2, output=str(tmp_path / "tiny.onnx"))):
        options = {"data": str(demo_images / "val.txt"), "output": str(tmp_path / f"of{one.suffix}"), "workers": 0}
        evaluate.main(evaluate.Config(str(one), device="cpu", **options))
        evaluated.append(json.loads((tmp_path / f"of{one.suffix}" / "detections.json").read_text()))
        options = {"source": str(demo_images / "*.png"), "device": "cpu", "confidence": 0.05}
        predict.main(predict.Config(str(one), output=str(tmp_path / f"drawn{one.suffix}"), **options))
        predicted.append(json.loads((tmp_path / f"drawn{one.suffix}" / "detections.json").read_text()))
    for ours, theirs in (evaluated, predicted):
        assert len(ours) == len(theirs) > 10
        np.testing.assert_allclose(*([entry["bbox"] for entry in one] for one in (ours, theirs)), atol=0.05)
