"""What a run says before it starts."""

import dataclasses

import pytest

import nets
from datasets.annotations import read_annotation_file
from utils import report


def data(tmp_path, name, text, classes=("cat", "dog")):
    (tmp_path / name).write_text(text)
    return read_annotation_file(str(tmp_path / name), classes)


@pytest.mark.parametrize("name, size, card", [("yolox_nano", (416, 416), 1.08), ("yolox_s", (640, 640), 26.8)])
def test_gflops_are_those_of_the_model_cards_without_their_batch_norms(name, size, card):
    model = nets.build(name, 80)
    assert 0.96 * card < report.gflops(model, size) <= card  # the cards count up to 4 % of batch norms too
    assert model.training


@pytest.mark.parametrize("size, card", [("t", 7.7), ("s", 26.4)])
def test_gflops_of_fused_yolov9_are_those_of_the_model_cards(size, card):
    """Of t only with class branches of 80 channels: such are the released weights."""
    like = nets.build("yolov9_t", 40).state_dict() if size == "t" else None
    assert abs(report.gflops(nets.build(f"yolov9_{size}", 80, like).fuse(), (640, 640)) - card) < 0.05


def test_model_text_tells_the_phases_apart():
    model = nets.build("yolox_nano", 80)
    text = report.model_text(model, "yolox_nano", (64, 64), [(3, ("backbone",)), (10, ())])
    outside = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("backbone"))
    assert f"epochs 1-3: backbone frozen, {outside / 1e6:.3f} M" in text
    assert "epochs 4-10: all 0.912 M" in text
    assert "frozen" not in report.model_text(model, "yolox_nano", (64, 64), [(0, ("backbone",)), (10, ())])
    model.add_selector()
    text = report.model_text(model, "yolox_nano", (64, 64), [(0, ()), (5, ("backbone", "neck", "head"))])
    head = sum(p.numel() for p in model.selector.parameters())
    assert f"epochs 1-5: backbone, neck, head frozen, {head / 1e6:.3f} M" in text


def test_1_the_table_counts_boxes_a_class(tmp_path):
    train = data(tmp_path, "a.txt", "a.jpg 0,0,5,5,0 0,0,5,5,0\nb.jpg\n")
    val = data(tmp_path, "b.txt", "c.jpg 0,0,5,5,1\n")
    rows = {line.split()[0]: line.split()[1:] for line in report.data_text(train, val).splitlines()}
    assert rows["pictures"] == ["2", "1"] and rows["empty"] == ["1", "0"]
    assert rows["cat"] == ["2", "0"] and rows["dog"] == ["0", "1"]


def test_phases_are_warned_of_only_where_they_leave_no_room():
    assert report.phase_warnings(50, 10, 10) == []
    assert len(report.phase_warnings(5, 5, 0)) == 1  # never thawed, but nothing to say of plain epochs
    assert "plain_epochs=10" in report.phase_warnings(20, 10, 10)[0]


def test_18_warnings_are_told_apart(tmp_path):
    train = data(tmp_path, "a.txt", "a.jpg 0,0,5,5,0\n")
    val = data(tmp_path, "b.txt", "a.jpg\n")
    words = " | ".join(report.data_warnings(train, val))
    assert "1 of 2 classes have no box" in words and "dog" in words
    assert "has no boxes" in words and "only 1 training" in words and "1 pictures are in train and in val" in words
    many = "".join(f"{i}.jpg 0,0,5,5,0 0,0,5,5,1\n" for i in range(60))
    good = data(tmp_path, "c.txt", many)
    assert report.data_warnings(good, data(tmp_path, "d.txt", "x.jpg 0,0,5,5,0\n")) == []


def test_24_too_little_shared_memory_is_said_beforehand(tmp_path, monkeypatch):
    kind = dataclasses.make_dataclass("Usage", ["free"])
    monkeypatch.setattr(report.shutil, "disk_usage", lambda _: kind(64 * 2**20))
    warning = report.shared_memory_warning(4, 32, (640, 640), str(tmp_path))
    assert "64 MiB free" in warning and "--shm-size" in warning
    assert report.shared_memory_warning(0, 32, (640, 640), str(tmp_path)) is None
    assert report.shared_memory_warning(1, 1, (64, 64), str(tmp_path)) is None
