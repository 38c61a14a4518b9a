"""docs/deploy.md: its program runs without torch and detects what Detector detects; the page is complete."""

import re
import subprocess
import sys
from dataclasses import asdict

import cv2
import numpy as np
import onnx
import pytest
from lively import lively_checkpoint
from pages import ROOT, code, text_of

from datasets import demo
from deploy.detector import Detector
from export import Config, main

PAGE = text_of(ROOT / "docs/deploy.md")


def program():
    (program,) = code(PAGE, "python")
    return program


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt", metrics={"confidence": 0.45})


@pytest.fixture(scope="module")
def file(weights):
    return main(Config(str(weights), check_images=2))


def with_letterbox(file, kind, path):
    """A copy of the file whose metadata ask for another letterbox."""
    proto = onnx.load(file)
    next(entry for entry in proto.metadata_props if entry.key == "letterbox").value = f'"{kind}"'
    onnx.save(proto, path)
    return path


def test_the_program_is_short_and_needs_three_packages():
    assert len(program().splitlines()) < 75
    packages = set(re.findall(r"^(?:import|from) (\w+)", program(), re.MULTILINE))
    assert packages == {"json", "sys", "cv2", "numpy", "onnxruntime"}


@pytest.mark.parametrize("case", ["center", "corner", "stretch", "any number of float images"])
def test_the_program_detects_what_the_detector_detects_without_torch(tmp_path, weights, file, case):
    reference = weights
    if case in ("corner", "stretch"):
        reference = file = with_letterbox(file, case, tmp_path / f"{case}.onnx")
    elif case != "center":
        output = str(tmp_path / "float.onnx")
        file = main(Config(str(weights), output=output, check_images=2, uint8_input=False, batch_size=0))
    (tmp_path / "without").mkdir()
    for name in ("torch", "onnx"):
        (tmp_path / f"without/{name}.py").write_text("raise ImportError('not here')")
    (tmp_path / "deploy.py").write_text(program(), encoding="utf-8")
    image = demo.draw_image(3)[0]
    cv2.imwrite(str(tmp_path / "a.png"), image)
    words = [sys.executable, "deploy.py", str(file), "a.png", "drawn.png"]
    env = {"PYTHONPATH": str(tmp_path / "without")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    (result,) = Detector(reference, device="cpu")(image)
    assert len(result.scores) > 5 and result.scores.min() >= 0.45
    assert [row[0] for row in rows] == list(result.names)
    np.testing.assert_allclose([float(row[1]) for row in rows], result.scores, atol=2e-4)
    np.testing.assert_allclose(np.array([row[2:] for row in rows], float), result.boxes, atol=0.2)
    assert (cv2.imread(str(tmp_path / "drawn.png")) != image).any()


def test_the_page_explains_all_metadata_and_constants(file):
    names = {entry.key for entry in onnx.load(file).metadata_props} | {"shapes"} | set(asdict(Config()))
    assert len(names) > 15 and [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
