"""utils/compiler.py: torch.compile changes the speed and nothing that is kept."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from toys import detector

from utils.compiler import compile_forward


@pytest.fixture(params=["yolox", pytest.param("yolov9", marks=pytest.mark.slow)])
def model(request):
    torch._dynamo.reset()
    return detector(request.param).eval()


def test_where_it_does_not_work_training_goes_on_without_and_says_so(model, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    said = compile_forward(model, False)
    assert "NOT active" in said and "no compiler here" in said and "story" not in said
    assert model(torch.zeros(1, 3, 64, 64)).boxes.shape[:2] == (1, 84)


def test_translations_stay_few_when_sizes_vary_and_the_backbone_thaws(model, monkeypatch):
    counter, names = CompileCounter(), list(model.state_dict())
    compile_now = torch.compile
    monkeypatch.setattr(torch, "compile", lambda what, **how: compile_now(what, backend=counter, **how))
    assert " active" in compile_forward(model, True) and list(model.state_dict()) == names
    counter.clear()
    counts = []
    for frozen in (True, False):
        model.freeze_backbone(frozen)
        model.train()
        for side in (96, 64, 128, 160, 192, 224):
            model(torch.zeros(2, 3, side, side + 32)).classes.sum().backward()
        counts.append(counter.frame_count)
    assert counts[0] <= 2 and counts[1] <= 4, counts


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_the_translation_computes_the_same(model):
    images = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)
    plain = model(images)
    said = compile_forward(model, False)
    assert " active" in said, said
    for one, other in zip(plain, model(images), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)
