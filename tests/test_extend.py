"""The diffs of docs/extend.md: each applies to a copy of the program and has its effect in a short training."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from pages import ROOT, code, text_of

from datasets.dataset import checked_sample

SECTIONS = re.findall(r"^## (.*?)\n.*?^```diff\n(.*?)^```", text_of(ROOT / "docs/extend.md"), re.MULTILINE | re.DOTALL)
DIFFS = dict(SECTIONS)  # heading -> unified diff
SHORT = (
    "weights=none epochs=2 freeze_epochs=0 no_aug_epochs=1 batch_size=4 image_size=64,64 workers=0 device=cpu "
    "learning_rate=.01 warmup_epochs=0 mosaic=0"
).split()


def copy_of_the_program(folder: Path) -> Path:
    """A copy of the scripts and packages, and of the tests' small model."""
    for package in ("nets", "datasets", "metrics", "engine", "report", "deploy", "utils", "tools"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for file in (*ROOT.glob("*.py"), ROOT / "tests" / "tiny.py"):
        shutil.copy(file, folder / file.relative_to(ROOT))
    return folder


def apply(diff: str, folder: Path, *options: str) -> None:
    """Applies a diff by `git apply`, which needs no repository. A parent folder that is one does not count."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "--verbose", *options, "-"]
    done = subprocess.run(command, input=diff, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Skipped" not in done.stderr, done.stderr


def run(folder: Path, *words: str) -> str:
    """Runs a script of the copy and returns its output."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(folder: Path, data: Path, *words: str, script: str = "tests/tiny.py") -> list[dict]:
    """Trains in the copy and returns the rows of log.csv."""
    model = () if script == "train.py" else ("model=tiny_n",)
    parts = (f"train={data / 'train.txt'}", f"val={data / 'val.txt'}", f"output={folder / 'runs'}")
    chosen = dict(word.split("=", 1) for word in (*parts, *SHORT, *model, *words))  # a later one replaces
    run(folder, script, *(f"{name}={value}" for name, value in chosen.items()))
    (run_folder,) = (folder / "runs").iterdir()
    with open(run_folder / "log.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Eight colored squares on gray, as annotation files for training and validation."""
    folder, rng = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    lines = []
    for number in range(8):
        image = np.full((64, 64, 3), 114, np.uint8)
        x, y = rng.integers(0, 32, 2)
        image[y : y + 28, x : x + 28] = (0, 0, 255) if number % 2 else (255, 0, 0)
        cv2.imwrite(str(folder / f"{number}.png"), image)
        lines.append(f"{number}.png {x},{y},{x + 28},{y + 28},{number % 2}\n")
    for part in ("train", "val"):
        (folder / f"{part}.txt").write_text("".join(lines))
    (folder / "classes.txt").write_text("blue\nred\n")
    return folder


@pytest.fixture
def program(tmp_path) -> Path:
    """A copy of the program in a separate folder."""
    return copy_of_the_program(tmp_path)


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_each_diff_applies_and_changes_at_most_three_files(program):
    for name, diff in DIFFS.items():
        assert 1 <= len(re.findall(r"^\+\+\+ b/", diff, re.MULTILINE)) <= 3, name
        apply(diff, program, "--check")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory, data) -> list[dict]:
    """The log of the program without any change."""
    return trained(copy_of_the_program(tmp_path_factory.mktemp("unchanged")), data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "script", "column"),
    [
        ("A loss term", [], "tests/tiny.py", "loss_center"),
        ("An augmentation", [], "tests/tiny.py", None),
        ("A model", ["model=resnet_18"], "train.py", None),
        ("An optimizer", ["optimizer=nadam"], "tests/tiny.py", None),
        ("A metric", [], "tests/tiny.py", "F1"),
    ],
)
def test_a_diff_has_its_effect_in_a_training(name, words, script, column, program, data, unchanged):
    apply(DIFFS[name], program)
    rows = trained(program, data, *words, script=script)
    assert rows[-1]["skipped_steps"] == "0" and 0 <= float(rows[-1]["AP"]) <= 1
    assert rows[0].keys() - unchanged[0].keys() == ({column} if column else set())
    assert (rows[0]["loss"] != unchanged[0]["loss"]) == (name != "A metric")
    assert column is None or float(rows[0][column]) >= 0


# ---- Albumentations


@pytest.fixture
def with_albumentations(tmp_path):
    """`extra_augment` of the page."""
    pytest.importorskip("albumentations")
    (block,) = (block for block in code(text_of(ROOT / "docs/extend.md"), "python") if "albumentations" in block)
    names = {}
    exec(block, names)
    return names["extra_augment"]


def test_albumentations_keep_boxes_over_their_objects(with_albumentations):
    image = np.full((96, 128, 3), 30, np.uint8)
    image[40:70, 20:60] = 220
    boxes, labels = np.array([[20, 40, 60, 70], [0, 0, 1, 1]], np.float32), np.array([5, 6])  # the second is too small
    for seed in range(60):
        found = checked_sample(with_albumentations(image, boxes, labels, np.random.default_rng(seed)), (96, 128), 7)
        ys, xs = np.nonzero(found.image[..., 0] > 125)
        np.testing.assert_allclose(found.boxes, [[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], atol=3)
        assert found.labels.tolist() == [5]
    none = with_albumentations(image, boxes[:0], labels[:0], np.random.default_rng(0))
    assert len(checked_sample(none, (96, 128), 7).boxes) == 0
