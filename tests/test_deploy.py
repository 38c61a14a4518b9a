"""docs/deploy.md: its program runs without torch and finds what Detector finds."""

import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from lively import Toy, lively_checkpoint

import nets
from datasets import demo
from export import Config, main
from utils.detector import Detector

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


def program():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    return code


def test_the_program_is_short_and_needs_three_packages():
    assert len(program().splitlines()) < 60
    packages = set(re.findall(r"^(?:import|from) (\w+)", program(), re.MULTILINE))
    assert packages == {"json", "sys", "cv2", "numpy", "onnxruntime"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("yolox_nano", {}), ("toy", {"batch_size": 0}), ("toy", {"pictures_in": False})],
    ids=["corner", "centred", "tensors"],
)
def test_the_program_finds_what_the_detector_finds_without_torch(tmp_path, monkeypatch, name, changes):
    monkeypatch.setitem(nets.MODELS, "toy", Toy)
    weights = lively_checkpoint(tmp_path / "best.pt", name, metrics={"confidence": 0.45})
    file = main(Config(str(weights), check_pictures=2, **changes))
    for trap in ("torch", "onnx"):
        (tmp_path / "trap").mkdir(exist_ok=True)
        (tmp_path / "trap" / f"{trap}.py").write_text("raise ImportError('not here')")
    (tmp_path / "deploy.py").write_text(program(), encoding="utf-8")
    image = demo.picture(3)[0]
    cv2.imwrite(str(tmp_path / "a.png"), image)
    words = [sys.executable, "deploy.py", file.name, "a.png", "drawn.png"]
    env = {"PYTHONPATH": str(tmp_path / "trap")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    (found,) = Detector(weights, device="cpu")(image)
    assert len(found.scores) > 5 and found.scores.min() >= 0.45
    assert [row[0] for row in rows] == list(found.names)
    np.testing.assert_allclose([float(row[1]) for row in rows], found.scores, atol=2e-4)
    np.testing.assert_allclose(np.array([row[2:] for row in rows], float), found.boxes, atol=0.2)
    assert (cv2.imread(str(tmp_path / "drawn.png")) != image).any()


def test_the_page_names_all_metadata(tmp_path, monkeypatch):
    import onnx

    monkeypatch.setitem(nets.MODELS, "toy", Toy)
    file = main(Config(str(lively_checkpoint(tmp_path / "best.pt", "toy")), check_pictures=2, outputs="raw"))
    names = [entry.key for entry in onnx.load(file).metadata_props]
    assert "shapes" in names and [name for name in names if f"`{name}`" not in PAGE] == []
