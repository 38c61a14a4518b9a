"""engine/final_report.py: what a run evaluates and writes after its last epoch."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny  # noqa: F401  registers model="tiny_n"
from refused import told
from small import assert_same_run, config, log_of, train_quietly

from engine import final_report
from engine.final_report import MAX_ROWS, class_table, old_and_new


def test_a_run_ends_with_the_path_of_its_report_about_best_pt(demo_images, tmp_path):
    folder, best, text = train_quietly(config(demo_images, tmp_path / "with", epochs=2, report=True))
    path = Path(text.splitlines()[-1].split(maxsplit=1)[1])
    assert path == folder / "evaluation" / "report.html" and path.read_text(encoding="utf-8").endswith("</html>")
    metrics = json.loads((path.parent / "metrics.json").read_text())
    row = next(row for row in log_of(folder) if row["AP"] == str(best))
    assert [str(metrics[name]) for name in ("AP", "AP50", "precision", "recall")] == [
        row[name] for name in ("AP", "AP50", "precision", "recall")
    ]
    for name, of_class in metrics["per_class"].items():
        assert of_class["boxes"] == 0 or f"{name} " in text
    without, *_ = train_quietly(config(demo_images, tmp_path / "without", epochs=2))
    assert not (without / "evaluation").exists()
    assert_same_run(folder, without)


@pytest.mark.parametrize("boxes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_that_learned_nothing_ends_with_a_report_too(demo_images, tmp_path, boxes):
    """Its mAP is 0, or the validation images have no boxes: the report shows what was missed, or detected wrongly."""
    images = shutil.copytree(demo_images, tmp_path / "images")
    if not boxes:
        (images / "val.txt").write_text((images / "val.txt").read_text().split()[0] + "\n")
    cfg = config(images, tmp_path / "runs", report=True, weights=None, epochs=1, freeze_epochs=0, learning_rate=1e-9)
    folder, best, text = train_quietly(replace(cfg, min_learning_rate=0.0))
    path = Path(text.splitlines()[-1].split(maxsplit=1)[1])
    assert best == 0 and path == folder / "evaluation" / "report.html" and path.exists()
    assert ("class  " in text) == boxes


def test_a_large_validation_set_is_left_to_evaluate_py(demo_images, tmp_path, monkeypatch):
    monkeypatch.setattr(final_report, "MAX_IMAGES", 1)
    folder, _, text = train_quietly(config(demo_images, tmp_path, report=True, epochs=1, freeze_epochs=0))
    assert f"python evaluate.py checkpoint={folder / 'best.pt'} " in text.splitlines()[-1]
    assert not (folder / "evaluation").exists()


def row_of(mean_ap: float, boxes: int = 1) -> dict:
    names = ("AP50", "precision", "recall", "threshold")
    return {"AP": mean_ap, "boxes": boxes, **dict.fromkeys(names, 0.5)}


def test_a_long_table_has_the_best_and_the_worst_classes():
    per_class = {f"c{n}": row_of(n / 100) for n in range(50)} | {"unseen": row_of(-1.0, 0)}
    lines = class_table(per_class, dict.fromkeys(per_class, 7))
    names = [line.split()[0] for line in lines[1:-2]]
    assert names == [*(f"c{n}" for n in range(49, 39, -1)), "...", *(f"c{n}" for n in range(9, -1, -1))]
    assert f"{50 - MAX_ROWS} classes" in lines[11]
    assert lines[1].split()[1:4] == ["7", "1", "49.00"]
    short = class_table(dict(list(per_class.items())[:MAX_ROWS]), {})
    assert len(short) == MAX_ROWS + 3 and not any("..." in line for line in short)


def test_a_model_with_added_classes_says_the_map_of_old_and_new_classes():
    rows = {
        "cat": {"AP": 0.5, "boxes": 3},
        "dog": {"AP": -1.0, "boxes": 0},
        "cup": {"AP": 0.25, "boxes": 2},
        "pen": {"AP": 0.75, "boxes": 9},
    }
    old, new, _ = old_and_new(rows, first_class=2)
    told(old, "old", "50.00", "1 class")
    told(new, "new", "50.00", "2 classes")
    old, *_ = old_and_new(rows | {"cat": {"AP": -1.0, "boxes": 0}}, first_class=2)
    assert not re.search(r"\d\.\d", old)
    assert old_and_new(rows, first_class=0) == []
