"""export.py: files that compute what PyTorch computes, that say what they are, and none where they do not."""

import contextlib
import io
import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lively import Toy, lively_checkpoint
from small import config as training
from small import only_run
from torch import nn
from toys import spawn

import evaluate
import export
import nets
import predict
import train
from datasets import demo
from export import Config, ExportError, main, write
from nets.model import DetectionModel
from nets.postprocess import MAX_CANDIDATES, select
from nets.selector import claim
from utils import checkpoint, detector, speed
from utils.checkpoint import CheckpointError
from utils.config import ConfigError
from utils.detector import Detector
from utils.distributed import Ranks
from utils.onnx import OnnxModel

MOVING = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"}
FAMILIES = {name.partition("_")[0]: name for name in reversed(nets.MODELS)}  # the smallest of each


@pytest.fixture(scope="module", autouse=True)
def toy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(nets.MODELS, "toy", Toy)
        yield


@pytest.fixture
def weights(tmp_path):
    return lively_checkpoint(tmp_path / "runs/a/best.pt", "toy", metrics={"confidence": 0.42})


def run(weights, **changes):
    return main(Config(**{"checkpoint": str(weights), "check_pictures": 3, **changes}))


def images(count=5):
    return [demo.picture(number)[0] for number in range(count)]


def assert_same(ours, theirs, boxes=0.05, scores=1e-4):
    assert sum(len(one.scores) for one in ours) > 5
    for a, b in zip(ours, theirs, strict=True):
        free = list(range(len(b.names)))  # of two with the same score either may come first
        for box, score, name in zip(a.boxes, a.scores, a.names, strict=True):
            near = (np.abs(b.boxes - box).max(1) <= boxes) & (np.abs(b.scores - score) <= scores)
            place = next((i for i in free if near[i] and b.names[i] == name), None)
            assert place is not None, (box, score, name)
            free.remove(place)
        assert not free


WAYS = {
    "one picture": {},
    "two pictures": {"batch_size": 2},
    "any number and size": {"batch_size": 0, "dynamic_size": True},
    "tensors": {"pictures_in": False},
    "half": {"half": True},
    "raw": {"outputs": "raw", "pictures_in": False, "batch_size": 2},
    "raw of a picture": {"outputs": "raw"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`files(way)` -> the checkpoint and its export, made once, and what was said."""
    folder = tmp_path_factory.mktemp("files")
    weights = lively_checkpoint(folder / "best.pt", "toy", metrics={"confidence": 0.42})

    @cache
    def make(way):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            return weights, run(weights, output=str(folder / f"{way}.onnx"), **WAYS[way]), said.getvalue()

    return make


@pytest.mark.parametrize("way", WAYS)
def test_a_file_finds_what_its_checkpoint_finds(files, way):
    weights, file, said = files(way)
    if way != "half":
        assert re.search(r"confidence 0.05 and more: \d+ detections: .* 0 without a partner", said)
        for limits in ({}, {"confidence": 0.3, "nms_iou": 0.7}, {"confidence": 0.05, "nms_iou": 0.3, "batch_size": 2}):
            assert_same(Detector(weights, device="cpu", **limits)(images()), Detector(file, **limits)(images()))
    (nothing,) = Detector(file, confidence=1.0)(images(1))
    assert nothing.boxes.shape == (0, 4) and nothing.names == ()


def test_a_file_of_any_size_is_used_at_any_size(files):
    weights, file, said = files("any number and size")
    assert "at 64 x 96" in said and "at 128 x 128" in said
    for size in ((32, 32), (160, 64)):
        limits = {"confidence": 0.2, "image_size": size}
        assert_same(Detector(weights, device="cpu", **limits)(images()), Detector(file, **limits)(images()))


def test_speed_of_a_file_counts_network_and_nms_together(files):
    detector = Detector(files("one picture")[1], batch_size=1)
    parts = speed.measure(detector, iter(images(4)))
    assert list(parts) == ["decoding", "preprocessing", "network and NMS"] and parts["network and NMS"] > 0.05


def test_half_precision_has_its_own_tolerance(files):
    weights, half, said = files("half")
    assert "onnxruntime and PyTorch at" in said and half.stat().st_size < 0.9 * files("one picture")[1].stat().st_size
    found, wanted = Detector(half, confidence=0.3)(images()), Detector(weights, confidence=0.3, device="cpu")(images())
    assert abs(sum(len(one.scores) for one in wanted) - sum(len(one.scores) for one in found)) <= 3


@pytest.mark.parametrize("options", [{}, {"half": True, "check_pictures": 1}], ids=["exact", "half"])
@pytest.mark.parametrize("name", FAMILIES.values())
def test_the_smallest_of_every_family_passes_its_check(tmp_path, name, options):
    run(lively_checkpoint(tmp_path / "best.pt", name), **options)


def operators(file):
    import onnx

    return {node.op_type for node in onnx.load(file).graph.node}


@pytest.mark.parametrize("name", FAMILIES.values())
def test_raw_files_hold_nothing_but_the_network(tmp_path, name):
    """What converters for small devices cannot do, or do slowly: no joining of levels, no moving of channels."""
    found = operators(run(lively_checkpoint(tmp_path / "best.pt", name), outputs="raw", pictures_in=False))
    assert "Conv" in found and not found & MOVING


@pytest.mark.slow
@pytest.mark.parametrize("name", nets.MODELS)
@pytest.mark.parametrize("outputs", ["detections", "raw"])
def test_every_size_passes_its_check(tmp_path, name, outputs):
    run(lively_checkpoint(tmp_path / "best.pt", name), outputs=outputs)


class Claims(nn.Module):
    """The maps of a head as one input."""

    def forward(self, seen):
        return claim(seen, 16)


@torch.no_grad()
def test_claims_are_the_same_in_onnx(tmp_path):
    """Of what neighbours agree on, for objects of which many are near the borders of cells and sizes."""
    import onnxruntime

    generator = torch.Generator().manual_seed(0)
    x, y = torch.meshgrid(torch.arange(12.0), torch.arange(8.0), indexing="xy")
    centre = torch.tensor([[3.5, 3.52], [5.49, 2.2], [8.0, 5.5]])
    nearest = (centre[:, :, None, None] - torch.stack([x, y])).norm(dim=1).argmin(0)
    towards = centre[nearest].permute(2, 0, 1) - torch.stack([x, y])
    sides = torch.tensor([1.5, 2.0, 3.2])[nearest].expand(2, -1, -1)  # 45, 64 and 147 pixels
    seen = torch.cat([towards, sides, x[None] * 0])[None] + 0.01 * torch.randn(2, 5, 8, 12, generator=generator)
    wanted = claim(seen, 16)
    assert (wanted.abs() < 10).sum() >= 3 and (wanted == 10).any() and (wanted == -10).any()
    program = torch.onnx.export(Claims().eval(), (seen,), opset_version=export.OPSET, dynamo=True, verbose=False)
    program.save(tmp_path / "claims.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "claims.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: seen.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"outputs": "raw", "pictures_in": False}, {"half": True, "check_pictures": 1}],
    ids=["detections", "raw", "half"],
)
@pytest.mark.parametrize("name", FAMILIES.values())
def test_a_model_without_nms_exports_without_it(tmp_path, name, options):
    weights = lively_checkpoint(tmp_path / "best.pt", name, nms_free=True)
    file = run(weights, **options)
    unwanted = {"NonMaxSuppression"} | (MOVING if "outputs" in options else set())
    assert "Conv" in operators(file) and not operators(file) & unwanted
    found = [Detector(path, device="cpu", confidence=0.3)(images()) for path in (weights, file)]
    if "half" not in options:
        assert_same(*found)
    with_nms = Detector(weights, device="cpu", confidence=0.3)
    with_nms.model.selector = None
    assert sum(len(one.scores) for one in with_nms(images())) != sum(len(one.scores) for one in found[1])


class Given(DetectionModel):
    """Finds what the images say: six numbers a point, box, score and label."""

    letterbox, strides, num_classes = "corner", (8, 16, 32), 5

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return images.flatten(1).unflatten(1, (-1, 6))

    def decode(self, predictions, image_size):
        return predictions[..., :4], predictions[..., 4], predictions[..., 5].round().long()


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A file with only what comes after a network: points in, detections out."""
    path = tmp_path_factory.mktemp("given") / "given.onnx"
    about = {
        "model": "given",
        "classes": list("abcde"),
        "image_size": (32, 32),
        "dynamic_size": True,
        "nms_free": False,
    }
    about |= {"letterbox": "corner", "outputs": "detections", "confidence": 0.3, "nms_iou": 0.5}
    write(path, Given().eval(), about | {"max_detections": 50, "half": False}, 0, False)
    return OnnxModel(path, None)


def points(case, rows, rng):
    """float32 [2, points, 6] for pictures of `rows` x 64."""
    count = rows * 64 // 2
    corner = rng.uniform(0, 200, (2, count, 2))
    scores = rng.uniform(0, 1, (2, count, 1))
    if case == "equal scores":
        scores = rng.integers(0, 4, scores.shape) / 4
    sizes = rng.uniform(5, 80, (2, count, 2)) * (case != "no area")
    labels = rng.integers(0, 5, (2, count, 1))
    if case == "one class":
        labels[:] = 3
    all_of_it = np.concatenate([corner, corner + sizes, scores, labels], 2).astype(np.float32)
    if case == "not finite":
        all_of_it[:, ::7, 2] = np.inf
        all_of_it[:, ::11, 1] = np.nan
        all_of_it[:, ::5, 3] *= 1e6
    return all_of_it


@pytest.mark.parametrize("case", ["usual", "equal scores", "one class", "no area", "not finite"])
@pytest.mark.parametrize("rows", [32, 128])  # fewer and more points than MAX_CANDIDATES
def test_nms_of_the_file_is_ours(given, case, rows):
    for seed in range(3):
        numbers = points(case, rows, np.random.default_rng(seed))
        assert (numbers.shape[1] > MAX_CANDIDATES) == (rows == 128)
        pictures = torch.from_numpy(numbers).reshape(2, 3, rows, 64)
        for confidence, nms_iou in ((0.0, 0.65), (0.5, 0.5), (0.75, 0.0), (0.99999, 0.5)):
            frames = torch.tensor([[64.0, rows, 1, 0, 0], [64, rows, 2, 3, 5]])
            limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": 50}
            ours = select(*Given().decode(torch.from_numpy(numbers), None), frames, **limits)
            theirs = given.detections(given(pictures), (rows, 64), frames, **limits)
            for a, b in zip(ours, theirs, strict=True):
                assert (confidence > 0.9) or len(a.scores) > 5
                assert torch.equal(a.scores, b.scores) and torch.equal(a.labels, b.labels)
                torch.testing.assert_close(a.boxes, b.boxes, rtol=1e-6, atol=1e-5)


def spoil(what):
    """A way to write a file that does not compute what the model computes."""
    import onnx

    def spoilt(path, model, about, *more):
        if what == "boxes":
            model.decode = lambda *args: (lambda b, s, c: (b + 0.6, s, c))(*type(model).decode(model, *args))
        if what == "classes":
            model.head.out.weight.data[8:10] = model.head.out.weight.data[[9, 8]]
        if what == "scores":
            model.head.out.bias.data[8:] += 0.02
        write(path, model, about, *more)
        if what == "nms":
            file = onnx.load(path)
            (node,) = (node for node in file.graph.node if node.op_type == "NonMaxSuppression")
            file.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0.8], np.float32), "other"))
            node.input[3] = "other"
            onnx.save(file, path)

    return spoilt


@pytest.mark.parametrize("what", ["boxes", "classes", "scores", "nms"])
def test_a_file_that_differs_is_refused_and_leaves_nothing(weights, monkeypatch, what):
    weights.with_suffix(".onnx").write_bytes(b"the one before")
    before = sorted(weights.parent.iterdir())
    monkeypatch.setattr(export, "write", spoil(what))
    with pytest.raises(
        ExportError, match="differ by more than .*boxes=0.5, scores=0.001(.|\n)*only the (first|second) finds"
    ):
        run(weights)
    assert sorted(weights.parent.iterdir()) == before
    assert weights.with_suffix(".onnx").read_bytes() == b"the one before"


def test_a_model_that_finds_nothing_is_not_called_checked(tmp_path):
    model = Toy(2)
    nn.init.constant_(model.head.out.bias, -20)
    contents = {"config": {"model": "toy", "image_size": (64, 64)}, "classes": ["a", "b"], "epoch": 1, "step": 1}
    checkpoint.save(tmp_path / "a.pt", contents | {"metrics": {}, "model": model.state_dict()})
    with pytest.raises(ExportError, match="finds nothing in these pictures: give others"):
        run(tmp_path / "a.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_the_file_says_what_it_is_and_not_where_it_was_made(weights):
    import onnx

    file = onnx.load(run(weights, max_detections=77, nms_iou=0.6))
    about = {entry.key: json.loads(entry.value) for entry in file.metadata_props}
    assert about["version"] == 1 and about["classes"] == ["red", "blue", "green"] and about["image_size"] == [64, 96]
    assert (about["letterbox"], about["padding"], about["model"]) == ("centre", 114, "toy")
    assert (about["confidence"], about["nms_iou"], about["max_detections"]) == (0.42, 0.6, 77)
    assert [(entry.domain, entry.version) for entry in file.opset_import] == [("", 18)]
    assert not {node.domain for node in file.graph.node} - {""} and not file.functions
    text = file.SerializeToString()
    for hint in (b".py", b"site-packages", str(weights.parent).encode()):
        assert hint not in text
    shapes = {
        x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in (*file.graph.input, *file.graph.output)
    }
    assert shapes["images"] == [1, 64, 96, 3]
    assert shapes["boxes"] == [1, 77, 4] and shapes["scores"] == shapes["labels"] == [1, 77]


def test_raw_outputs_are_static_tensors_of_each_level(files):
    import onnx

    file = onnx.load(files("raw")[1])
    shapes = {x.name: [d.dim_value for d in x.type.tensor_type.shape.dim] for x in file.graph.output}
    levels = {8: [8, 12], 16: [4, 6], 32: [2, 3]}
    assert shapes == {
        f"{field}_{stride}": [2, channels, *grid]
        for field, channels in (("sides", 8), ("classes", 3))
        for stride, grid in levels.items()
    }
    assert [x.name for x in file.graph.input] == ["images"]


def test_no_size_of_a_batch_is_left_in_a_file_for_any_number(files):
    import onnx

    file = onnx.load(files("any number and size")[1])
    for value in (*file.graph.input, *file.graph.output):
        if value.name in ("images", "boxes", "scores", "labels"):
            number = value.type.tensor_type.shape.dim[0]
            assert number.dim_param and not number.dim_value


def step_of_two(rank, store, path):
    """A training step with batch norm over both processes, written into the checkpoint."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks, contents, model = Ranks(rank, 2, machine=(0, 1)), checkpoint.load(path), Toy(3)
    model.load_state_dict(contents["model"])
    wrapped = ranks.wrap(model.train())
    assert any("Sync" in type(module).__name__ for module in wrapped.modules())
    pictures = torch.randint(0, 256, (2, 3, 64, 96), generator=torch.Generator().manual_seed(rank), dtype=torch.uint8)
    sum(x.square().mean() for x in wrapped(pictures)).backward()
    torch.optim.SGD(model.parameters(), 1e-3).step()
    if ranks.is_main:
        checkpoint.save(path, contents | {"model": model.state_dict()})
    ranks.stop()


def test_a_checkpoint_that_was_trained_with_synchronised_batch_norm_exports_on_a_cpu(tmp_path):
    path = lively_checkpoint(tmp_path / "best.pt", "toy")
    before = checkpoint.load(path)["model"]
    spawn(step_of_two, (str(tmp_path / "store"), str(path)), 2)
    after = checkpoint.load(path)["model"]
    assert after.keys() == before.keys() and not torch.equal(
        after["neck.0.bn.running_mean"], before["neck.0.bn.running_mean"]
    )
    run(path)


def test_a_missing_package_is_named(weights, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name.startswith("onnx") and name != "onnx" else 1)
    with pytest.raises(ExportError, match="pip install onnxscript onnxruntime$"):
        run(weights)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"outputs": "raw", "batch_size": 0}, "fixed shapes"),
        ({"outputs": "raw", "dynamic_size": True}, "fixed shapes"),
        ({"outputs": "boxes"}, "detections, raw"),
        ({"output": "a.pt"}, "must end with .onnx"),
        ({"image_size": (60, 64)}, "multiples of 32"),
        ({"nms_iou": 1.5}, "at most 1"),
        ({"max_detections": 3001}, "at most 3000"),
    ],
)
def test_what_cannot_be_exported_says_why(weights, changes, why):
    with pytest.raises(ValueError, match=why):
        run(weights, **changes)


def test_pictures_come_from_the_training_or_from_where_one_says(pictures, tmp_path, capsys):
    loaded = detector.load(lively_checkpoint(tmp_path / "a.pt", "toy", demo.CLASSES, val=str(pictures / "val.txt")))
    for most, count in ((3, 3), (4, 3), (5, 5), (99, 5)):  # of five
        images, where = export.find_pictures(None, loaded, most)
        assert len(images) == count and where == f"pictures of {pictures / 'val.txt'}"
    images, where = export.find_pictures(str(pictures), loaded, 4)
    assert len(images) == 4 and where == f"pictures of {pictures}"
    images, where = export.find_pictures(None, loaded._replace(config={"val": "gone.txt"}), 4)
    assert "are not here" in capsys.readouterr().out and len(images) == 4 and "drawn pictures" in where
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no pictures in this folder"):
        export.find_pictures(str(tmp_path / "empty"), loaded, 4)


def test_files_that_are_no_export_are_refused(files, tmp_path):
    import onnx

    with pytest.raises(CheckpointError, match="there is no .*none.onnx"):
        Detector(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with pytest.raises(CheckpointError, match="damaged"):
        Detector(tmp_path / "bad.onnx")
    file = onnx.load(files("one picture")[1])
    del file.metadata_props[:]
    onnx.save(file, tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match="was not written by export.py"):
        Detector(tmp_path / "other.onnx")
    file.metadata_props.add(key="version", value="9")
    file.metadata_props.add(key="letterbox", value='"corner"')
    onnx.save(file, tmp_path / "newer.onnx")
    with pytest.raises(CheckpointError, match="has version 9, known is 1"):
        Detector(tmp_path / "newer.onnx")


def test_what_contradicts_a_file_is_refused(files):
    weights, file, _ = files("one picture")
    with pytest.raises(ValueError, match="image_size=64,96 only"):
        Detector(file, image_size=(96, 96))
    with pytest.raises(ValueError, match="is a toy with the classes red, blue, green"):
        Detector(file, "yolox_s")
    with pytest.raises(ValueError, match="is an exported file"):
        run(file)
    with pytest.raises(ValueError, match="run on the CPU here"):
        OnnxModel(file, None).to("cuda:0")
    assert detector.device_for(file, "auto") == "cpu" and detector.device_for(weights, "auto") == "auto"
    assert detector.device_for(file, "cuda") == "cuda"


def test_the_confidence_of_the_best_f1_goes_all_the_way(files, pictures, tmp_path, capsys):
    train.main(training(pictures, tmp_path / "runs", epochs=1))
    found = checkpoint.load(only_run(tmp_path / "runs") / "best.pt")["metrics"]["confidence"]
    assert isinstance(found, float) and (found == -1 or 0 < found < 1)
    for metrics, expected in (({"confidence": 0.42}, 0.42), ({"confidence": -1.0}, 0.3), ({}, 0.3)):
        weights = lively_checkpoint(tmp_path / "a.pt", "toy", metrics=metrics)
        assert Detector(weights, device="cpu").limits["confidence"] == expected
        assert Detector(weights, device="cpu", confidence=0.7).limits["confidence"] == 0.7
    assert Detector(files("one picture")[1]).limits["confidence"] == 0.42
    for file in files("one picture")[:2]:
        output = str(tmp_path / f"out{file.suffix}")
        folder = predict.main(predict.Config(str(file), str(pictures / "9.png"), output, device="cpu"))
        assert "confidence 0.42" in capsys.readouterr().out
        scores = [entry["score"] for entry in json.loads((folder / "detections.json").read_text())]
        assert scores and 0.42 <= min(scores) < 0.6


def test_evaluate_and_predict_take_the_file_for_the_checkpoint(pictures, tmp_path):
    weights, measured, found = lively_checkpoint(tmp_path / "a.pt", "toy", demo.CLASSES), [], []
    for one in (weights, run(weights, batch_size=2)):
        where = {"data": str(pictures / "val.txt"), "output": str(tmp_path / f"of{one.suffix}"), "workers": 0}
        evaluate.main(evaluate.Config(str(one), device="cpu", **where))
        measured.append(json.loads((tmp_path / f"of{one.suffix}" / "detections.json").read_text()))
        source = {"source": str(pictures / "val.txt").replace("val.txt", "*.png"), "device": "cpu", "confidence": 0.4}
        predict.main(predict.Config(str(one), output=str(tmp_path / f"seen{one.suffix}"), **source))
        found.append(json.loads((tmp_path / f"seen{one.suffix}" / "detections.json").read_text()))
    for ours, theirs in (measured, found):
        assert len(ours) == len(theirs) > 10
        np.testing.assert_allclose(*([entry["bbox"] for entry in one] for one in (ours, theirs)), atol=0.05)


def test_every_constant_of_the_export_is_in_the_readme():
    text = Path(export.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert [name for name in asdict(Config()) if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_map_of_the_file_is_that_of_the_weights(shared, tmp_path):
    source = {"model": "yolox_nano", "output": str(tmp_path / "nano.onnx")}
    file = run(shared / "weights/yolox_nano.pth", **source, pictures=str(shared / "data/coco_val326/images"))
    data = str(shared / "data/coco_val326/instances_val2017_core326.json")
    where = {"data": data, "output": str(tmp_path / "out"), "device": "cpu", "workers": 0}
    figures = evaluate.main(evaluate.Config(str(file), **where))
    assert figures["AP"] == pytest.approx(0.28793, abs=5e-4) and figures["AP50"] == pytest.approx(0.44778, abs=5e-4)
