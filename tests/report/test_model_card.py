"""card.md of a run folder: what it holds, when it is written, and that no name can change its form."""

import csv
import html
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import ROOT, spans, tables, text_of
from refused import told
from small import config, train_quietly

import nets
import train
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from report import model_card
from utils.checkpoint import load

HOSTILE = [
    "<script>alert(1)</script>", "![x](http://a.b/c.png)", "[x](javascript:x)", "a|b", "`code`", "**bold** _em_ __b__",
    "www.example.org", "https://example.org", "a@example.org", "#1 & &lt; $x$", "~~no~~ \\| \\", "snake_case name", "鸟", "@user",
    "a\u202eb",
]  # fmt: skip


@pytest.fixture(scope="module")
def run_folder(demo_images, tmp_path_factory) -> Path:
    """A run of three epochs, evaluated after the second and the last."""
    cfg = config(demo_images, tmp_path_factory.mktemp("card"), epochs=3, evaluate_every=2, mosaic=0.25)
    return train_quietly(cfg)[0]


def rows_of(text: str) -> list[list[str]]:
    """The rows of all tables of a card, with entities in place of characters resolved."""
    return [[html.unescape(cell) for cell in row] for table in tables(text) for row in table]


def test_the_card_holds_metrics_data_constants_licenses_and_limits(run_folder, demo_images):
    text = text_of(run_folder / "card.md")
    assert run_folder.name in text.splitlines()[0] and "Apache-2.0" in text
    rows = rows_of(text)
    with open(run_folder / "log.csv", encoding="utf-8") as file:
        evaluated = [row for row in csv.DictReader(file) if row["AP"]]
    best = max(evaluated, key=lambda row: float(row["AP"]))
    assert load(run_folder / "best.pt")["epoch"] == int(best["epoch"])
    assert ["COCO metric", f"best.pt (epoch {best['epoch']})", "epoch 3"] in rows
    for name in ("AP", "AP50", "AR100"):
        assert [name, f"{100 * float(best[name]):.2f}", f"{100 * float(evaluated[-1][name]):.2f}"] in rows
    assert ["images", "9", "5"] in rows and [
        "source",
        *(str(demo_images / f"{p}.txt") for p in ("train", "val")),
    ] in rows
    config = load(run_folder / "best.pt")["config"]
    defaults = {name: train.show(value) for name, value in asdict(train.Config()).items()}
    assert ["mosaic", "0.25", defaults["mosaic"]] in rows and ["flip", "0.5", "0.5"] not in rows
    changed = {name for name, value in config.items() if train.show(value) != defaults[name]}
    assert changed == {row[0] for row in rows if row[0] in config and row[2:] == [defaults[row[0]]]}


def test_the_counts_of_classes_are_those_of_the_data(run_folder, demo_images):
    sources = [str(demo_images / f"{split}.txt") for split in ("train", "val")]
    data = read_train_and_val(*sources, read_options(), lambda *_: None)
    table = next(table for table in tables(text_of(run_folder / "card.md")) if table[0][0] == "class")
    rows = [[int(cell) for cell in row[1:4]] for row in table[1:]]
    counts = (data[0].images_per_class(), data[0].boxes_per_class(), data[1].boxes_per_class())
    assert rows == [list(row) for row in zip(*(c.tolist() for c in counts), strict=True)] and len(rows) > 1


def test_the_card_names_no_user_host_and_command_line(run_folder):
    import json

    start = json.loads(text_of(run_folder / "environment.json"))
    rows = rows_of(text_of(run_folder / "card.md"))
    assert not {"host", "pid", "command", "machine"} & {row[0] for row in rows}
    assert ["torch", start["torch"]] in rows and ["started", start["started"]] in rows


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_changes_the_form_of_a_table(name):
    markdown = pytest.importorskip("markdown", reason="markdown, which tensorboard needs, renders the card")
    lines = model_card.table(["class", "boxes"], [(name, 1), ("b", 2)], 1)
    shown = markdown.markdown("\n".join(lines), extensions=["tables"])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown, re.DOTALL)
    assert [html.unescape(cell) for cell in cells] == [model_card.printable(name), "1", "b", "2"]
    assert not re.search(r"<(?!/?(table|thead|tbody|tr|th|td)\b)", shown)
    assert not re.search(r"https?://|www\.|@\w", lines[-2])  # GitHub turns these into links


def test_simple_names_stay_readable():
    for name in ("traffic_light", "dog (small)", "50 %", "a-b.c, d", "鸟", "data/mine/train.txt", "0.0005"):
        assert model_card.plain(name) == name


@pytest.mark.parametrize(
    ("model", "weights", "expected"),
    [
        ("yolox_s", "coco", ["yolox_s.pth", "Megvii", "Apache-2.0"]),
        ("yolov9_c", "coco", ["v9-c.pt", "MultimediaTechLab", "MIT"]),
        ("ppyoloe_s", "coco", ["ppyoloe_plus_crn_s_80e_coco.pdparams", "PaddlePaddle", "Apache-2.0", "Objects365"]),
        ("picodet_s", "coco", ["picodet_s_416_coco_lcnet.pdparams", "PaddlePaddle", "Apache-2.0", "ImageNet"]),
        ("ppyoloe_m", "objects365", ["ppyoloe_crn_m_obj365_pretrained.pdparams", "PaddlePaddle", "Objects365"]),
        ("yolox_s", "objects365", ["objects365", "*to fill in*"]),  # a model without such weights
        ("yolov9_t", "https://mirror.example", ["v9-t.pt", "https&#58;//mirror.example"]),
        ("yolox_s", "mine.pt", ["mine.pt", "*to fill in*"]),
        ("yolox_s", None, ["none"]),
        ("tiny_n", "coco", ["coco", "*to fill in*"]),  # a family without official weights
    ],
)
def test_licenses_name_the_initial_weights(model, weights, expected):
    lines = "\n".join(model_card.licenses({"model": model, "weights": weights})).splitlines()
    told("\n".join(lines[:-1]), *expected)  # the last one is about the new model
    assert weights != "objects365" or "COCO" not in "\n".join(lines)


def test_authors_licenses_and_training_data_are_those_of_the_weights_page():
    rows = tables(text_of(ROOT / "WEIGHTS.md"))[0][1:]
    listed = {(spans(row[0])[0].rpartition("_")[0], row[2].partition(" (")[0], row[3]) for row in rows}
    assert listed == {(family, *facts[:2]) for family, facts in model_card.OFFICIAL.items()}
    of_coco = {(spans(row[0])[0].rpartition("_")[0], row[4]) for row in rows if "objects365" not in row[0]}
    assert of_coco == {(family, facts[2]) for family, facts in model_card.OFFICIAL.items()}
    assert set(model_card.OFFICIAL) == {name for name, family in nets.MODELS.items() if family.weights}


def test_a_run_that_was_not_evaluated_has_a_card_too(demo_images, tmp_path):
    cfg = config(demo_images, tmp_path, epochs=2, evaluate_every=2, save_every=1, patience=0, weights=None)
    seen = []
    original = model_card.write

    def write(*parts):
        original(*parts)
        seen.append(text_of(parts[1].folder / "card.md"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_card, "write", write)
        train_quietly(cfg)
    assert len(seen) == 2 and "Not evaluated yet." in seen[0] and "COCO metric" in seen[1]
    assert "1 of 2 epochs" in seen[0] and "2 of 2 epochs" in seen[1]


@pytest.mark.parametrize(("best", "columns"), [(1, ["best.pt (epoch 1)", "epoch 2"]), (2, ["best.pt (epoch 2)"])])
def test_a_run_whose_last_epoch_is_the_best_has_one_column_of_results(best, columns):
    state = SimpleNamespace(rows=[{"epoch": epoch, "AP": epoch / 10} for epoch in (1, 2)], best_epoch=best)
    (head, *rows) = tables("\n".join(model_card.results(state)))[0]
    assert head == ["COCO metric", *columns] and {len(row) for row in rows} == {len(head)}
