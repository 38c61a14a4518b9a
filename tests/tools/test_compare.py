"""tools.compare: the numbers of the run folders, in the order of mAP; broken folders have a reason; a page for the browser."""

import csv
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from browser import Browser, words_of
from refused import mentions, refused, told
from small import config, log_of, only_run

import train
from report import plots
from tools.compare import MAX_CLASSES, main
from tools.compared_runs import CUT, class_table, read_log, read_run, read_runs, repeats, table
from utils import checkpoint

HOSTILE = "<script>throw 1</script>&\"'猫 onload=alert(1)".replace("/", "∕")


def made(folder: Path, maps: list, classes=("a", "b"), seconds=30.0, **constants) -> Path:
    """A run folder with an epoch for each mAP; None: not evaluated."""
    folder.mkdir(parents=True)
    config = {
        "train": "t.txt",
        "val": "v.txt",
        "epochs": 9,
        "image_size": [64, 64],
        "name": folder.name,
        "repeat_rare": 0.0,
    }
    (folder / "config.json").write_text(json.dumps(config | constants), encoding="utf-8")
    with open(folder / "log.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "loss", "seconds", "images_per_second", "AP"])
        writer.writeheader()
        for epoch, value in enumerate(maps, 1):
            writer.writerow({"epoch": epoch, "seconds": seconds, "images_per_second": 205 / seconds, "AP": value})
    contents = {"config": {}, "classes": list(classes), "epoch": 1, "step": 1, "metrics": {}}
    checkpoint.save(folder / "best.pt", contents | {"model": {"x": torch.zeros(1)}})
    return folder


def type_constants(folder: Path, typed) -> None:
    """Writes last.pt of a run for which these constants were typed; None: a damaged one."""
    torch.save({"resume": {"origin": {"user_config": typed}}} if typed is not None else [], folder / "last.pt")


def rows_of(*folders: Path) -> list[dict[str, str]]:
    head, *rows = table(read_runs(folders)[0])
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_real_run_shows_the_numbers_of_its_log(demo_images, tmp_path, capsys):
    best = train.main(config(demo_images, tmp_path / "runs", epochs=3)).best
    folder = only_run(tmp_path / "runs")
    rows, run = log_of(folder), read_run(folder)
    assert run.best["AP"] == pytest.approx(best) == max(float(row["AP"]) for row in rows)
    assert [row["AP"] for row in run.rows] == [float(row["AP"]) for row in rows]
    assert run.images == 3 * 12  # 3 of 12 repeat an image, to fill the last step of an epoch
    assert "classes: " in run.data[1] and run.training.endswith(", 9 images")
    assert run.written["epochs"] == 3 and run.written["val"] == run.config["val"]
    capsys.readouterr()
    main([str(folder)])
    assert f"{100 * best:.2f}" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {folder.name, "compare.png", "compare.html"}
    main([str(path) for path in (tmp_path / "runs").iterdir()])  # as runs/* the second time
    assert "not compared" not in capsys.readouterr().out


def test_the_best_run_is_first_and_only_constants_that_differ_are_columns(tmp_path):
    one = made(tmp_path / "one-2026-01-01-1", [0.1, 0.3, 0.2], learning_rate=0.01, mosaic=0.5)
    two = made(tmp_path / "two-2026-01-01-1", [None, 0.5], learning_rate=0.02, mosaic=0.5, image_size=[64, 96])
    none = made(tmp_path / "none-2026-01-01-1", [-1.0], mosaic=0.5, seed=None)
    first, second, third = rows_of(one, none, two)
    assert [row["run"] for row in (first, second, third)] == [two.name, one.name, none.name]
    assert list(first)[-3:] == ["image_size", "learning_rate", "seed"] and "mosaic" not in first and "data" not in first
    assert first | {"image_size": "64,96", "learning_rate": "0.02", "seed": "-", "epochs": "2 of 9"} == first
    assert (first["best mAP"], first["epoch"], first["last mAP"]) == ("50.00", "2", "50.00")
    assert (second["best mAP"], second["epoch"], second["last mAP"]) == ("30.00", "2", "20.00")
    assert (second["minutes"], second["images"]) == ("1.5", "615") and third["seed"] == "none"
    assert (third["best mAP"], third["last mAP"], third["learning_rate"]) == ("-", "-", "-")


def test_a_constant_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path):
    runs = read_runs([made(tmp_path / "a", [0.3], epochs=9), made(tmp_path / "b", [0.2], epochs=5)])[0]
    head, first, second = table(runs)
    assert head.count("epochs") == 2 and head[-1] == "epochs"
    assert first[head.index("epochs")] == "1 of 9" and [first[-1], second[-1]] == ["9", "5"]


@pytest.mark.parametrize("name", ["val.txt", "val.json"])
def test_runs_on_different_data_have_different_letters(tmp_path, capsys, name):
    same = [made(tmp_path / f"run-{i}", [0.5 - i / 100]) for i in range(2)]
    other = made(tmp_path / "val", [0.4], val="other.txt"), made(tmp_path / "classes", [0.3], classes=("a", "c"))
    images = made(tmp_path / "images", [0.2])
    (images / "log.csv").write_text("epoch,AP,seconds,images_per_second\n1,.2,2,50\n")
    parts = [made(tmp_path / f"part-{i}", [0.1], val=f"runs/part-{i}/{name}") for i in range(3)]
    for i, folder in enumerate(parts):
        (folder / name).write_text("a.png" if i < 2 else "b.png")
    rows = rows_of(*same, *other, images, *parts)
    assert [row["data"] for row in rows] == ["A", "A", "B", "C", "A", "D", "D", "E"]
    assert [row["training data"] for row in rows[3:6]] == [
        "t.txt, 205 images",
        "t.txt, 100 images",
        "t.txt, 205 images",
    ]
    main([*map(str, same), str(other[0])])
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if mentions(line, "data B"))
    told(line, "val other.txt", "2 classes: a, b")
    main([*map(str, same)])
    assert "data A" not in capsys.readouterr().out


def test_runs_that_count_other_detections_have_different_letters(tmp_path):
    """Without all_labeled=true, detections of a class do not count where it was not looked for."""
    runs = [made(tmp_path / f"run-{labeled}", [0.5], val="c,d", all_labeled=labeled) for labeled in (True, False)]
    older = made(tmp_path / "older", [0.3], val="c,d")
    assert [row["data"] for row in rows_of(*runs, older)] == ["A", "B", "B"]


def test_runs_before_and_after_a_correction_of_labels_are_compared(tmp_path, capsys, monkeypatch):
    """Other training data, the same validation data: the mAPs are comparable, and a column has the training data."""
    raw = made(tmp_path / "raw", [0.479], train="sets/plates/train.txt")
    corrected = made(tmp_path / "corrected", [0.527], train="runs/suspects-2026-01-31-1/corrected.txt")
    first, second = rows_of(raw, corrected)
    assert "data" not in first and "train" not in first
    assert first["training data"] == "runs/suspects-2026-01-31-1/corrected.txt, 205 images"
    monkeypatch.setenv("COLUMNS", "200")
    main([str(raw), str(corrected)])
    printed = capsys.readouterr().out
    assert "data A" not in printed and "corrected.txt" in printed and "train.txt" in printed


def test_the_table_fits_the_terminal_and_names_what_it_leaves_out(tmp_path, capsys, monkeypatch):
    constants = [{f"constant_{i}": f"{run}/{'x' * 40}" for i in range(9)} for run in range(2)]
    runs = [str(made(tmp_path / f"run-{i}", [0.5], **more)) for i, more in enumerate(constants)]
    for width in (100, 200, 60, 10):
        monkeypatch.setenv("COLUMNS", str(width))
        main(runs)
        table, _, rest = capsys.readouterr().out.partition("columns that do not fit")
        assert width < 60 or max(map(len, table.splitlines())) <= width
        left_out = rest.splitlines()[0]
        assert all((f"constant_{i}" in table) != (f"constant_{i}" in left_out) for i in range(9))
        assert "run-0" in table and "run-1" in table
    monkeypatch.delenv("COLUMNS")
    main(runs)  # not into a terminal
    assert "do not fit" not in capsys.readouterr().out


def test_validation_data_that_a_run_wrote_are_named_as_they_were_typed(tmp_path):
    """A run with added classes writes its validation data with the classes of the model."""
    folders = []
    for name, typed in (("added-1", "more/val.txt"), ("added-2", "data/demo/val.txt"), ("part", ".2")):
        folder = made(tmp_path / name, [0.5 - len(folders) / 10], val=f"runs/{name}/val.txt")
        (folder / "val.txt").write_text("a.png")
        type_constants(folder, {"val": typed, "train": "t.txt"})
        folders.append(folder)
    assert [row["val"] for row in rows_of(*folders)] == ["more/val.txt", "t.txt", ".2"]
    damaged = made(tmp_path / "damaged", [0.1], val="runs/damaged/val.txt")
    for typed in ({"val": 7}, {"val": "7%%"}, 1, None):
        type_constants(damaged, typed)
        assert read_run(damaged).config["val"] == "runs/damaged/val.txt"
    texts = [run.data[0] for run in read_runs(folders)[0]]
    assert [mentions(text, name) for text, name in zip(texts, ("more/val.txt", "t.txt", "txt"), strict=True)] == [
        True, True, False,
    ]  # fmt: skip


def test_runs_of_several_seeds_and_folds_have_a_mean_and_a_spread(tmp_path, capsys):
    rows = (("seed", "v.txt", 0, 0.2), ("seed", "v.txt", 1, 0.4), ("fold", "1/3", 0, 0.5), ("fold", "3/3", 0, 0.8))
    folders = []
    for number, (kind, val, seed, value) in enumerate((*rows, ("other", "v.txt", 2, 0.1))):
        own = f"runs/{kind}{number}/val.txt" if kind == "fold" else val
        constants = {"seed": seed, "mosaic": 1.0 if kind == "other" else 0.5}
        folder = made(tmp_path / f"{kind}{number}", [value, 0.01], val=own, **constants)
        (folder / "val.txt").write_text(kind + str(number))
        typed = json.loads((folder / "config.json").read_text()) | {"val": val}
        type_constants(folder, typed)
        folders.append(folder)
    runs = read_runs(folders)[0]
    assert [run.best["AP"] for run in runs] == [0.8, 0.5, 0.4, 0.2, 0.1]
    folds, seeds = repeats(runs)
    assert all(word in folds for word in ("1, 2", "val", "65.00", "21.21"))
    assert all(word in seeds for word in ("3, 4", "seed", "30.00", "14.14"))
    assert repeats(runs[1:4:2]) == [] and repeats([runs[0], runs[2]]) == []
    main(list(map(str, folders)))
    assert seeds in capsys.readouterr().out and seeds in (tmp_path / "compare.html").read_text()


def test_runs_on_other_validation_data_or_with_other_classes_are_no_repetitions(tmp_path):
    same = [made(tmp_path / f"same-{seed}", [0.2 + seed / 10], seed=seed) for seed in range(2)]
    others = made(tmp_path / "val", [0.5], val="w.txt", seed=2), made(tmp_path / "c", [0.6], classes=("a",), seed=3)
    assert len(repeats(read_runs(same)[0])) == 1
    assert all(repeats(read_runs([same[0], other])[0]) == [] for other in others)
    assert repeats(read_runs([same[0], made(tmp_path / "again", [0.4], seed=0)])[0]) == []


def test_the_names_of_runs_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("mine-2026-01-31-1", "mine-2026-01-31-2", "more-2026-01-31-1"):
        made(tmp_path / "runs" / name, [0.5])
    (tmp_path / "more").mkdir()  # the data of the run
    main(["mine", "more", "min"])
    text = capsys.readouterr().out
    assert "mine-2026-01-31-2" in text and "more-2026-01-31-1" in text and "mine-2026-01-31-1" not in text
    told(text, "min", "mine")


def spoil(folder: Path, what: str) -> Path:
    """Damages a run folder."""
    if what == "cut off log":
        (folder / "log.csv").write_bytes((folder / "log.csv").read_bytes()[:-30])
    elif what in ("config.json", "log.csv", "best.pt"):
        (folder / what).write_bytes((folder / what).read_bytes()[:20])
    elif what == "list":
        (folder / "config.json").write_text("[]")
    elif what == "bytes":
        (folder / "log.csv").write_bytes(b"epoch,AP\n\xff\xfe\x00,1\n")
    elif what == "nan":
        (folder / "log.csv").write_text("epoch,AP,seconds,images_per_second\n1,nan,2,3\n")
    elif what == "huge":
        (folder / "log.csv").write_text("epoch,AP,seconds,images_per_second\n1,.5,1e300,1e300\n")
    elif what == "names":
        torch.save({"format": 1, "model": {}, "classes": ["a", "b\x1b[2J"]}, folder / "best.pt")
    elif what == "tensor":
        torch.save(torch.zeros(3), folder / "best.pt")
    else:
        (folder / what.removeprefix("no ")).unlink()
    return folder


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("cut off log", "log.csv, line 3"),
        ("config.json", "config.json"),
        ("log.csv", "log.csv"),
        ("best.pt", "best.pt"),
        ("names", "best.pt"),
        ("tensor", "best.pt"),
        ("list", "config.json"),
        ("bytes", "log.csv"),
        ("nan", "line 2: AP is 'nan'"),
        ("huge", "line 2: seconds is '1e300'"),
        ("no config.json", "config.json"),
        ("no log.csv", "log.csv"),
    ],
)
def test_a_broken_run_is_listed_with_the_reason(tmp_path, capsys, what, why):
    good, bad = made(tmp_path / "good", [0.1]), spoil(made(tmp_path / "bad", [0.2, 0.3]), what)
    main([str(good), str(bad), str(tmp_path / "gone")])
    printed = capsys.readouterr().out
    assert re.search(f"not compared:\n  {re.escape(str(bad))}: .*{why}", printed), printed
    told(printed, tmp_path / "gone")
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "Not compared" in page and page.count("<tr>") == 1 + 1  # the head and the good run
    with pytest.raises(SystemExit, match="^1$"):
        main([str(bad)])
    told(capsys.readouterr().out, bad)


def test_a_run_without_best_pt_is_compared(tmp_path):
    """It is written only after the first evaluation."""
    run = read_run(spoil(made(tmp_path / "run", [None, None]), "no best.pt"))
    assert run.best == {} and any("best.pt" in text for text in run.data)


def test_a_damaged_cell_names_its_line(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,AP,seconds,images_per_second\n1,.5,2,3\n2,x,2,3\n")
    with refused(ValueError, "log.csv, line 3", "'x'"):
        read_log(tmp_path / "log.csv")


def test_the_page_shows_the_table_in_a_browser(tmp_path, capsys):
    one = made(tmp_path / f"{HOSTILE}-1", [0.1, 0.3], train=HOSTILE, classes=[HOSTILE], note=f"{HOSTILE}{'x' * 200}")
    two = made(tmp_path / "_hidden-2", [0.2], seconds=1.0)
    main([str(one), str(two), str(tmp_path / f"gone{HOSTILE}"), f"output={tmp_path / 'out'}"])
    printed = capsys.readouterr().out
    assert str(tmp_path / "out" / "compare.html") in printed and max(map(len, printed.splitlines())) < 400
    with Browser(tmp_path / "out" / "compare.html", tmp_path) as browser:
        document = browser.run("document.documentElement.outerHTML")
        brightness = []
        for dark in (False, True):
            browser.dark(dark)
            browser.run("document.querySelector('img').scrollIntoView({block: 'center'})")
            browser.screenshot(tmp_path / "shown.png")
            box = "document.querySelector('img').getBoundingClientRect()"
            x, y, width, height = (int(browser.run(f"{box}.{name}")) for name in ("x", "y", "width", "height"))
            shown = cv2.imread(str(tmp_path / "shown.png"))
            brightness.append(np.median(shown[max(y, 0) : y + height, x : x + width]))
        assert brightness[0] > 240 and brightness[1] < 60  # the plot follows the mode
        assert browser.problems == []
    words = words_of(document)
    for row in table(read_runs([one, two])[0]):
        for cell in row:
            assert " ".join(cell.split()) in words, cell
    assert f"gone{HOSTILE}" in words
    tags = set(re.findall(r"<([a-z0-9]+)", document))
    assert "img" in tags and not tags & {"script", "iframe", "link", "object"} and "onload=alert" not in tags
    assert set(re.findall(r'(?:href|src)="([^#"]{0,16})', document)) == {"", "data:image/png;b"}  # "": #s0
    image = cv2.imread(str(tmp_path / "out" / "compare.png"))
    assert image.shape[1] > 1000 and any(len(cell) > CUT for row in table(read_runs([one])[0]) for cell in row)


@pytest.mark.parametrize("name", ["compare.html", "compare.png"])
def test_only_an_earlier_comparison_is_replaced(tmp_path, capsys, name):
    run, out = made(tmp_path / "run", [0.1]), tmp_path / "out"
    main([str(run), f"output={out}"]), main([str(run), f"output={out}"])
    (out / "compare.html").unlink(), (out / name).write_bytes(b"mine"), (tmp_path / name).write_bytes(b"mine")
    for words, place in (([f"output={out}"], out), ([], tmp_path)):
        with refused(SystemExit, f"output={place}", place / name):
            main([str(run), *words])
    assert (out / name).read_bytes() == (tmp_path / name).read_bytes() == b"mine"
    capsys.readouterr()
    with refused(SystemExit, f"output={run / 'config.json'}"):
        main([str(run), f"output={run / 'config.json'}"])
    assert not capsys.readouterr().out  # before the work


def test_without_folders_the_program_explains_itself():
    with pytest.raises(SystemExit, match="python -m tools.compare"):
        main([])
    with pytest.raises(SystemExit, match="^0$"):
        main(["--help"])


def evaluated(folder: Path, whole: float, **maps: float) -> Path:
    """Adds the evaluation of best.pt to a run folder."""
    (folder / "evaluation").mkdir()
    contents = {"AP": whole, "per_class": {name: {"AP": value} for name, value in maps.items()}}
    (folder / "evaluation" / "metrics.json").write_text(json.dumps(contents), encoding="utf-8")
    return folder


def test_the_classes_of_two_runs_are_listed_with_the_largest_difference_first(tmp_path, capsys):
    one = evaluated(made(tmp_path / "one", [0.3]), 0.3, a=0.25, b=0.35, c=-1.0)
    two = evaluated(made(tmp_path / "two", [0.4]), 0.4, a=0.26, b=0.54)
    expected = [["b", "54.00", "35.00", "+19.00"], ["a", "26.00", "25.00", "+1.00"]]
    assert class_table(read_runs([one, two])[0]) == [["class", "1", "2", "difference"], *expected]
    main([str(one), str(two)])
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed.index(expected[0]) + 1 == printed.index(expected[1])
    words = words_of((tmp_path / "compare.html").read_text(encoding="utf-8"))
    assert words.index("+19.00") < words.index("+1.00")


def test_of_many_classes_the_largest_differences_are_printed_and_the_page_has_all(tmp_path, capsys):
    maps = {f"class{i:02}": i / 100 for i in range(MAX_CLASSES + 5)}
    main(
        [str(evaluated(made(tmp_path / n, [0.3]), 0.3, **m)) for n, m in (("x", maps), ("y", dict.fromkeys(maps, 0.0)))]
    )
    printed = capsys.readouterr().out
    assert printed.count("class0") == 5 and "which compare.html has: 5" in printed
    assert (tmp_path / "compare.html").read_text(encoding="utf-8").count(">class") == len(maps) + 1


@pytest.mark.parametrize("what", ["no evaluation", "damaged", "other checkpoint", "other data"])
def test_classes_are_compared_only_on_the_same_validation_data(tmp_path, what):
    one, two = evaluated(made(tmp_path / "one", [0.5]), 0.5, a=0.5), made(tmp_path / "two", [0.4], val=what[:6])
    if what != "other data":
        (two / "config.json").write_text((one / "config.json").read_text())
    if what != "no evaluation":
        evaluated(two, 0.2 if what == "other checkpoint" else 0.4, a=0.4)
    if what == "damaged":
        (two / "evaluation" / "metrics.json").write_text("{")
    assert class_table(read_runs([one, two])[0]) == []


def test_the_epochs_of_the_plot_are_whole_numbers(tmp_path, monkeypatch):
    drawn, make = [], plots.Figure
    monkeypatch.setattr(plots, "Figure", lambda *args, **more: drawn.append(make(*args, **more)) or drawn[-1])
    plots.draw_runs({"a": [(1, 0.1, 0.2), (2, 0.2, 0.3)]}, tmp_path / "a.png")
    ticks = drawn[0].axes[0].get_xticks()
    assert len(ticks) >= 2 and all(tick == round(tick) for tick in ticks)


def test_forty_runs_fit_the_plot(tmp_path):
    folders = [made(tmp_path / f"run-{i:02}", [i / 100, i / 90]) for i in range(3)]
    folders += [Path(shutil.copytree(folders[0], tmp_path / f"copy-{i:02}")) for i in range(37)]
    main([str(folder) for folder in folders])
    assert cv2.imread(str(tmp_path / "compare.png")).shape[0] > 900
