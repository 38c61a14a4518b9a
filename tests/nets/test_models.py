"""nets/__init__.py and nets/blocks.py: names, building with pretrained weights, and single layers."""

import pytest
import torch
from refused import mentions, refused
from torch import nn

import nets
from nets import pretrained
from nets.blocks import BN_EPS, SPP, RepConv
from utils import checkpoint, file_checks
from utils.images import LETTERBOXES


def test_every_model_name_builds_its_model():
    with torch.device("meta"):
        models = {name: nets.build(name, 7) for name in nets.model_names()}
    assert {name.rpartition("_")[0] for name in models} == nets.MODELS.keys() and len(models) == 6 + 4 + 4 + 3 + 1
    for name, model in models.items():
        assert type(model) is nets.MODELS[name.rpartition("_")[0]].model
        assert model.num_classes == 7 and model.strides[:3] == (8, 16, 32) and model.letterbox in LETTERBOXES


@pytest.mark.parametrize("name", ["yolo_x", "yolox", "yolox_", "resnet"])
def test_unknown_model_name_lists_all_names(name):
    with refused(ValueError, f"model='{name}'", *nets.model_names()):
        nets.build(name, 80)


def test_criterion_of_an_unregistered_model_is_an_error():
    with pytest.raises(KeyError, match="Linear"):
        nets.criterion(nn.Linear(1, 1))


@pytest.mark.parametrize("size", [(64, 64), (32, 640)])
def test_image_sizes_are_multiples_of_32(size):
    assert nets.check_size(size) == size
    with refused(ValueError, "image_size=100,0", "96,32"):
        nets.check_size((100, 0))
    with refused(ValueError, "image_size=", "8192,64") as caught:
        nets.check_size((10**400 - 1, 64))
    assert len(str(caught.value)) < 400


def test_published_ap_grows_with_the_model_and_with_its_input():
    for family, row in nets.MODELS.items():
        sizes = [size for size in row.sizes if size in row.weights]
        for side in (320, 416, 640):
            found = [nets.official_file(f"{family}_{size}", "coco", (side, side)) for size in sizes]
            one_side = [file.ap for file in found if file.image_size == (side, side)]
            assert one_side == sorted(one_side) and all(0.25 < ap < 0.6 for ap in one_side)
        for files in row.by_side.values():
            assert [file.ap for file in files] == sorted(file.ap for file in files)


class OneProcess:
    """Ranks of a single process, without starting it."""

    on_main = staticmethod(lambda work: work())


def test_build_pretrained_keeps_rows_of_known_classes(tmp_path):
    torch.manual_seed(0)
    source, lines = nets.build("tiny_n", 3), []
    path = tmp_path / "best.pt"
    checkpoint.save(path, {"classes": ["cat", "dog", "bus"], "config": {}, "model": source.state_dict()})
    model, pretraining = nets.build_pretrained("tiny_n", ("Bus", "boat"), str(path), OneProcess(), lines.append)
    assert pretraining == nets.Pretraining(known=0.5, official=False)
    assert lines[0] == f"weights    {path}" and "backbone" in lines[1]
    for name, value in model.state_dict().items():
        if "class_predictors" in name:
            assert torch.equal(value[0], source.state_dict()[name][2])
        else:
            assert torch.equal(value, source.state_dict()[name])
    fresh = sum(value[0].numel() for name, value in source.state_dict().items() if "class_predictors" in name)
    head = sum(value.numel() for name, value in model.head.state_dict().items())
    assert f"{(head - fresh) / head:.1%} of" in lines[1]  # the row of boat does not come from the file
    assert mentions(lines[2], "boat") and not mentions(lines[2], "Bus")
    assert mentions(lines[3], "cat, dog") and mentions(lines[3], "merge=boat:") and not mentions(lines[3], "bus")
    assert nets.build_pretrained("tiny_n", ("bus",), str(path), OneProcess(), lines.append)[1].known == 1
    assert len(lines) == 7 and "merge=" not in lines[6]  # no line about new classes


@pytest.mark.parametrize("optional", [False, True])
def test_build_pretrained_without_weights_starts_from_scratch(optional):
    lines = []
    torch.manual_seed(0)
    model, known = nets.build_pretrained("tiny_n", ("cat", "dog"), None, OneProcess(), lines.append, optional)
    torch.manual_seed(0)
    fresh = nets.build("tiny_n", 2).state_dict()
    assert known is None and lines == []
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("weights", ["coco", "http://127.0.0.1:1"])
def test_weights_that_cannot_be_downloaded_are_optional_for_the_demo(weights, monkeypatch):
    monkeypatch.setattr(pretrained, "HOST", "http://127.0.0.1:1")  # no server listens there
    monkeypatch.setenv("no_proxy", "*")
    lines = []
    with refused(pretrained.PretrainedError, "yolox_nano", "http://127.0.0.1:1", "weights=none"):
        nets.build_pretrained("yolox_nano", ("cat",), weights, OneProcess(), lines.append)
    assert not lines
    model, known = nets.build_pretrained("yolox_nano", ("cat",), weights, OneProcess(), lines.append, optional=True)
    assert known is None and model.num_classes == 1
    (line,) = lines
    assert "yolox_nano" in line and "http://127.0.0.1:1" in line and "weights=none" in line


def test_a_weights_file_is_never_optional(tmp_path):
    (tmp_path / "bad.pth").write_bytes(b"text")
    for path in ("missing.pth", str(tmp_path / "bad.pth")):
        with refused(pretrained.PretrainedError, f"weights={path}"):
            nets.build_pretrained("tiny_n", ("cat",), path, OneProcess(), print, optional=True)
    checkpoint.save(tmp_path / "other.pt", {"classes": ["cat"], "config": {}, "model": {"a": torch.ones(1)}})
    with refused(file_checks.CheckpointError, tmp_path / "other.pt", "0%", "backbone", "weights=none"):
        nets.build_pretrained("tiny_n", ("cat",), str(tmp_path / "other.pt"), OneProcess(), print, optional=True)


def test_spp_equals_three_separate_pools():
    torch.manual_seed(0)
    spp, x = SPP(8, 6).eval(), torch.randn(2, 8, 17, 23)
    inside = spp.conv1(x)
    pools = [inside] + [nn.functional.max_pool2d(inside, k, stride=1, padding=k // 2) for k in (5, 9, 13)]
    assert torch.equal(spp(x), spp.conv2(torch.cat(pools, 1)))


def test_repconv_is_the_sum_of_a_3x3_and_a_1x1():
    torch.manual_seed(0)
    conv, x = RepConv(4).double().eval(), torch.randn(2, 4, 9, 7, dtype=torch.float64)
    with torch.no_grad():
        wide = nn.functional.conv2d(x, conv.conv3x3.conv.weight, padding=1) / (1 + BN_EPS) ** 0.5
        narrow = nn.functional.conv2d(x, conv.conv1x1.conv.weight) / (1 + BN_EPS) ** 0.5
        assert torch.allclose(conv(x), nn.functional.silu(wide + narrow))
        before = conv(x)
        conv.fuse()
    assert torch.allclose(conv(x), before, atol=1e-12) and len(list(conv.parameters())) == 2
