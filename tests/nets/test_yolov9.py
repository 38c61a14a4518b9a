"""nets/yolov9.py: tensor names, sizes and outputs of the official networks."""

import numpy as np
import official
import pytest
import torch
from toys import detector

import nets
from nets import pretrained
from nets.coder import BINS, decode_dfl, encode_dfl, grid
from utils.processes import Ranks

STRIDES = (8, 16, 32)


@pytest.mark.parametrize("size", "tsmc")
def test_names_and_shapes_equal_the_official_ones(size):
    keys = official.empty_state(f"yolov9_{size}")
    main = [name for name in keys if int(name.partition(".")[0]) < 23 and "anc2vec" not in name]
    state = {nets.official_names.of_yolov9(name): keys[name] for name in main}
    for prefix in ("model.model.", "model.", "module."):
        assert [nets.official_names.of_yolov9(prefix + name) for name in main] == list(state)
    assert {nets.official_names.of_yolov9(name) for name in keys.keys() - set(main)} == {None}
    with torch.device("meta"):
        model = nets.build(f"yolov9_{size}", 80)
    model.load_state_dict(state, strict=True, assign=True)  # raises for other names or shapes
    parts = [sum(name.startswith(part) for name in state) for part in ("backbone.", "neck.", "head.")]
    assert sum(parts) == len(state) == len(main) > 900 and min(parts) > 80


@pytest.mark.parametrize("size", ["t", *(pytest.param(size, marks=pytest.mark.slow) for size in "sc")])
def test_outputs_equal_the_official_code(tmp_path, size):
    """Class logits and box distances, with weights read through the reader of official files, before and after fusing."""
    reference = official.reference(f"yolov9_{size}")
    layout = {"s": lambda state: {"state_dict": state}}.get(size, lambda state: state)  # both occur
    torch.save(layout(official.filled_state(f"yolov9_{size}")), tmp_path / "filled.pt")
    state, classes, *_ = nets.read_weights(tmp_path / "filled.pt", f"yolov9_{size}")
    assert classes == pretrained.COCO_CLASSES
    with torch.device("meta"):
        model = nets.build(f"yolov9_{size}", 80).eval()
    model.load_state_dict(state, assign=True)
    images = official.image(96, 160).flip(1)  # the reference took it as RGB
    with torch.no_grad():
        whole, fused = model(images), model.fuse()(images)
    for out in (whole, fused):
        boxes, _, _ = model.decode(out, (96, 160))
        distances = encode_dfl(boxes, *grid((96, 160), STRIDES, boxes))
        start = 0
        for level in range(3):
            for ours, name in ((out.classes, "class"), (distances, "vector")):
                theirs = reference[f"{name}_{level}"][0].reshape(ours.shape[2], -1).T
                assert np.abs(ours[0, start : start + len(theirs)].numpy() - theirs).max() < 1e-4
            start += len(theirs)
        assert start == out.classes.shape[1]


@pytest.mark.parametrize("classes, width", [(1, 64), (33, 66), (365, 128)])
def test_class_branches_of_t_grow_with_the_classes_or_follow_the_weights(classes, width):
    with torch.device("meta"):
        model = nets.build("yolov9_t", classes)
    assert all(p.in_channels == width and p.out_channels == classes for p in model.head.class_predictors)


def test_official_file_of_t_has_branches_of_80_and_training_from_scratch_those_of_the_current_code(tmp_path):
    """The released file has 80 classes and class branches of 80 channels. The current official code builds 128."""
    released = nets.build("yolov9_t", 80, nets.build("yolov9_t", 40).state_dict())
    torch.save(released.state_dict(), tmp_path / "v9-t.pt")
    nets.require_all("yolov9_t", tmp_path / "v9-t.pt")
    classes = pretrained.COCO_CLASSES
    built = [
        nets.build_pretrained("yolov9_t", classes, w, Ranks(), print)[0] for w in (str(tmp_path / "v9-t.pt"), None)
    ]
    assert [model.head.class_predictors[0].in_channels for model in built] == [80, 128]
    expected = released.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in built[0].state_dict().items())
    assert official.official_keys("yolov9_t")["22.heads.0.class_conv.2.weight"] == (80, 128, 1, 1)  # the current code


def test_backbone_gets_rgb_between_0_and_1():
    model, inputs = detector("yolov9").eval(), []
    model.backbone.stem.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    images[0, 2], images[0, 1] = 255, 51  # BGR: full red, a fifth of green
    model(images)
    assert torch.allclose(inputs[0][0, :, 0, 0], torch.tensor([1.0, 0.2, 0.0])) and inputs[0].dtype == torch.float32


def test_encode_is_the_inverse_of_decode():
    torch.manual_seed(0)
    cells, strides = grid((64, 96), STRIDES, torch.zeros(1, dtype=torch.float64))
    raw = 3 * torch.randn(2, len(cells), 4 * BINS, dtype=torch.float64)
    boxes = decode_dfl(raw, cells, strides)
    expected = (raw.reshape(2, -1, 4, BINS).softmax(-1) * torch.arange(BINS)).sum(-1)
    assert torch.allclose(encode_dfl(boxes, cells, strides), expected, atol=1e-9)


def test_a_certain_distribution_gives_its_distance():
    raw = torch.full((1, 1, 4 * BINS), -100.0)
    for side, distance in enumerate((1, 2, 3, 15)):
        raw[..., BINS * side + distance] = 100.0
    box = decode_dfl(raw, torch.tensor([[4.0, 2.0]]), torch.tensor([16.0]))  # the center is 72, 40
    assert box.tolist() == [[[72 - 16, 40 - 32, 72 + 48, 40 + 240]]]
