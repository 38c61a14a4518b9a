"""evaluate.py: one mAP in training, evaluation and pycocotools; result files for other programs."""

import contextlib
import errno
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from lively import tiny_checkpoint
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from refused import refused, told
from small import config, log_of, train_quietly

import evaluate
import nets
from datasets.errors import DataError
from deploy.detector import Detector
from evaluate import Config, main
from metrics.coco import COCO_METRICS, EVALUATOR
from utils.config import ConfigError

FILES = ["detections.json", "ground_truth.json", "metrics.json", "report.html"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("trained") / "best.pt")


def run(weights, data, output, **more):
    more = {"workers": 0, "device": "cpu", "confidence": 0.01, "show_confidence": 0.4, **more}
    return main(Config(checkpoint=str(weights), data=str(data), output=output and str(output), **more))


def test_all_gpus_are_refused_and_not_left_idle(weights):
    with refused(ConfigError, "device=cuda:all", "torchrun", "device=cuda"):
        main(Config(checkpoint=str(weights), device="cuda:all"))


def read(folder, name):
    return json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))


def pycocotools_on(folder):
    """The COCO metrics that pycocotools computes from the written files."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "ground_truth.json"))
        evaluator = COCOeval(truth, truth.loadRes(str(folder / "detections.json")), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return dict(zip(COCO_METRICS, evaluator.stats.tolist(), strict=True))


def with_boxes_of(weights, data):
    """Replaces the boxes of an annotation file by the detections of the model, a little moved."""
    names = [line.split()[0] for line in data.read_text().splitlines()]
    results = Detector(weights, confidence=0.4, nms_iou=0.3, device="cpu")([data.parent / name for name in names])
    rng, lines = np.random.default_rng(0), []
    for name, one in zip(names, results, strict=True):
        boxes = np.clip(one.boxes + rng.normal(0, 0.7, one.boxes.shape), 0, 44)
        rows = [(*box, label) for box, label in zip(boxes.tolist(), one.labels, strict=True)]
        lines.append(
            " ".join([name, *(",".join(map(str, row)) for row in rows if row[2] - row[0] > 2 < row[3] - row[1])])
        )
    data.write_text("\n".join(lines))
    return data


def test_training_and_evaluation_and_pycocotools_give_the_same_map(demo_images, tmp_path, capsys):
    folder, best, _ = train_quietly(config(demo_images, tmp_path / "runs"))
    metrics = main(Config(str(folder / "best.pt"), output=str(tmp_path / "out"), batch_size=4, workers=0, device="cpu"))
    assert 0 < metrics["AP"] == best == max(float(row["AP"]) for row in log_of(folder))
    written, reference = read(tmp_path / "out", "metrics"), pycocotools_on(tmp_path / "out")
    for name in COCO_METRICS:
        assert written[name] == metrics[name] == pytest.approx(reference[name], abs=1e-12)
    printed = capsys.readouterr().out
    assert f"mAP50-95 {100 * best:.2f}" in printed and f"by {EVALUATOR}" in printed
    assert "IoU=" not in printed  # the table of pycocotools


def test_pycocotools_gives_the_written_metrics_of_many_detections(weights, painted, tmp_path):
    metrics = run(weights, with_boxes_of(weights, painted(8, "val")), tmp_path / "out")
    written = read(tmp_path / "out", "metrics")
    assert 0.02 < metrics["AP"] < 0.98 and all(0 < row["AP"] < 1 for row in written["per_class"].values())
    for name, value in pycocotools_on(tmp_path / "out").items():
        assert written[name] == metrics[name] == pytest.approx(value, abs=1e-12)
    assert set(written["per_class"]) == {"red", "blue"}


def test_results_have_the_ids_of_coco_data(weights, painted, tmp_path):
    """Categories 90 and 3, images 500 and 40, and equal file names in two folders."""
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


def test_no_detections_give_zeros(weights, painted, tmp_path):
    metrics = run(weights, painted(4, "val"), tmp_path / "out", confidence=0.9999)
    assert metrics["AP"] == metrics["AR100"] == 0.0 and read(tmp_path / "out", "detections") == []


def test_data_without_boxes_are_reported(weights, painted, tmp_path, capsys):
    metrics = run(weights, painted(1, "val"), tmp_path / "out")
    assert metrics["AP"] == -1
    told(capsys.readouterr().out, f"{tmp_path / 'val.txt'} has no boxes")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch_size": 0}, ["batch_size=0", "at least 1"]),
        ({"show_confidence": 1.5}, ["show_confidence=1.5", "at most 1"]),
        ({"split": "foo"}, ["split=foo", "train, val, test, all"]),
    ],
)
def test_limits_and_words_are_checked(weights, painted, tmp_path, changes, named):
    with refused(ConfigError, *named):
        run(weights, painted(1, "val"), tmp_path / "out", **changes)


def test_without_output_every_evaluation_gets_a_folder_next_to_the_checkpoint(painted, tmp_path):
    weights, data = tiny_checkpoint(tmp_path / "runs/a/best.pt"), painted(2, "val")
    for _ in range(2):
        run(weights, data, None)
    folders = sorted(path for path in weights.parent.iterdir() if path.is_dir())
    assert [path.name.rpartition("-")[2] for path in folders] == ["1", "2"]
    assert all((folder / "metrics.json").exists() for folder in folders)


def test_a_named_folder_keeps_files_that_are_not_results(weights, painted, tmp_path, capsys):
    data, out = painted(5, "val"), tmp_path / "out"
    run(weights, data, out)
    assert "replacing" not in capsys.readouterr().out
    (out / "notes.txt").write_text("mine")
    run(weights, data, out, report=False)
    assert "replacing 4 files" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == sorted([*FILES[:-1], "notes.txt"])


def test_files_that_are_not_of_an_earlier_evaluation_are_kept(weights, painted, tmp_path, monkeypatch):
    data, out = painted(2, "val"), tmp_path / "out"
    run(weights, data, out)
    monkeypatch.setattr(evaluate, "evaluate", None)
    with refused(ConfigError, f"output={out}", out / "ground_truth.json"):
        run(weights, out / "ground_truth.json", out)
    for text in ("", "[]", '{"AP": 1}'):
        (out / "metrics.json").write_text(text)
        with refused(ConfigError, f"output={out}", out / "metrics.json"):
            run(weights, data, out)


def read_only(*_, **__):
    raise OSError(errno.EROFS, "read-only")


def test_an_output_that_cannot_be_written_is_refused_before_the_evaluation(weights, painted, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "evaluate", None)
    (tmp_path / "file").touch()
    for output in ("file", "file/new"):
        with refused(ConfigError, f"output={tmp_path / output}", tmp_path / "file"):
            run(weights, painted(1, "val"), tmp_path / output)
    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    for output in (tmp_path / "new", None):
        with refused(ConfigError, "output=", "read-only"):
            run(weights, painted(1, "val"), output)


def test_options_follow_the_training_unless_given(painted, tmp_path, capsys):
    val, other = painted(3, "val"), painted(4, "other")
    text = val.read_text().splitlines()
    val.write_text("\n".join([text[0], text[1] + " 5,5,5,9,0", *text[2:]]))
    with refused(DataError, "val.txt:2", "5,5,5,9", "bad_boxes="):
        run(tiny_checkpoint(tmp_path / "a/best.pt", val=str(val), bad_boxes="error"), val, tmp_path / "out")
    weights = tiny_checkpoint(tmp_path / "b/best.pt", val=str(val))
    main(Config(checkpoint=str(weights), output=str(tmp_path / "out"), workers=0, device="cpu"))
    assert read(tmp_path / "out", "metrics")["settings"]["data"] == str(val)
    assert read(tmp_path / "out", "metrics")["settings"]["image_size"] == [64, 96]
    told(capsys.readouterr().out, val, "left out: 1")
    run(weights, other, tmp_path / "out", image_size=(32, 64))
    assert read(tmp_path / "out", "metrics")["settings"]["image_size"] == [32, 64]
    assert len(read(tmp_path / "out", "ground_truth")["images"]) == 4


def test_another_split_is_not_measured_on_the_validation_file_of_the_training(painted, tmp_path):
    """Such as val.txt of a run with added classes, whose data have a test split."""
    val = str(painted(3, "val"))
    weights = tiny_checkpoint(tmp_path / "a/best.pt", train="more", val=val)
    with refused(ConfigError, "split=test", val, "data="):
        main(Config(checkpoint=str(weights), split="test", output=str(tmp_path / "out"), device="cpu"))
    run(weights, val, tmp_path / "out", split="test")  # the user has named the file


def test_weights_of_a_model_need_data_and_write_to_runs(painted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("red\nblue\n")
    torch.save({"model": nets.build("tiny_n", 2).state_dict()}, tmp_path / "w.pth")
    known = {"model": "tiny_n", "classes": "names.txt", "image_size": (64, 64)}
    with refused(DataError, "data="):
        main(Config(checkpoint="w.pth", device="cpu", **known))
    run("w.pth", painted(2, "val"), None, **known)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("evaluation-") and (folder / "metrics.json").exists()


def test_a_class_that_the_model_does_not_have_is_an_error(weights, painted, tmp_path):
    (tmp_path / "classes.txt").write_text("red\ngreen\n")
    with refused(DataError, "val.txt:2", "'green'", "(red, blue)"):
        run(weights, painted(4, "val"), tmp_path / "out")


@pytest.mark.shared_memory
def test_batch_size_and_workers_do_not_change_the_metrics(weights, painted, tmp_path):
    data = with_boxes_of(weights, painted(5, "val"))
    a = run(weights, data, tmp_path / "a", batch_size=3)
    b = run(weights, data, tmp_path / "b", batch_size=16, workers=2)
    assert a["AP"] > 0
    for name in COCO_METRICS:
        assert a[name] == pytest.approx(b[name], abs=1e-6)


@pytest.mark.slow
def test_official_yolox_nano_on_real_images_has_its_published_ap(shared, tmp_path):
    data, weights = shared / "data/coco_val326/instances_val2017_core326.json", shared / "weights/yolox_nano.pth"
    metrics = run(weights, data, tmp_path / "out", model="yolox_nano", confidence=0.001)
    assert metrics["AP"] == pytest.approx(0.2880, abs=5e-4) and metrics["AP50"] == pytest.approx(0.4480, abs=5e-4)


def test_other_data_have_other_folders_of_images(painted, tmp_path):
    """image_root= of the training is for its own data: data= elsewhere has its images next to it."""
    val = painted(3, "val")
    elsewhere = tmp_path / "elsewhere" / "coco.json"
    elsewhere.parent.mkdir()
    images = [{"id": 1, "file_name": "val_1.png", "width": 64, "height": 48}]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [5, 5, 20, 20], "area": 400, "iscrowd": 0}
    names = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
    elsewhere.write_text(json.dumps({"images": images, "annotations": [box], "categories": names}))
    own = elsewhere.parent / "val_1.png"
    own.write_bytes((tmp_path / "val_2.png").read_bytes())
    weights = tiny_checkpoint(tmp_path / "a/best.pt", val=str(val), image_root=str(tmp_path))
    run(weights, elsewhere, tmp_path / "out")
    assert read(tmp_path / "out", "ground_truth")["images"][0]["file_name"] == "val_1.png"
    run(weights, elsewhere, tmp_path / "out", image_root=str(tmp_path))
    assert read(tmp_path / "out", "ground_truth")["images"][0]["file_name"] == str(tmp_path / "val_1.png")
    run(weights, val, tmp_path / "out")


def test_the_command_fails_if_nothing_is_measured(weights, painted, tmp_path, capsys):
    words = [f"checkpoint={weights}", f"output={tmp_path / 'out'}", "workers=0", "device=cpu"]
    with pytest.raises(SystemExit) as ended:
        evaluate.command([*words, f"data={painted(1, 'val')}"])
    assert ended.value.code not in (None, 0)
    told(capsys.readouterr().out, "mAP50-95 -")
    assert (tmp_path / "out" / "metrics.json").exists()
    evaluate.command([*words, f"data={painted(3, 'val')}"])


@pytest.mark.parametrize("gone", ["list", "images"])
def test_a_checkpoint_without_its_validation_data_asks_for_data(painted, tmp_path, gone):
    val = painted(3, "val")
    weights = tiny_checkpoint(tmp_path / "a/best.pt", val=str(val))
    for path in [val] if gone == "list" else tmp_path.glob("val_*.png"):
        path.unlink()
    with refused((DataError, OSError), weights, val, "data="):
        main(Config(checkpoint=str(weights), output=str(tmp_path / "out"), device="cpu"))
    fix = "image_root=" if gone == "images" else "data="
    with refused((DataError, OSError), fix) as caught:
        main(Config(checkpoint=str(weights), output=str(tmp_path / "out"), device="cpu"))
    assert len(str(caught.value).splitlines()) <= 3  # not one for each image
    with pytest.raises((DataError, OSError)) as caught:  # data that the user named are no data of the checkpoint
        run(weights, val, tmp_path / "out")
    assert str(weights) not in str(caught.value)


@pytest.mark.parametrize("are_moved", (False, True))
def test_an_evaluation_on_training_images_says_so(painted, tmp_path, capsys, are_moved):
    """Of the list that val=.2 has written, also after the folder of the images was renamed."""
    weights = tiny_checkpoint(tmp_path / "run/best.pt", val="run/val.txt", train="data")
    every, others = painted(4, "a"), painted(2, "b")
    (tmp_path / "classes.txt").write_text("red\nblue\n")
    shutil.copy(tmp_path / "classes.txt", tmp_path / "run")
    place = tmp_path if not are_moved else Path("/before") / tmp_path.name
    lines = every.read_text().splitlines()[1:]
    (tmp_path / "run/train.txt").write_text("".join(f"{place}/{line}\n" for line in lines))
    counts = []
    for data in (every, others):
        run(weights, data, tmp_path / "out")
        warnings = [line for line in capsys.readouterr().out.splitlines() if "training images of this" in line]
        counts.append([line.partition(": ")[2].rpartition(": ")[2].partition(" are")[0] for line in warnings])
    assert counts == [["3 of 4 images"], []]


def test_data_without_a_class_of_the_model_are_one_line(weights, painted, tmp_path):
    data = painted(3)
    (tmp_path / "classes.txt").write_text("green\nred light\n")
    with refused(DataError, data, "(green, red light)", "(red, blue)") as caught:
        run(weights, data, tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 2


def test_a_moved_run_has_its_validation_list_with_it(painted, tmp_path):
    """Also a copy of a run: the list of the other folder may be another one by now."""
    val = painted(2, "val")
    weights = tiny_checkpoint(tmp_path / "moved/best.pt", val=str(tmp_path / "before/val.txt"))
    (tmp_path / "before").mkdir()
    (tmp_path / "before/val.txt").write_text(val.read_text().splitlines()[0] + "\n")
    shutil.copy(val, tmp_path / "moved/val.txt")
    (tmp_path / "moved/classes.txt").write_text("red\nblue\n")
    main(Config(checkpoint=str(weights), output=str(tmp_path / "out"), device="cpu", image_root=str(tmp_path)))
    assert len(read(tmp_path / "out", "ground_truth")["images"]) == 2


def test_an_image_that_no_jpeg_can_hold_does_not_cost_the_report(weights, tmp_path):
    cv2.imwrite(str(tmp_path / "wide.png"), np.full((16, 66_000, 3), 90, np.uint8))
    (tmp_path / "val.txt").write_text("wide.png 100,1,60000,15,0\n")
    (tmp_path / "classes.txt").write_text("red\nblue\n")
    run(weights, tmp_path / "val.txt", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "data:image/jpeg" in page and '"problem":""' in page


def test_an_evaluation_and_its_report_name_images_with_more_boxes_than_are_counted(weights, painted, tmp_path, capsys):
    data = painted(2, "val")
    boxes = "".join(f" {n % 30},{n // 30},{n % 30 + 9},{n // 30 + 9},1" for n in range(320))
    data.write_text(f"val_0.png{boxes}\nval_1.png 1,1,9,9,0\n")
    run(weights, data, tmp_path / "out")
    for text in (capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text(encoding="utf-8")):
        told(text, "1 of 2 images", "more than 100 boxes of blue", "220 of 321", "max_detections=300", "20 of 321")
    run(weights, data, tmp_path / "out", max_detections=400)
    told(capsys.readouterr().out, "100 boxes of blue")
    assert "max_detections=300" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("confidence", "is_named"), [(0.001, False), (0.01, False), (0.25, True)])
def test_an_evaluation_without_the_end_of_the_curves_says_so(weights, painted, tmp_path, capsys, confidence, is_named):
    run(weights, painted(2, "val"), tmp_path / "out", confidence=confidence)
    assert any("confidence=" in line and "mAP" in line for line in capsys.readouterr().out.splitlines()) == is_named


@pytest.mark.skipif(os.name == "nt", reason="a limit of the size of files stands for a full disk")
def test_a_full_disk_is_named_with_the_file(weights, painted, tmp_path, capsys):
    """The limit is passed by each of the files in turn."""
    import resource

    data, seen = painted(4, "val"), set()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10, 3000, 12_000, 14_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
        try:
            run(weights, data, tmp_path / str(limit), show_confidence=0.99)
        except OSError as error:
            seen.add(Path(str(error.filename)).name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert seen <= set(FILES) and len(seen) > 1
