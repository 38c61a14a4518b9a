"""report/heatmap.py: maps lie where the detection looks, each belongs to its detection, and every path that draws them."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from lively import lively, lively_checkpoint
from refused import refused, told

import nets
import predict
from datasets.dataset import DetectionDataset
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy.detector import Detector
from report import heatmap
from report.heatmap import MAX, HeatMaps, nearest, overlay, spread
from utils.boxes import clip, xyxy_to_xywh

SIZE = (96, 128)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt", image_size=SIZE)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def heatmaps_of(detector):
    return HeatMaps(detector.model, detector.image_size, detector.classes)


def test_a_map_belongs_to_its_detection(weights):
    detector = Detector(weights, device="cpu", confidence=0.05, max_detections=20)
    image = noise(96, 128)
    (result,) = detector(image)
    heat = heatmaps_of(detector)
    maps = heat.maps(image, result.boxes, result.labels, result.scores)
    assert maps.shape == (len(result.boxes), 96, 128) and maps.dtype == np.float32 and len(maps) > 5
    assert set(maps.max((1, 2)).round(6).tolist()) <= {0.0, 1.0} and maps.min() >= 0  # 0: nothing adds to the score
    again = heat.maps(image, result.boxes[::-1], result.labels[::-1], result.scores[::-1])
    np.testing.assert_allclose(again, maps[::-1], atol=1e-6)
    scene = heat.scene(image)  # the anchor points of the detections, whose boxes are clipped to the image
    points = nearest(scene, result.boxes, result.labels, result.scores, 128, 96)
    np.testing.assert_allclose(scene.scores[points], result.scores, atol=1e-5)
    np.testing.assert_allclose(clip(scene.boxes[points], 128, 96), result.boxes, atol=1e-2)
    assert len(set(points.tolist())) == len(points)


@pytest.mark.parametrize("name", ["tiny_n", "yolox_nano", "yolov9_t", "ppyoloe_s", "picodet_s"])
def test_every_family_has_maps_and_keeps_nothing_of_them(name):
    model = lively(nets.build(name, 2), (64, 64)).eval()
    heat = HeatMaps(model, (64, 64), ("a", "b"))
    maps = heat.maps(noise(40, 64), np.array([[5.0, 5, 30, 30]]), np.array([1]), np.array([0.5]))
    height = 64 if model.letterbox == "stretch" else 40
    assert maps.shape == (1, height, 64) and np.isfinite(maps).all() and 0 <= maps.min() < maps.max() == 1
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert len(heat.maps(noise(40, 64), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))) == 0


def test_the_parts_of_a_score_are_spread_over_the_pixels_of_their_cells():
    fine, coarse = torch.zeros(1, 2, 32, 32), torch.zeros(1, 2, 8, 8)
    fine[0, 0, 4, 4], coarse[0, 1, 6, 6] = 1.0, 2.0
    found = spread([fine, coarse], (256, 256))
    assert found.shape == (256, 256) and found[36, 36] > 20 * found[36, 208] and found[208, 208] > 20 * found[36, 208]
    assert found[:128].sum() / found.sum() == pytest.approx(1 / 3, abs=0.01)  # one of three parts
    fine[0, 1, 4, 4] = -2.0  # another channel lowers the score there
    assert spread([fine, coarse], (256, 256))[36, 36] == 0 and spread([-fine.abs()], (256, 256)).max() == 0


def test_the_parts_add_up_to_the_score_minus_that_of_the_blurred_image(monkeypatch):
    """The completeness of integrated gradients; with few steps it holds approximately."""
    parts = []
    monkeypatch.setattr(heatmap, "STEPS", 300)
    monkeypatch.setattr(heatmap, "spread", lambda these, size: parts.append(these) or np.zeros(size, np.float32))
    model = lively(nets.build("tiny_n", 2), (64, 64))
    heat, image = HeatMaps(model, (64, 64), ("a", "b")), noise(64, 64)
    scene = heat.scene(image)
    points = np.argsort(-scene.scores)[:3]
    heat.of_points(scene.levels, points)
    with torch.no_grad():
        before, after = (heat.decode([x[i : i + 1] for x in scene.levels])[1][0] for i in (1, 0))
    for point, these in zip(points, parts, strict=True):
        assert sum(float(x.sum()) for x in these) == pytest.approx(float(after[point] - before[point]), abs=2e-3)


def test_the_hottest_pixels_are_where_the_only_cause_is():
    """The score is the brightness around one place: blurring the map's pixels costs it more than blurring random areas."""

    class Bright(torch.nn.Module):
        def forward(self, images):
            return (torch.nn.functional.avg_pool2d(images, 8)[:, :1] / 255,)

    model = lively(nets.build("tiny_n", 1), (64, 64))
    model.backbone, model.neck = Bright(), torch.nn.Identity()
    model.prepare, model.head = torch.Tensor.float, torch.nn.Conv2d(1, 1, 1)  # with weights on some device
    model.head.levels = lambda features: features
    model.head.flatten = lambda maps: maps.flatten(1)
    boxes = torch.tensor([[x * 8.0, y * 8, x * 8 + 8, y * 8 + 8] for y in range(8) for x in range(8)])
    model.decode = lambda found, size: (boxes[None], found, torch.zeros(1, 64, dtype=torch.long))
    image = np.zeros((64, 64, 3), np.uint8)
    image[24:32, 40:48] = 255
    heat = HeatMaps(model, (64, 64), ("a",))
    (one,) = heat.maps(image, np.array([[40, 24, 48, 32.0]]), np.array([0]), np.array([1.0]))
    rng = np.random.default_rng(0)
    areas = [cv2.GaussianBlur(rng.standard_normal((64, 64)).astype(np.float32), (0, 0), 20) for _ in range(8)]
    masks = [np.zeros((64, 64), bool) for _ in (one, *areas)]
    for mask, values in zip(masks, (one, *areas), strict=True):
        mask.flat[np.argsort(-values, axis=None, kind="stable")[:82]] = True  # the highest 2 %
    blurred = cv2.GaussianBlur(image, (0, 0), 20)
    images = [np.where(mask[..., None], blurred, image) for mask in masks]
    after = [float(heat.scene(x).scores[3 * 8 + 5]) for x in images]
    hot = np.argwhere(masks[0])
    assert len(hot) == 82 and (abs(hot.mean(0) - [27.5, 43.5]) < 1).all() and (np.ptp(hot, 0) < 14).all()
    assert after[0] < 0.3 and np.mean(after[1:]) > 0.7


def test_predict_writes_a_sheet_for_each_image_with_detections(weights, tmp_path, capsys):
    for i, name in enumerate(("a.png", "b.jpg")):
        cv2.imwrite(str(tmp_path / name), noise(60 + 40 * i, 90, i))
    out = tmp_path / "out"
    options = {"checkpoint": str(weights), "device": "cpu", "heatmap": True, "output": str(out)}
    predict.main(predict.Config(source=f"{tmp_path}/*.[pj]*g", confidence=0.05, **options))
    sheets = sorted(path.name for path in (out / "heatmaps").iterdir())
    assert sheets == ["a.png.jpg", "b.jpg"]
    entries = json.loads((out / "detections.json").read_text())
    many = [sum(e["file_name"] == name for e in entries) for name in ("a.png", "b.jpg")]
    assert max(many) > MAX
    told(capsys.readouterr().out, out / "heatmaps", MAX)
    predict.main(
        predict.Config(source=str(tmp_path / "a.png"), confidence=0.9999, **options | {"output": str(out / "x")})
    )
    assert not (out / "x/heatmaps").exists()


def test_exported_files_are_refused():
    from deploy.onnx_model import OnnxModel

    exported = object.__new__(OnnxModel)
    with refused(ValueError, "checkpoint="):
        HeatMaps(exported, (64, 64), ("a",))


def test_a_training_logs_at_most_ten_sheets_and_the_last_one(painted):
    model = lively(nets.build("tiny_n", 2), (64, 64))
    heat, logged = HeatMaps(model, (64, 64), ("red", "blue")), []
    heat.sheet = lambda *_: None
    run = SimpleNamespace(image=lambda name, _, epoch: logged.append(epoch))
    for epochs, expected in (
        (1, [1]),
        (4, [1, 2, 3, 4]),
        (50, list(range(5, 51, 5))),
        (32, list(range(4, 33, 4))),
        (19, list(range(1, 20, 2))),
    ):
        logged.clear()
        for epoch in range(1, epochs + 1):
            heat.log(run, None, [], epoch, epochs)
        assert logged == expected
    heat.sheet = lambda *_: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError())
    heat.log(run, None, [], 1, 1)  # a warning


def test_the_sheet_of_a_training_shows_the_best_detection_of_each_image(painted):
    data = read(str(painted(3, "val")), "val", ReadOptions(classes=("red", "blue")))
    dataset = DetectionDataset(data, "center")
    heat = HeatMaps(lively(nets.build("tiny_n", 2), (64, 64)), (64, 64), data.classes)
    drawn = []
    heat.draw = lambda image, *one: [drawn.append(one) or image]
    found = [([1.0, 2, 30, 40], 0.4), ([5.0, 5, 20, 20], 0.9), ([0.0, 0, 9, 9], 0.1)]
    detections = [
        {
            "image_id": int(data.image_ids[1]),
            "category_id": int(data.category_ids[1]),
            "bbox": xyxy_to_xywh(np.array(b)),
            "score": s,
        }
        for b, s in found
    ]
    sheet = heat.sheet(dataset, detections)
    ((boxes, labels, scores),) = drawn
    assert boxes.tolist() == [[5, 5, 20, 20]] and labels.tolist() == [1] and scores.tolist() == [0.9]
    assert sheet.ndim == 3


def test_the_overlay_is_clear_where_the_map_is_zero():
    image, heat = noise(40, 60), np.zeros((20, 30), np.float32)
    assert np.array_equal(overlay(image, heat), image)
    heat[:, 15:] = 1
    drawn = overlay(image, heat).astype(int)
    assert np.array_equal(drawn[:, :25], image[:, :25]) and (drawn[:, 40:, 2] > drawn[:, 40:, 0]).mean() > 0.8
