"""nets/blocks.py and nets/__init__.py: what every detection model promises, for a small one of each family."""

import pytest
import torch
from torch import nn
from toys import FAMILIES, detector

import nets
from nets.blocks import BN_EPS, ADown, Conv, RepConv
from nets.losses import YOLOv9Criterion, YOLOXCriterion

STRIDES = (8, 16, 32)
IMAGE = torch.tensor([[96.0, 64, 1, 0, 0]])  # the frame of a picture of 64 x 96 pixels that fits as it is

every_family = pytest.mark.parametrize("family", FAMILIES)


def tiny(family, num_classes=3):
    """Batch norms that do something, and outputs of about 1."""
    model = detector(family, num_classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=0 if module.bias is None else {"yolox": 40, "yolov9": 4}[family])
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    if family == "yolox":
        model.backbone.stem.conv.weight.data /= 128  # it sees 0-255
    return model


def pictures(*shape, seed=0):
    return torch.randint(0, 256, (shape[0], 3, *shape[1:]), generator=torch.Generator().manual_seed(seed)).byte()


def test_every_name_of_the_list_builds_its_model():
    with torch.device("meta"):
        models = {name: nets.build(name, 7) for name in nets.MODELS}
    assert {name.partition("_")[0] for name in models} == FAMILIES.keys()
    for name, model in models.items():
        assert type(model).__name__.lower() == name.partition("_")[0]
        assert model.num_classes == 7 and model.strides == STRIDES and model.letterbox in ("corner", "centre")


def test_unknown_model_names_the_known_ones():
    with pytest.raises(ValueError, match=r"model='yolo_x'.*yolox_nano, yolox_tiny, yolox_s"):
        nets.build("yolo_x", 80)


def test_the_criterion_is_that_of_the_family():
    assert isinstance(nets.criterion(detector("yolov9")), YOLOv9Criterion)
    late = nets.criterion(detector("yolox"), torch.ones_like, plain=True)
    assert isinstance(late, YOLOXCriterion) and late.l1 and late.share is torch.ones_like
    assert not nets.criterion(detector("yolox")).l1


@every_family
@pytest.mark.parametrize("height, width, classes", [(96, 160, 3), (160, 96, 1), (32, 32, 80)])
def test_any_input_of_multiples_of_32_and_any_number_of_classes(family, height, width, classes):
    model = tiny(family, classes).eval()
    out = model(pictures(2, height, width))
    points = sum((height // s) * (width // s) for s in STRIDES)
    assert all(x.shape[:2] == (2, points) for x in out) and out.classes.shape == (2, points, classes)
    boxes, scores, labels = model.decode(out, (height, width))
    assert boxes.shape == (2, points, 4) and scores.shape == labels.shape == (2, points)


@every_family
def test_every_picture_of_a_batch_is_alone_in_evaluation_mode(family):
    model, images = tiny(family).eval(), pictures(3, 64, 96)
    whole, alone = model(images), model(images[1:2])
    assert all(torch.allclose(w[1:2], a, atol=1e-4) for w, a in zip(whole, alone, strict=True))
    assert not torch.allclose(whole.boxes[0], whole.boxes[1], atol=1e-3)


@every_family
def test_whole_numbers_and_floats_are_the_same_pictures(family):
    model, images = tiny(family).eval(), pictures(2, 64, 64)
    for from_bytes, from_floats in zip(model(images), model(images.float()), strict=True):
        assert torch.equal(from_bytes, from_floats)


@every_family
def test_fusing_changes_outputs_by_rounding_only(family):
    model, images = tiny(family).eval(), pictures(2, 96, 64)
    before, count = model(images), sum(p.numel() for p in model.parameters())
    assert model.fuse() is model and not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    after = model.fuse()(images)  # twice does no harm
    assert not torch.equal(before.classes, after.classes) and sum(p.numel() for p in model.parameters()) < count
    for x, y in zip(before, after, strict=True):
        assert torch.allclose(x, y, atol=1e-4)


@every_family
def test_batch_norms_are_those_of_the_released_weights(family):
    norms = [m for m in tiny(family).modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(m.eps == 1e-3 and m.momentum == 0.03 for m in norms)


@every_family
def test_gradients_reach_every_parameter(family):
    model = tiny(family).train()
    sum(x.square().sum() for x in model(pictures(2, 64, 64))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def train_a_little(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    model.train()
    for step in range(steps):
        out = model(pictures(2, 64, 64, seed=step))
        sum(x.square().mean() for x in out).backward()
        optimizer.step()
        optimizer.zero_grad()


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@every_family
def test_pitfall_5_a_frozen_backbone_keeps_every_bit(family):
    model = tiny(family)
    model.freeze_backbone(True)
    backbone, neck = copy_of(model.backbone), copy_of(model.neck)
    train_a_little(model)
    assert model.training and not any(m.training for m in model.backbone.modules())
    assert all(torch.equal(backbone[name], value) for name, value in model.backbone.state_dict().items())
    assert not any(torch.equal(neck[name], value) for name, value in model.neck.state_dict().items())
    model.eval().train()  # as after an evaluation
    assert not model.backbone.training and model.neck.training


@every_family
def test_a_thawed_backbone_learns_again(family):
    model = tiny(family)
    model.freeze_backbone(True)
    train_a_little(model, 1)
    model.freeze_backbone(False)
    assert model.backbone.training and all(p.requires_grad for p in model.parameters())
    backbone = copy_of(model.backbone)
    train_a_little(model, 1)
    assert not any(torch.equal(backbone[name], value) for name, value in model.backbone.state_dict().items())


@every_family
def test_freezing_in_evaluation_mode_stays_there(family):
    model = tiny(family).eval()
    model.freeze_backbone(True)
    model.freeze_backbone(False)
    assert not any(m.training for m in model.modules())


@every_family
def test_detect_looks_in_evaluation_mode_and_leaves_no_trace(family):
    model, images, frames = tiny(family).train(), pictures(2, 64, 96), IMAGE.expand(2, 5)
    before = copy_of(model)
    found = model.detect(images, frames, confidence=0.0, max_detections=5)
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    again = model.eval().detections(model(images), (64, 96), frames, confidence=0.0, max_detections=5)
    assert [len(f.scores) for f in found] == [5, 5] and not found[0].scores.requires_grad
    assert all(torch.equal(f.boxes, a.boxes) for f, a in zip(found, again, strict=True))


@every_family
def test_data_parallel_gathers_predictions_along_the_pictures(family):
    """nn.DataParallel itself needs GPUs; on a CPU its own pieces can be put together."""
    model, images = tiny(family).eval(), pictures(5, 64, 64)
    parts = [model(part) for part in images.chunk(3)]  # fewer pictures than GPUs are fewer parts
    whole = model(images)
    for field, gathered in zip(whole, map(torch.cat, zip(*parts, strict=True)), strict=True):
        assert field.shape[0] == 5 and torch.allclose(field, gathered, atol=1e-4)
    assert type(whole)._make(whole) == whole  # how DataParallel puts a named tuple together again


def test_conv_keeps_the_size_of_its_input():
    assert Conv(3, 4, 3)(torch.zeros(2, 3, 10, 14)).shape == (2, 4, 10, 14)
    assert Conv(3, 4, 3, stride=2)(torch.zeros(2, 3, 10, 14)).shape == (2, 4, 5, 7)
    assert ADown(4, 6)(torch.zeros(2, 4, 10, 14)).shape == (2, 6, 5, 7)


def test_repconv_is_a_3x3_and_a_1x1_side_by_side():
    torch.manual_seed(0)
    conv, x = RepConv(4).double().eval(), torch.randn(2, 4, 9, 7, dtype=torch.float64)
    with torch.no_grad():
        wide = nn.functional.conv2d(x, conv.conv3x3.conv.weight, padding=1) / (1 + BN_EPS) ** 0.5
        narrow = nn.functional.conv2d(x, conv.conv1x1.conv.weight) / (1 + BN_EPS) ** 0.5
        assert torch.allclose(conv(x), nn.functional.silu(wide + narrow))
        before = conv(x)
        conv.fuse()
    assert torch.allclose(conv(x), before, atol=1e-12) and len(list(conv.parameters())) == 2
