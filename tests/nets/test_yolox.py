"""nets/yolox.py: tensor names, sizes and outputs of the official networks."""

import json

import numpy as np
import official
import pytest
import torch

import nets
from nets import pretrained
from nets.coder import decode_yolox, encode_yolox, grid
from utils.boxes import xyxy_to_cxcywh, xyxy_to_xywh
from utils.images import letterbox, read_image

PARAMETERS = {"nano": 0.912, "tiny": 5.056, "s": 8.968, "m": 25.326, "l": 54.209, "x": 99.071}  # millions
STRIDES = (8, 16, 32)


@pytest.fixture(scope="module")
def official_nano(shared):
    state, classes, *_ = nets.read_weights(shared / "weights" / "yolox_nano.pth", "yolox_nano")
    assert classes == pretrained.COCO_CLASSES
    model = nets.build("yolox_nano", 80)
    model.load_state_dict(state)
    return model.eval()


@pytest.mark.parametrize("size, millions", PARAMETERS.items())
def test_names_shapes_and_parameter_counts_equal_the_official_ones(size, millions):
    keys = official.empty_state(f"yolox_{size}")
    state = {nets.official_names.of_yolox(name): value for name, value in keys.items()}
    with torch.device("meta"):
        model = nets.build(f"yolox_{size}", 80)
    model.load_state_dict(state, strict=True, assign=True)  # raises for other names or shapes
    assert len(state) == len(keys) and {nets.official_names.of_yolox(f"module.{name}") for name in keys} == state.keys()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == millions


@pytest.mark.parametrize("size", ["nano", "s", pytest.param("m", marks=pytest.mark.slow)])
def test_outputs_equal_the_official_code(tmp_path, size):
    """Raw outputs, decoded boxes, scores and labels, with weights read through the reader of official files."""
    reference = official.reference(f"yolox_{size}")
    torch.save({"model": official.filled_state(f"yolox_{size}")}, tmp_path / "filled.pth")
    state, classes, *_ = nets.read_weights(tmp_path / "filled.pth", f"yolox_{size}")
    assert classes == pretrained.COCO_CLASSES
    with torch.device("meta"):
        model = nets.build(f"yolox_{size}", 80).eval()
    model.load_state_dict(state, assign=True)
    with torch.no_grad():
        out = model(official.image(96, 160))
    scores = [out.objectness.sigmoid()[..., None], out.classes.sigmoid()]
    assert np.abs(torch.cat([out.boxes, *scores], -1).numpy() - reference["raw"]).max() < 1e-4
    boxes, best, labels = model.decode(out, (96, 160))
    assert np.abs(xyxy_to_cxcywh(boxes).numpy() - reference["decoded"]).max() < 1e-4 * 160
    product = reference["raw"][..., 4:5] * reference["raw"][..., 5:]
    assert np.abs(best.numpy() - product.max(-1)).max() < 1e-4
    assert (labels.numpy() == product.argmax(-1)).all()


def test_grid_counts_columns_first():
    cells, strides = grid((64, 96), STRIDES, torch.zeros(1))
    assert cells[:13].tolist() == [[x, 0] for x in range(12)] + [[0, 1]]
    assert strides.tolist() == [8.0] * 96 + [16.0] * 24 + [32.0] * 6


def test_encode_is_the_inverse_of_decode():
    torch.manual_seed(0)
    cells, strides = grid((64, 96), STRIDES, torch.zeros(1, dtype=torch.float64))
    raw = torch.randn(2, len(cells), 4, dtype=torch.float64)
    boxes = decode_yolox(raw, cells, strides)
    assert torch.allclose(encode_yolox(boxes, cells, strides), raw, atol=1e-6)
    assert torch.allclose(boxes[0, 100, 2] - boxes[0, 100, 0], raw[0, 100, 2].exp() * 16)


def test_new_models_start_at_scores_of_one_percent():
    head = nets.build("yolox_nano", 5).head
    for predictor in (*head.class_predictors, *head.objectness_predictors):
        assert torch.allclose(predictor.bias.sigmoid(), torch.tensor(0.01))


@pytest.mark.slow
def test_raw_outputs_equal_the_official_onnx_file_on_real_images(shared, official_nano):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(shared / "weights" / "yolox_nano.onnx", providers=["CPUExecutionProvider"])
    paths = sorted((shared / "data" / "coco_val326" / "images").iterdir())[:60:12]
    images = np.stack([letterbox(read_image(str(p)), (416, 416), "corner")[0].transpose(2, 0, 1) for p in paths])
    with torch.no_grad():
        out = official_nano(torch.from_numpy(images))
    ours = torch.cat([out.boxes, out.objectness.sigmoid()[..., None], out.classes.sigmoid()], -1).numpy()
    name = session.get_inputs()[0].name
    theirs = np.concatenate([session.run(None, {name: i[None].astype(np.float32)})[0] for i in images])
    assert theirs.shape == ours.shape == (5, 3549, 85) and theirs[..., 4].max() > 0.5
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.slow
def test_detections_equal_those_of_the_official_network(shared, official_nano):
    folder = shared / "data" / "coco_val326"
    theirs = json.loads((folder / "yolox_nano_detections.json").read_text())
    truth = json.loads((folder / "instances_val2017_core326.json").read_text())
    names = {image["id"]: image["file_name"] for image in truth["images"]}
    for image_id in sorted(names)[:60:12]:
        image, transform = letterbox(read_image(str(folder / "images" / names[image_id])), (416, 416), "corner")
        with torch.no_grad():
            predictions = official_nano(torch.from_numpy(image.transpose(2, 0, 1))[None])
        (ours,) = official_nano.detections(predictions, (416, 416), torch.tensor([transform]), clip=False)
        expected = [d for d in theirs if d["image_id"] == image_id and d["score"] > 0.05]
        expected.sort(key=lambda d: -d["score"])
        count = len(expected)
        assert count and (ours.scores > 0.05).sum() == count
        assert [pretrained.COCO_CATEGORY_IDS[n] for n in ours.labels[:count]] == [d["category_id"] for d in expected]
        boxes = xyxy_to_xywh(ours.boxes[:count]).numpy()
        assert np.abs(boxes - [d["bbox"] for d in expected]).max() < 0.1
