"""nets/picodet.py: tensor names, sizes, outputs, assignments and losses of PicoDet in PaddleDetection."""

import hashlib
import pickle

import numpy as np
import official
import paddle
import pytest
import torch
from toys import detector
from weight_server import serving

import nets
from benchmarks.multi_label import MultiLabel
from deploy.load import load
from nets import picodet
from nets.coder import decode_dfl, grid, level_shapes
from nets.losses import PicoDetCriterion
from nets.official_names import of_picodet
from nets.picodet import joint_logits, joint_scores
from nets.pretrained import COCO_CLASSES
from utils.images import letterbox
from utils.processes import Ranks

STRIDES = (8, 16, 32, 64)
PARAMETERS = {"s": 1.186, "m": 3.465, "l": 5.8045}  # millions
LEVELS = (576, 144, 36, 9)  # anchor points of 192 x 192 pixels


@pytest.mark.parametrize("size", PARAMETERS)
def test_names_shapes_and_parameter_counts_equal_the_official_ones(size):
    with torch.device("meta"):
        model = nets.build(f"picodet_{size}", 80)
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items() if "num_batches" not in name}
    keys = official.official_keys(f"picodet_{size}")
    theirs = {of_picodet(name): shape for name, shape in keys.items()}
    assert theirs.pop(None) == (8,) and {shape for name, shape in keys.items() if of_picodet(name) is None} == {
        (1,),
        (8,),
    }
    assert ours == theirs and all(of_picodet(name) == name for name in ours)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(PARAMETERS[size], abs=5e-4)


@pytest.mark.parametrize("size", ["s", "m"])
def test_outputs_equal_the_official_code(size):
    """Feature maps, distributions, alignment, scores and boxes, before and after fusing."""
    reference, model = official.reference(f"picodet_{size}"), paddle.filled_model(f"picodet_{size}").eval()
    images = paddle.image(96, 160)
    with torch.no_grad():
        for _ in range(2):
            backbone = model.backbone(model.prepare(images))
            neck = model.neck(*backbone)
            levels = model.head.levels(neck)
            for level, x in enumerate(levels):
                pairs = {"neck": neck[level][:, :8], "dist": x.boxes, "align": x.alignment}
                if level < 3:
                    pairs["backbone"] = backbone[level][:, :8]
                for name, ours in pairs.items():
                    if f"{name}_{level}" in reference:
                        assert np.abs(ours.numpy() - reference[f"{name}_{level}"]).max() < 1e-4, (name, level)
            out = model.head.flatten(levels)
            boxes, best, labels = model.decode(out, (96, 160))
            theirs = torch.tensor(reference["scores"]).transpose(1, 2)
            assert (boxes - torch.tensor(reference["boxes"])).abs().max() < 1e-3  # pixels
            assert (joint_scores(out.classes, out.alignment) - theirs).abs().max() < 1e-4
            assert (best - theirs.max(-1).values).abs().max() < 1e-4
            assert (theirs.gather(2, labels[..., None])[..., 0] > theirs.max(-1).values - 1e-4).all()
            model.fuse()


def test_detections_equal_the_official_code():
    """All classes of an anchor point, with the official thresholds, in an image of 120 x 400 that was stretched to 96 x 160."""
    reference, model = official.reference("picodet_s"), paddle.filled_model("picodet_s").eval()
    model.clips = False
    limits = {"confidence": 0.025, "nms_iou": 0.6, "max_detections": 100}
    transforms = torch.tensor([[400.0, 120, 160 / 400, 96 / 120, 0, 0]])
    with torch.no_grad():
        (found,) = MultiLabel(model).detections(model(paddle.image(96, 160)), (96, 160), transforms, **limits)
    ours = torch.cat([found.labels[:, None], found.scores[:, None], found.boxes], 1)
    theirs = torch.tensor(reference["nms"])
    theirs = theirs[theirs[:, 1].argsort(descending=True, stable=True)]
    assert (ours[:, :2] - theirs[:, :2]).abs().max() < 1e-4 and (ours[:, 2:] - theirs[:, 2:]).abs().max() < 1e-2


@pytest.mark.parametrize("rule", ["atss", "tal"])
@pytest.mark.parametrize("case", range(4))
def test_assignments_and_losses_of_hard_cases_equal_the_official_code(case, rule):
    """Many boxes and few, small and large ones, images without any."""
    reference = {n[2:]: v for n, v in official.reference("losses_picodet").items() if n.startswith(f"{case}_")}
    classes, raw, align = (torch.tensor(reference[name] / np.float32(16)) for name in ("class", "dist", "align"))
    leaves = [x.requires_grad_() for x in (raw.flatten(2), align[..., 0], classes)]
    boxes, labels = torch.tensor(reference["boxes"]), torch.tensor(reference["labels"])
    labels = labels.where(torch.tensor(reference["mask"]) > 0, -1)
    criterion = PicoDetCriterion(STRIDES, static=rule == "atss")
    losses = criterion(picodet.Predictions(*leaves), boxes, labels, (192, 192))
    losses["total"].backward()
    if not boxes.shape[1]:  # the official code divides by 0
        assert losses["total"] == losses["class"] > 0 and all(x.grad.isfinite().all() for x in leaves)
        return
    total, of_classes, box, dfl = reference[f"{rule}_losses"].tolist()
    expected = {"total": total, "class": of_classes, "box": box, "dfl": dfl}
    assert {name: losses[name].item() for name in expected} == pytest.approx(expected, rel=1e-4)
    for x, theirs in zip((leaves[2], leaves[0], leaves[1]), reference[f"{rule}_gradients"], strict=True):
        ours = [level.norm().item() for level in x.grad.split(LEVELS, 1)]
        assert ours == pytest.approx(theirs.tolist(), rel=1e-4, abs=1e-6)

    cells, strides = grid((192, 192), STRIDES, raw)
    decoded, centers = decode_dfl(raw.flatten(2), cells, strides).detach(), (cells + 0.5) * strides[:, None]
    logits = joint_logits(classes, align[..., 0]).detach()
    match, _ = criterion.assign((decoded, logits, centers, strides, boxes, labels), (192, 192))
    assigned = labels.gather(1, match.index).where(match.positive, 6)
    assert torch.equal(assigned, torch.tensor(reference[f"{rule}_labels"]).long()) and match.positive.any()
    assert (match.score - torch.tensor(reference[f"{rule}_scores"])).abs().max() < 1e-5


def test_joint_logits_are_the_logits_of_joint_scores():
    """Also for scores that rounding makes 0 or 1, where values and gradients stay finite."""
    classes, alignment = torch.linspace(-9, 9, 40)[None, :, None].repeat(1, 40, 2), torch.linspace(-9, 9, 40)[None]
    classes = classes.reshape(1, 40, 80).double()
    assert torch.allclose(
        joint_logits(classes, alignment.double()).sigmoid(), joint_scores(classes, alignment.double())
    )
    extreme = torch.tensor([-6e4, -200.0, -90, 0, 20, 90, 200, 6e4])
    for side in extreme:
        logits = [extreme.view(1, 1, 8).clone().requires_grad_(), side.view(1, 1).clone().requires_grad_()]
        out = joint_logits(*logits)
        out.sum().backward()
        assert out.isfinite().all() and (out.diff() >= 0).all() and all(x.grad.isfinite().all() for x in logits)


def test_backbone_gets_normalized_rgb():
    model, inputs = detector("picodet").eval(), []
    model.backbone.stem.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    image = official.reference("paddle_preprocessing")["image"]
    stretched, _ = letterbox(np.ascontiguousarray(image[..., ::-1]), (64, 96), "stretch")
    model(torch.from_numpy(stretched).permute(2, 0, 1)[None])
    theirs = torch.from_numpy(official.reference("paddle_preprocessing")["picodet"])
    assert inputs[0].dtype == torch.float32 and (inputs[0][0] - theirs).abs().max() < 0.02  # a gray level is .017


@pytest.mark.parametrize("size", [(416, 416), (96, 160), (32, 32)])
def test_sizes_that_are_no_multiples_of_64_have_a_last_row_beyond_the_input(size):
    model = detector("picodet").eval()
    shapes = [tuple(x.classes.shape[-2:]) for x in model.levels(model.features(torch.zeros(1, 3, *size)))]
    assert shapes == level_shapes(size, STRIDES) and shapes[-1] == (-(-size[0] // 64), -(-size[1] // 64))
    boxes, scores, _ = model.decode(model(torch.zeros(1, 3, *size)), size)
    assert boxes.shape[1] == scores.shape[1] == sum(rows * columns for rows, columns in shapes)


def test_official_sizes_and_addresses():
    sizes = {name: nets.official_size(f"picodet_{name}") for name in PARAMETERS}
    assert sizes == {"s": (416, 416), "m": (416, 416), "l": (640, 640)}
    file = nets.MODELS["picodet"].weights["s"]
    address = f"{file.host}/{file.path}"
    assert address == "https://paddledet.bj.bcebos.com/models/picodet_s_416_coco_lcnet.pdparams"
    assert [nets.expected_ap("picodet_l", (side, side)) for side in (320, 416, 640)] == [0.361, 0.394, 0.426]


@pytest.mark.parametrize(
    ("name", "image_size", "side"),
    [
        ("s", (320, 320), 320),
        ("m", (352, 352), 320),
        ("m", (384, 384), 416),
        ("s", (1024, 1024), 416),
        ("l", (640, 384), 416),
    ]
    + [("l", (512, 512), 416), ("l", (544, 544), 640), ("l", None, 640), ("m", None, 416)],
)
def test_the_official_file_is_that_of_the_nearest_input(name, image_size, side):
    file = nets.official_file(f"picodet_{name}", "coco", image_size)
    assert file.path == f"models/picodet_{name}_{side}_coco_lcnet.pdparams" and file.image_size == (side, side)
    assert nets.official_file("yolox_s", "coco", image_size) == nets.official_file("yolox_s", "coco")
    assert nets.official_file(f"picodet_{name}", "own.pt", image_size) is None


def test_official_weights_are_downloaded_read_and_pinned(tmp_path, monkeypatch, capsys):
    """A local server publishes a file as `paddle.save` writes it: weights=coco trains from it, and model= detects with it."""
    with serving(tmp_path / "cache", monkeypatch) as server:
        server.data = pickle.dumps({name: x.numpy() for name, x in paddle.filled_state("picodet_s").items()}, 4)
        path = nets.fetch_weights("picodet_s", server.address)
        small = nets.fetch_weights("picodet_s", server.address, image_size=(320, 320))
    assert server.paths == [f"/models/picodet_s_{side}_coco_lcnet.pdparams" for side in (416, 320)]
    assert (path.name, small.name) == ("picodet_s.pdparams", "picodet_s_320.pdparams")
    digest = hashlib.sha256(server.data).hexdigest()
    assert (tmp_path / "cache/picodet_s.pdparams.sha256").read_text().strip() == digest in capsys.readouterr().out
    loaded = load("coco", "picodet_s")
    assert loaded.classes == COCO_CLASSES and loaded.image_size == (416, 416) and not loaded.model.clips
    theirs = paddle.official_state("picodet_s")
    assert all(torch.equal(value, theirs[name]) for name, value in loaded.model.state_dict().items() if name in theirs)
    lines = []
    model, pretraining = nets.build_pretrained("picodet_s", ("dog", "dragon"), "coco", Ranks(), lines.append)
    assert pretraining == nets.Pretraining(known=0.5, official=True) and "100.0% of" in lines[1]
    assert load("coco", "picodet_s", image_size=(256, 256)).path == small  # nothing is downloaded for it
    nets.build_pretrained("picodet_s", ("dog",), "coco", Ranks(), lines.append, image_size=(320, 320))
    assert any(str(small) in line for line in lines[3:])
    weight = theirs["head.class_predictors.3.weight"][COCO_CLASSES.index("dog")]
    assert torch.equal(model.head.class_predictors[3].weight[0], weight)
