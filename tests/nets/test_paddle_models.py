"""PP-YOLOE+ and PicoDet: training passes and losses of whole models in PaddleDetection; the rest is in the tests of each."""

import numpy as np
import official
import paddle
import pytest
import torch

import nets
from nets.official_names import of_picodet, of_ppyoloe


@pytest.mark.parametrize(
    ("name", "our_name", "sides"), [("ppyoloe_s", of_ppyoloe, (96, 6, 12)), ("picodet_s", of_picodet, (96, 24, 6))]
)
def test_a_training_pass_equals_the_official_code(name, our_name, sides):
    """Feature maps and running statistics after a pass of two images in training mode."""
    reference, model = official.reference(name), paddle.filled_model(name).train()
    with torch.no_grad():
        features = model.neck(*model.features(torch.cat([paddle.image(192, 192, seed) for seed in (7, 8)])))
    for level, x in enumerate(features if name == "picodet_s" else reversed(features)):
        assert np.abs(x[:, :4, ::2, ::2].numpy() - reference[f"train_neck_{level}"]).max() < 1e-4
    before, after = paddle.official_state(name), model.state_dict()
    for i, (key, side) in enumerate(zip(reference["train_bn_keys"], sides, strict=True)):
        variance, mean = our_name(str(key)), our_name(str(key).replace("variance", "mean"))
        assert np.abs(after[mean].numpy() - reference[f"train_bn_mean_{i}"]).max() < 1e-5
        # Paddle divides by the number of values, PyTorch by one less.
        values = 2 * side**2
        batch = (after[variance] - 0.9 * before[variance]) * (values - 1) / values
        assert np.abs((0.9 * before[variance] + batch).numpy() - reference[f"train_bn_variance_{i}"]).max() < 1e-5


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("name", "gains"),
    [
        ("ppyoloe_s", (2.5, 0.5)),
        ("picodet_s", (1, 1)),
        pytest.param("ppyoloe_m", (2.5, 0.5), marks=pytest.mark.slow),
        pytest.param("picodet_m", (1, 1), marks=pytest.mark.slow),
    ],
)
def test_losses_of_whole_models_equal_the_official_code(name, gains, static):
    """`gains`: the weights of the losses of boxes, which the official losses do not contain."""
    reference, model = official.reference(name), paddle.filled_model(name).eval()
    boxes, labels = (torch.tensor(reference[f"loss_{part}"])[None] for part in ("boxes", "labels"))
    with torch.no_grad():
        losses = nets.criterion(model, static=static)(model(paddle.image(192, 192)), boxes, labels.long(), (192, 192))
    total, of_classes, box, dfl = reference["loss_atss" if static else "loss_tal"].tolist()
    expected = {"total": total, "class": of_classes, "box": gains[0] * box, "dfl": gains[1] * dfl}
    assert {part: losses[part].item() for part in expected} == pytest.approx(expected, rel=1e-4)
