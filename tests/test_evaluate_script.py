"""evaluate.py: one number, files that others can use, and nothing overwritten."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from trained import tiny_checkpoint

import evaluate
import nets
from datasets.annotations import DataError
from evaluate import Config, main
from utils import metrics
from utils.config import override
from utils.detector import Detector

FILES = ["confusion_matrix.png", "detections.json", "ground_truth.json", "metrics.json", "precision_recall.png"]


@pytest.fixture
def weights(tmp_path):
    return tiny_checkpoint(tmp_path / "runs/a/best.pt")


def run(weights, data, output, **more):
    more = {"workers": 0, "device": "cpu", "confidence": 0.01, "show_confidence": 0.4, **more}
    return main(Config(checkpoint=str(weights), data=str(data), output=output and str(output), **more))


def read(folder, name):
    return json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def pycocotools_on(folder):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "ground_truth.json"))
        evaluator = COCOeval(truth, truth.loadRes(str(folder / "detections.json")), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return dict(zip(metrics.FIGURES, evaluator.stats.tolist(), strict=True))


def with_boxes_of(weights, data):
    """The pictures of an annotation file, with what the model finds in them, a little moved, as their boxes."""
    names = [line.split()[0] for line in data.read_text().splitlines()]
    found = Detector(weights, confidence=0.4, nms_iou=0.3, device="cpu")([data.parent / name for name in names])
    rng, lines = np.random.default_rng(0), []
    for name, one in zip(names, found, strict=True):
        boxes = np.clip(one.boxes + rng.normal(0, 0.7, one.boxes.shape), 0, 44)
        rows = [(*box, label) for box, label in zip(boxes.tolist(), one.labels, strict=True)]
        lines.append(
            " ".join([name, *(",".join(map(str, row)) for row in rows if row[2] - row[0] > 2 < row[3] - row[1])])
        )
    data.write_text("\n".join(lines))
    return data


def test_pycocotools_on_the_written_files_gives_the_same_figures(weights, painted, tmp_path, capsys):
    """The fourth promise of the design: one number."""
    figures = run(weights, with_boxes_of(weights, painted(12, "val")), tmp_path / "out")
    written = read(tmp_path / "out", "metrics")
    assert 0.02 < figures["AP"] < 0.98 and all(0 < row["AP"] < 1 for row in written["per_class"].values())
    for name, value in pycocotools_on(tmp_path / "out").items():
        assert written[name] == figures[name] == pytest.approx(value, abs=1e-12)
    assert set(written["per_class"]) == {"red", "blue"}
    said = capsys.readouterr().out
    assert f"mAP50-95 {figures['AP']:.4f}" in said and f"by {metrics.BACKEND.name}" in said
    assert "IoU=" not in said  # no table of pycocotools


def test_files_of_the_issue_are_there_and_worst_pictures_are_drawn(weights, painted, tmp_path, capsys):
    run(weights, painted(5, "val"), tmp_path / "out", worst=2, show_confidence=0.9999)  # all boxes are missed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*FILES, "worst_01.jpg", "worst_02.jpg"]
    said = capsys.readouterr().out.splitlines()
    (first,) = (line for line in said if line.strip().startswith("worst_01.jpg"))
    assert first.split()[1:5] == ["3", "missed", "0", "false"] and first.endswith("val_3.png")


def test_own_ids_of_coco_data_come_back(weights, painted, tmp_path):
    """Pitfall 11: categories 90 and 3, pictures 500 and 40, and equal names in two folders."""
    painted(4)
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.1.png").write_bytes((tmp_path / "train_1.png").read_bytes())
    truth = {
        "images": [
            {"id": i, "file_name": f"{f}/a.1.png", "width": 64, "height": 48} for i, f in ((500, "x"), (40, "y"))
        ],
        "categories": [{"id": 90, "name": "red"}, {"id": 3, "name": "blue"}],
        "annotations": [
            {"id": 8, "image_id": 500, "category_id": 90, "bbox": [5, 5, 20, 20], "area": 400, "iscrowd": 0},
            {"id": 9, "image_id": 40, "category_id": 3, "bbox": [5, 5, 20, 20], "area": 33, "iscrowd": 1},
        ],
    }
    (tmp_path / "coco.json").write_text(json.dumps(truth))
    run(weights, tmp_path / "coco.json", tmp_path / "out")
    detections, written = read(tmp_path / "out", "detections"), read(tmp_path / "out", "ground_truth")
    assert {d["image_id"] for d in detections} == {500, 40} and {d["category_id"] for d in detections} == {90, 3}
    same = {a["image_id"]: a for a in written["annotations"]}
    for annotation in truth["annotations"]:
        for key in ("category_id", "bbox", "area", "iscrowd"):
            assert same[annotation["image_id"]][key] == annotation[key]
    assert pycocotools_on(tmp_path / "out")["AP"] == pytest.approx(read(tmp_path / "out", "metrics")["AP"], abs=1e-12)


def test_eval_without_detections_writes_zeros(weights, painted, tmp_path):
    figures = run(weights, painted(4, "val"), tmp_path / "out", confidence=0.9999)
    assert figures["AP"] == figures["AR100"] == 0.0 and read(tmp_path / "out", "detections") == []


def test_data_without_boxes_are_said_to_have_none(weights, painted, tmp_path, capsys):
    figures = run(weights, painted(1, "val"), tmp_path / "out")
    assert figures["AP"] == -1 and "has no boxes: there is nothing to measure" in capsys.readouterr().out


def test_without_output_every_evaluation_gets_a_folder_beside_the_checkpoint(weights, painted, tmp_path):
    data = painted(3, "val")
    for _ in range(2):
        run(weights, data, None)
    folders = sorted(path for path in weights.parent.iterdir() if path.is_dir())
    assert [path.name.rpartition("-")[2] for path in folders] == ["1", "2"]
    assert all((folder / "metrics.json").exists() for folder in folders)


def test_named_folder_keeps_what_is_not_of_an_evaluation(weights, painted, tmp_path, capsys):
    data, out = painted(5, "val"), tmp_path / "out"
    run(weights, data, out, worst=3)
    assert "replacing" not in capsys.readouterr().out
    (out / "notes.txt").write_text("mine")
    run(weights, data, out, worst=1)
    assert "replacing 8 files" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES, "notes.txt", "worst_01.jpg"])


def test_constants_follow_the_training_unless_given(painted, tmp_path, capsys):
    val, other = painted(3, "val"), painted(4, "other")
    text = val.read_text().splitlines()
    val.write_text("\n".join([text[0], text[1] + " 5,5,5,9,0", *text[2:]]))
    with pytest.raises(DataError, match="no area"):
        run(tiny_checkpoint(tmp_path / "a/best.pt", val=str(val)), val, tmp_path / "out")
    weights = tiny_checkpoint(tmp_path / "b/best.pt", val=str(val), bad_boxes="drop")
    main(Config(checkpoint=str(weights), output=str(tmp_path / "out"), workers=0, device="cpu"))
    assert read(tmp_path / "out", "metrics")["settings"]["data"] == str(val)
    assert read(tmp_path / "out", "metrics")["settings"]["image_size"] == [64, 96]
    assert "boxes without area, left out: 1" in capsys.readouterr().out
    run(weights, other, tmp_path / "out", image_size=(32, 64))
    assert read(tmp_path / "out", "metrics")["settings"]["image_size"] == [32, 64]
    assert len(read(tmp_path / "out", "ground_truth")["images"]) == 4


def test_official_weights_need_data_and_put_their_folder_into_runs(painted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("red\nblue\n")
    torch.save({"model": nets.build("yolox_nano", 2).state_dict()}, tmp_path / "w.pth")
    known = {"model": "yolox_nano", "classes": "names.txt", "image_size": (64, 64)}
    with pytest.raises(DataError, match="data= is missing"):
        main(Config(checkpoint="w.pth", device="cpu", **known))
    run("w.pth", painted(2, "val"), None, **known)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("evaluation-") and (folder / "metrics.json").exists()


def test_class_of_the_data_that_the_model_does_not_know_is_an_error(painted, tmp_path):
    (tmp_path / "classes.txt").write_text("red\ngreen\n")
    with pytest.raises(DataError, match="green"):
        run(tiny_checkpoint(tmp_path / "best.pt"), painted(4, "val"), tmp_path / "out")


def test_batch_size_and_workers_do_not_change_the_figures(weights, painted, tmp_path):
    data = with_boxes_of(weights, painted(7, "val"))
    a = run(weights, data, tmp_path / "a", batch_size=3)
    b = run(weights, data, tmp_path / "b", batch_size=16, workers=2)
    assert a["AP"] > 0
    for name in metrics.FIGURES:
        assert a[name] == pytest.approx(b[name], abs=1e-6)


def test_overrides_by_name_as_on_the_command_line():
    cfg = override(
        Config(), ["checkpoint=a.pt", "data=d", "output=o", "image_size=320,640", "nms_iou=.5", "batch_size=2"]
    )
    assert (cfg.checkpoint, cfg.image_size, cfg.nms_iou, cfg.batch_size) == ("a.pt", (320, 640), 0.5, 2)


def test_table_lines_up_also_with_chinese_names():
    row = {"boxes": 3, **dict.fromkeys(evaluate.PARTS_OF_TABLE, 0.5)}
    figures = {**dict.fromkeys(metrics.FIGURES, 0.25), "AP_small": -1.0, "per_class": {"红细胞": row, "platelets": row}}
    lines = [line for line in evaluate.figures_text(figures).splitlines() if "0.5000" in line]
    assert lines[0].startswith("红细胞   ") and lines[0][6:] == lines[1][9:]  # six columns of nine
    assert len(lines) == 3 and lines[2].split()[:2] == ["mean", "6"]


def test_missed_and_false_boxes_have_their_colours():
    from utils.mistakes import compare

    truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"image_id": 1, "category_id": 1, "bbox": [20, 40, 60, 60]},
            {"image_id": 1, "category_id": 1, "bbox": [120, 40, 60, 60]},
        ],
    }
    found = [
        {"image_id": 1, "category_id": 1, "bbox": box, "score": 0.9} for box in ([20, 40, 60, 60], [220, 40, 60, 60])
    ]
    drawn = evaluate.draw_mistakes(np.zeros((140, 300, 3), np.uint8), compare(truth, found, 0.5)[0], ("a",))
    colours = [tuple(drawn[100, x].tolist()) for x in (50, 150, 250)]
    assert colours == [evaluate.RIGHT, evaluate.MISSED, evaluate.FALSE]


@pytest.mark.slow
def test_official_nano_on_real_pictures_has_its_published_figures(shared, tmp_path):
    figures = main(
        Config(
            checkpoint=str(shared / "weights/yolox_nano.pth"),
            model="yolox_nano",
            data=str(shared / "data/coco_val326/instances_val2017_core326.json"),
            output=str(tmp_path / "out"),
            device="cpu",
            workers=0,
        )
    )
    assert figures["AP"] == pytest.approx(0.2880, abs=5e-4) and figures["AP50"] == pytest.approx(0.4480, abs=5e-4)
