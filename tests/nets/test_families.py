"""What every model family promises, for the smallest size of each family of the package, and for tests/tiny.py."""

import pytest
import torch
from torch import nn
from toys import SIZES

import nets
from nets.losses import PicoDetCriterion, PPYOLOECriterion, YOLOv9Criterion, YOLOXCriterion
from utils import checkpoint

CRITERIA = {
    "yolox": YOLOXCriterion,
    "yolov9": YOLOv9Criterion,
    "ppyoloe": PPYOLOECriterion,
    "picodet": PicoDetCriterion,
    "tiny": YOLOXCriterion,
}
BOXES = torch.tensor([[[8.0, 8, 40, 48], [50, 20, 60, 30]], [[20.0, 4, 90, 60], [0, 0, 0, 0]]])
LABELS = torch.tensor([[0, 2], [1, -1]])

every_family = pytest.mark.parametrize("family", CRITERIA)


@pytest.fixture(autouse=True)
def toy_sizes(monkeypatch):
    """Adds a very small size to the families of the package: yolox_toy, yolov9_toy and so on."""
    for family, size in SIZES.items():
        row = nets.MODELS[family]
        monkeypatch.setitem(nets.MODELS, family, row._replace(sizes={**row.sizes, "toy": size}))


def name_of(family):
    return "tiny_n" if family == "tiny" else f"{family}_toy"


def random_model(family, num_classes=3):
    """A model whose batch norms are not the identity, and whose outputs have a standard deviation of about 1."""
    torch.manual_seed(0)
    model = nets.build(name_of(family), num_classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, a=0 if module.bias is None else {"yolox": 40, "tiny": 40}.get(family, 4)
            )
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    if family == "yolox":
        model.backbone.stem.conv.weight.data /= 128  # its input is 0-255
    return model


def random_images(*shape, seed=0):
    return torch.randint(0, 256, (shape[0], 3, *shape[1:]), generator=torch.Generator().manual_seed(seed)).byte()


def train(model, steps):
    """Takes AdamW steps on the same batch and returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    images, criterion, losses = random_images(2, 64, 96), nets.criterion(model), []
    model.train()
    for _ in range(steps):
        losses.append(criterion(model(images), BOXES, LABELS, (64, 96))["total"])
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def copy_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(before, module):
    return {name for name, value in module.state_dict().items() if not torch.equal(before[name], value)}


@every_family
@pytest.mark.parametrize("height, width, classes", [(96, 160, 3), (32, 32, 80)])
def test_inputs_are_multiples_of_32_with_any_number_of_classes(family, height, width, classes):
    model = random_model(family, classes).eval()
    out = model(random_images(2, height, width))
    count = sum(-(-height // s) * -(-width // s) for s in model.strides)
    assert all(x.shape[:2] == (2, count) for x in out) and out.classes.shape == (2, count, classes)
    boxes, scores, labels = model.decode(out, (height, width))
    assert boxes.shape == (2, count, 4) and scores.shape == labels.shape == (2, count)
    assert scores.min() >= 0 and scores.max() <= 1 and labels.max() < classes


@every_family
def test_images_of_a_batch_are_independent_in_evaluation_mode(family):
    model, images = random_model(family).eval(), random_images(3, 64, 96)
    whole, alone = model(images), model(images[1:2])
    assert all(torch.allclose(w[1:2], a, atol=1e-4) for w, a in zip(whole, alone, strict=True))
    assert not torch.allclose(whole.boxes[0], whole.boxes[1], atol=1e-3)


@every_family
def test_uint8_and_float_images_give_equal_outputs(family):
    model, images = random_model(family).eval(), random_images(2, 64, 64)
    for from_bytes, from_floats in zip(model(images), model(images.float()), strict=True):
        assert torch.equal(from_bytes, from_floats)


@every_family
def test_fuse_changes_outputs_by_rounding_only(family):
    model, images = random_model(family).eval(), random_images(2, 96, 64)
    before, count = model(images), sum(p.numel() for p in model.parameters())
    assert model.fuse() is model and not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    after = model.fuse()(images)  # a second call changes nothing
    assert not torch.equal(before.classes, after.classes) and sum(p.numel() for p in model.parameters()) < count
    for x, y in zip(before, after, strict=True):
        assert torch.allclose(x, y, atol=1e-4)


@every_family
def test_batch_norms_have_the_constants_of_the_released_weights(family):
    norms = [m for m in random_model(family).modules() if isinstance(m, nn.BatchNorm2d)]
    eps, momentum = (1e-5, 0.1) if family in ("ppyoloe", "picodet") else (1e-3, 0.03)
    assert norms and all(m.eps == eps and m.momentum == momentum for m in norms)


@every_family
def test_mixed_precision_reaches_every_layer(family):
    """A single float32 tensor would make all layers after it compute in float32, up to the next convolution."""
    model, kinds = random_model(family).train(), {}

    def note(name):
        def hook(module, inputs, out):
            kinds[name] = out.dtype if isinstance(out, torch.Tensor) else None

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(note(name))
    with torch.autocast("cpu", torch.bfloat16):
        model(random_images(2, 64, 64))
    assert kinds and {name for name, kind in kinds.items() if kind not in (None, torch.bfloat16)} == set()


@every_family
def test_gradients_reach_every_parameter(family):
    model = random_model(family).train()
    sum(x.square().sum() for x in model(random_images(2, 64, 64))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@every_family
def test_frozen_backbone_keeps_every_bit(family):
    """Neither parameters nor buffers of the backbone change; the rest of the model learns."""
    model = random_model(family)
    model.freeze_backbone(True)
    backbone, neck = copy_of(model.backbone), copy_of(model.neck)
    train(model, 3)
    assert model.training and not any(m.training for m in model.backbone.modules())
    assert changed(backbone, model.backbone) == set() and changed(neck, model.neck) == neck.keys()
    model.eval().train()  # as after an evaluation
    assert not model.backbone.training and model.neck.training


@every_family
def test_with_fixed_statistics_training_computes_what_evaluation_computes(family):
    model, images = random_model(family), random_images(2, 64, 96)
    expected, before = model.eval()(images), copy_of(model)
    model.train().fix_statistics(True)
    for _ in range(2):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(model(images), expected, strict=True))
        model.train()  # as after an evaluation
    assert not changed(before, model)
    model.fix_statistics(False)
    model(images)
    statistics = {name for name in before if name.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    assert statistics and changed(before, model) == statistics


@every_family
def test_checkpoint_round_trip_keeps_every_bit(family, tmp_path):
    model = random_model(family)
    checkpoint.save(tmp_path / "best.pt", {"classes": ["a", "b", "c"], "config": {}, "model": model.state_dict()})
    state = checkpoint.load(tmp_path / "best.pt")["model"]
    again = nets.build(name_of(family), 3, state)
    again.load_state_dict(state)
    assert changed(copy_of(model), again) == set() and len(state) == len(model.state_dict())
    renamed, classes, *_ = nets.read_weights(tmp_path / "best.pt", name_of(family))  # as weights of another training
    assert renamed.keys() == state.keys() and classes == ("a", "b", "c")
