"""nets/ppyoloe.py: tensor names, sizes, outputs, assignments and losses of PP-YOLOE+ in PaddleDetection."""

import numpy as np
import official
import paddle
import pytest
import torch

import nets
from nets import ppyoloe
from nets.coder import decode_dfl, grid
from nets.losses import PPYOLOECriterion
from nets.official_names import of_ppyoloe

STRIDES = (8, 16, 32)


def reordered(values):
    """Anchor points of a 192 x 192 input in the official order, coarsest level first -> in ours."""
    return torch.cat(torch.tensor(values).split((36, 144, 576), 1)[::-1], 1)


@pytest.mark.parametrize("size", ["s", "m", "l"])
def test_names_and_shapes_equal_the_official_ones(size):
    with torch.device("meta"):
        model = nets.build(f"ppyoloe_{size}", 80)
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items() if "num_batches" not in name}
    theirs = {of_ppyoloe(name): shape for name, shape in official.official_keys(f"ppyoloe_{size}").items()}
    assert theirs.pop(None) == (1, 17, 1, 1)  # the constant 0, 1, ... 16
    assert ours == theirs and all(of_ppyoloe(name) == name for name in ours)


@pytest.mark.parametrize("size", ["s", "m"])
def test_outputs_equal_the_official_code(size):
    """Class logits, distributions and boxes, before and after fusing."""
    reference, model = official.reference(f"ppyoloe_{size}"), paddle.filled_model(f"ppyoloe_{size}").eval()
    images = paddle.image(96, 160)
    with torch.no_grad():
        for _ in range(2):
            levels = model.levels(model.features(images))
            boxes, _, _ = model.decode(model.head.flatten(levels), (96, 160))
            for level in range(3):
                if f"class_{level}" in reference:
                    assert np.abs(levels[2 - level].classes.numpy() - reference[f"class_{level}"]).max() < 1e-4
                    assert np.abs(levels[2 - level].boxes.numpy() - reference[f"dist_{level}"]).max() < 1e-4
            theirs = torch.cat(torch.tensor(reference["boxes"]).split((15, 60, 240), 1)[::-1], 1)
            assert (boxes - theirs).abs().max() < 1e-3  # pixels
            model.fuse()


@pytest.mark.parametrize("rule", ["atss", "tal"])
@pytest.mark.parametrize("case", range(4))
def test_assignments_and_losses_of_hard_cases_equal_the_official_code(case, rule):
    """Many boxes and few, small and large ones, images without any."""
    reference = {n[2:]: v for n, v in official.reference("losses_ppyoloe").items() if n.startswith(f"{case}_")}
    classes, raw = (reordered(reference[name].astype(np.float32) / 16) for name in ("class", "dist"))
    predictions = ppyoloe.Predictions(raw.flatten(2).requires_grad_(), classes.requires_grad_())
    boxes, labels = torch.tensor(reference["boxes"]), torch.tensor(reference["labels"])
    labels = labels.where(torch.tensor(reference["mask"]) > 0, -1)
    criterion = PPYOLOECriterion(STRIDES, static=rule == "atss")
    losses = criterion(predictions, boxes, labels, (192, 192))
    total, of_classes, box, dfl, _ = reference[f"{rule}_losses"].tolist()
    expected = {"total": total, "class": of_classes, "box": 2.5 * box, "dfl": 0.5 * dfl}
    assert {name: losses[name].item() for name in expected} == pytest.approx(expected, rel=1e-5)

    losses["total"].backward()
    for x, theirs in zip((predictions.classes, predictions.boxes), reference[f"{rule}_gradients"], strict=True):
        ours = [level.norm().item() for level in x.grad.split((576, 144, 36), 1)[::-1]]
        assert ours == pytest.approx(theirs.tolist(), rel=1e-4, abs=1e-6)

    if boxes.shape[1]:
        cells, strides = grid((192, 192), STRIDES, raw)
        decoded, centers = decode_dfl(raw.flatten(2), cells, strides).detach(), (cells + 0.5) * strides[:, None]
        match, _ = criterion.assign((decoded, classes, centers, strides, boxes, labels), (192, 192))
        assigned = labels.gather(1, match.index).where(match.positive, 6)
        assert torch.equal(assigned, reordered(reference[f"{rule}_labels"]).long()) and match.positive.any()
        assert (match.score - reordered(reference[f"{rule}_scores"])).abs().max() < 1e-5
        matched = boxes.gather(1, match.index[..., None].expand(-1, -1, 4))
        assert torch.equal(matched[match.positive], reordered(reference[f"{rule}_boxes"])[match.positive])


def test_weights_without_alpha_are_those_of_branches_of_weight_1(tmp_path):
    """The Objects365 weights were trained without the weight of the 1x1 branch."""
    state = {name: value for name, value in paddle.filled_state("ppyoloe_s").items() if not name.endswith(".alpha")}
    torch.save(state, tmp_path / "weights.pth")
    nets.require_all("ppyoloe_s", tmp_path / "weights.pth")
    ours = nets.read_weights(tmp_path / "weights.pth", "ppyoloe_s").state
    alphas = [name for name in ours if name.endswith(".alpha")]
    assert len(alphas) == 1 + 2 + 2 + 1 and all(ours[name] == 1 for name in alphas)
    torch.save(paddle.filled_state("ppyoloe_s"), tmp_path / "weights.pth")  # a file that has them keeps them
    assert all(nets.read_weights(tmp_path / "weights.pth", "ppyoloe_s").state[name] != 1 for name in alphas)
