"""report/analysis.py: whose detections count as mistakes."""

from dataclasses import replace

import numpy as np
import pytest
from painted import drawn

import evaluate
from datasets import demo
from report import analysis as evaluation_results
from report.analysis import unlabeled_classes, write_report

CLASSES = ("cat", *demo.CLASSES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images with boxes of all classes but the first, whose categories have ids of their own."""
    folder = drawn(tmp_path_factory.mktemp("data"), {"val": range(12)})
    data, _ = evaluate.open_data(str(folder / "val.txt"), "val", CLASSES, {})
    return replace(data, category_ids=np.arange(len(CLASSES)) * 10 + 7)


def test_only_a_model_with_added_classes_has_unlabeled_classes(data):
    assert unlabeled_classes(data, (5,)) == ["cat"]
    assert unlabeled_classes(data, ()) == []
    background = data.keep_boxes(np.zeros(len(data.labels), bool))
    assert unlabeled_classes(background, (5,)) == []  # every detection in images without objects is false


@pytest.mark.parametrize("unlabeled, errors", [(["cat"], [1]), ([], [2])])
def test_detections_of_unlabeled_classes_are_no_mistakes(data, tmp_path, monkeypatch, unlabeled, errors):
    detections = [
        {"image_id": int(data.image_ids[0]), "category_id": number, "bbox": [1.0, 1.0, 2.0, 2.0], "score": 0.9}
        for number in (7, 17)
    ]
    found = []
    monkeypatch.setattr(evaluation_results, "write", lambda *args: found.extend(args[3].comparisons))
    results = {"settings": {"max_detections": 300} | ({"unlabeled": unlabeled} if unlabeled else {})}
    write_report(tmp_path, data, detections, results, 0.3)
    assert [int(one.false.sum()) for one in found[:1]] == errors
    assert sum(int(one.false.sum()) for one in found[1:]) == 0
