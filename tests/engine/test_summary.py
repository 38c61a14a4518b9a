"""engine/summary.py: what a run prints before it starts."""

import dataclasses
import re

import numpy as np
import pytest
from files import read_annotation_file
from refused import told

import nets
from engine import hardware, summary
from engine.schedule import Plan, Schedule, curve_marks
from engine.state import State


def data(tmp_path, name, text, classes=("cat", "dog")):
    """Reads an annotation file with this text."""
    (tmp_path / name).write_text(text)
    return read_annotation_file(str(tmp_path / name), classes)


@pytest.mark.parametrize(
    "name, size, card",
    [("yolox_nano", (416, 416), 1.08), pytest.param("yolox_s", (640, 640), 26.8, marks=pytest.mark.slow)],
)
def test_gflops_of_yolox_are_those_of_the_model_cards_without_batch_norms(name, size, card):
    model = nets.build(name, 80)
    assert 0.96 * card < summary.gflops(model, size) <= card  # the cards also count batch norms, up to 4 %
    assert model.training


@pytest.mark.slow
@pytest.mark.parametrize("size, card", [("t", 7.7), ("s", 26.4)])
def test_gflops_of_fused_yolov9_are_those_of_the_model_cards(size, card):
    state = (
        nets.build("yolov9_t", 40).state_dict() if size == "t" else None
    )  # as released: class branches of 80 channels
    assert abs(summary.gflops(nets.build(f"yolov9_{size}", 80, state).fuse(), (640, 640)) - card) < 0.05


def test_model_text_lists_the_parameters_trained_in_each_phase():
    model = nets.build("tiny_n", 80)
    text = summary.model_text(model, "tiny_n", (64, 64), Plan(10, 3, 1, 1, 64, 64))
    outside = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("backbone"))
    total = sum(p.numel() for p in model.parameters())
    told(text, "1-3", f"{outside / 1e6:.3f} M", "4-10", f"{total / 1e6:.3f} M")
    assert "frozen" not in summary.model_text(model, "tiny_n", (64, 64), Plan(10, 0, 1, 1, 64, 64))
    assert "thawed" not in summary.model_text(model, "tiny_n", (64, 64), Plan(10, 10, 1, 1, 64, 64))


def test_learning_rate_is_printed_for_each_batch_size():
    def rates(plan, **changes):
        """Rate and images: of the constant, then of each phase."""
        text = summary.rate_text(Schedule(plan, "cosine", 0.01, 0.001, 1, 1, **changes))
        return [float(number) for number in re.findall(r"[\d.]+", text)]

    assert rates(Plan(9, 3, 1, 1, 128, 32)) == [0.01, 64, 0.02, 128, 0.005, 32]
    assert rates(Plan(9, 3, 1, 1, 128, 32), power=0.5, max_images=64) == [0.01, 64, 0.01, 128, 0.00707107, 32]
    assert rates(Plan(9, 0, 1, 1, 128, 64)) == [0.01, 64, 0.01, 64]


def test_curves_are_marked_at_the_thaw_and_at_the_no_augmentation_epochs():
    def marks(freeze_epochs, no_aug_epochs):
        return curve_marks(Plan(10, freeze_epochs, 1, 1, 64, 64), no_aug_epochs)

    assert marks(3, 2) == {"thaw": 4, "no augmentation": 9}
    assert marks(8, 2) == {"thaw, no augmentation": 9}
    assert marks(0, 0) == {} == marks(10, 10)


def test_the_last_lines_can_be_pasted_into_a_shell(tmp_path):
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "last.pt").touch()
    states = [State(({"epoch": epoch, "AP": 0.5},)) for epoch in (1, 0)]
    text = summary.next_steps(tmp_path / "my run", "my runs", states[0])
    assert f"checkpoint='{tmp_path}/my run/last.pt' source" in text and "best.pt" not in text
    (tmp_path / "my run" / "best.pt").touch()
    text, not_better = (summary.next_steps(tmp_path / "my run", "my runs", state) for state in states)
    assert len(not_better.splitlines()) == len(text.splitlines()) + 1  # says that best.pt holds the initial weights
    assert "--logdir 'my runs'\n" in text and f"checkpoint='{tmp_path}/my run/best.pt' source" in text
    text = summary.next_steps(tmp_path / "my run", "my runs", State(({"epoch": 1, "AP": 0.5},)), test="my data")
    assert "data='my data' split=test\n" in text


def test_data_table_counts_boxes_per_class(tmp_path):
    train = data(tmp_path, "a.txt", "a.jpg 0,0,5,5,0 0,0,5,5,0\nb.jpg\n")
    val = data(tmp_path, "b.txt", "c.jpg 0,0,5,5,1\n")
    rows = {line.rsplit(maxsplit=2)[0]: line.split()[-2:] for line in summary.data_text(train, val).splitlines()}
    assert rows["images"] == ["2", "1"] and rows["no boxes"] == ["1", "0"]
    assert rows["boxes: cat"] == ["2", "0"] and rows["boxes: dog"] == ["0", "1"]


def test_schedules_are_warned_about_only_if_they_leave_no_room():
    assert list(summary.schedule_warnings(50, 10, 10, "coco")) == []
    assert ["never thawed" in text for text in summary.schedule_warnings(5, 5, 1, "coco")] == [True]
    assert "no_aug_epochs=10" in next(summary.schedule_warnings(20, 10, 10, "coco"))
    assert "thaw" not in next(summary.schedule_warnings(1, 0, 4, "coco"))
    assert list(summary.schedule_warnings(50, 0, 10, None)) == []
    assert list(summary.schedule_warnings(50, 0, 10, None, 50)) == []
    assert "warmup_epochs=51" in next(summary.schedule_warnings(50, 0, 10, None, 51))
    assert "random backbone" in next(summary.schedule_warnings(50, 10, 10, None))


def test_data_warnings_name_what_is_wrong(tmp_path):
    train = data(tmp_path, "a.txt", "a.jpg 0,0,5,5,0\n")
    val = data(tmp_path, "b.txt", "a.jpg\n")
    warnings = list(summary.data_warnings(train, val))
    assert len(warnings) == 3
    told(" | ".join(warnings), "1 of 2", "dog", "only 1")
    many = "".join(f"{i}.jpg 0,0,5,5,0 0,0,5,5,1\n" for i in range(60))
    good = data(tmp_path, "c.txt", many)
    assert list(summary.data_warnings(good, data(tmp_path, "d.txt", "x.jpg 0,0,5,5,0 0,0,5,5,1\n"))) == []
    (unmeasured,) = summary.data_warnings(good, data(tmp_path, "f.txt", "x.jpg 0,0,5,5,0\n"))
    told(unmeasured, "(dog)", "val=")
    crowded = data(tmp_path, "e.txt", "x.jpg" + " 0,0,5,5,1" * 310 + "\ny.jpg 0,0,5,5,0\n")
    coco, limit = summary.data_warnings(good, crowded)
    told(coco, "1 of 2 images", "100 boxes of dog", "210 of 311")
    told(limit, "1 of 2 images", "max_detections=300", "10 of 311")


@pytest.mark.parametrize("side, is_named", [(20, True), (25, True), (28, False), (90, False)])
def test_a_larger_input_is_proposed_if_half_of_the_boxes_ask_for_a_quarter_more(tmp_path, side, is_named):
    train = data(tmp_path, "a.txt", f"a.jpg 0,0,{side},{side},0\n")
    assert summary.size_note(train, (416, 416), "corner") == ""  # the sizes of the images are not known
    train = dataclasses.replace(train, sizes=np.array([[416, 416]], np.int32))
    note = summary.size_note(train, (416, 416), "corner")
    assert ("image_size=" in note and "\n" not in note) == is_named


def test_boxes_are_larger_in_an_input_that_images_are_stretched_to(tmp_path):
    """An image of 832 x 416: boxes of 40 pixels have 20 with padding, and 28 where only the width shrinks."""
    train = data(tmp_path, "a.txt", "a.jpg 0,0,40,40,0\n")
    train = dataclasses.replace(train, sizes=np.array([[416, 832]], np.int32))
    assert "image_size=" in summary.size_note(train, (416, 416), "center")
    assert summary.size_note(train, (416, 416), "stretch") == ""


def scanned(annotations, digests, hashes):
    hashes = np.repeat(np.array(hashes, np.uint64)[:, None], 4, 1)
    return dataclasses.replace(annotations, digests=np.array(digests), hashes=hashes)


def test_copies_of_training_images_in_val_are_one_line_with_the_first_pair(tmp_path):
    """Equal files, y and 7, and nearly the same images, near; files that were not read, unread, are copies of nothing."""
    lines = "".join(f"{i}.jpg 0,0,5,5,0 0,0,5,5,1\n" for i in range(60))
    numbers = np.arange(60) * 0x1234567
    train = scanned(data(tmp_path, "a b.txt", lines), [*range(1, 60), 0], numbers)
    names = ("x", "y", "7", "near", "unread")
    val = data(tmp_path, "v.txt", "".join(f"{name}.jpg 0,0,5,5,0 0,0,5,5,1\n" for name in names))
    val = scanned(val, [100, 10, 8, 101, 0], [0x7777777777777777, 0, 0, numbers[5] ^ 1, 0])
    (copies,) = summary.data_warnings(train, val)
    told(copies, "3 of 5", "60 %", f"{tmp_path}/y.jpg of {tmp_path}/9.jpg")
    told(copies, "python -m tools.check", "val=.2")
    assert "\n" not in copies
    assert list(summary.data_warnings(train, val.select(np.array([0, 4])))) == []
    assert list(summary.data_warnings(train, dataclasses.replace(val, hashes=None))) == []


def test_too_little_shared_memory_is_a_warning(tmp_path, monkeypatch):
    usage = dataclasses.make_dataclass("Usage", ["free"])
    monkeypatch.setattr(hardware.shutil, "disk_usage", lambda _: usage(64 * 2**20))
    (warning,) = hardware.shared_memory_warning(4, 32, (640, 640), str(tmp_path))
    assert "64 MiB free" in warning and "--shm-size" in warning
    assert not list(hardware.shared_memory_warning(0, 32, (640, 640), str(tmp_path)))
    assert not list(hardware.shared_memory_warning(1, 1, (64, 64), str(tmp_path)))


def test_rare_classes_are_named_with_a_fix(tmp_path):
    lines = [f"{i}.jpg 0,0,5,5,0 0,0,5,5,0" + (" 0,0,5,5,1" if i < 3 else "") + "\n" for i in range(100)]
    train = data(tmp_path, "a.txt", "".join(lines))
    val = data(tmp_path, "b.txt", "x.jpg 0,0,5,5,0 0,0,5,5,1\n")
    (warning,) = summary.data_warnings(train, val)
    told(warning, "1 of 2", "dog: 3", 52, "repeat_rare=0.5")
    (warning,) = summary.data_warnings(train, val, repeat_rare=0.5)
    assert "dog: 3" in warning and "repeat_rare=" not in warning


def test_a_run_says_why_it_mirrors_no_images():
    sides, others = ("Left", "Right"), ("cat", "dog")
    assert all(word in summary.flip_note(None, sides) for word in ("Left", "Right", "flip=.5"))
    assert "flip=0" in summary.flip_note(0.5, sides)
    assert summary.flip_note(0, sides) == summary.flip_note(None, others) == summary.flip_note(0.5, others) == ""
