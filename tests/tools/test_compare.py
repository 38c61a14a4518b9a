"""tools.compare: the numbers of the run folders, in the order of mAP; broken folders have a reason; seeds have a spread."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from refused import told
from small import config, log_of, only_run

import train
from tools.compare import main, read_run, repeats, table
from utils import checkpoint


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


def type_constants(folder: Path, typed: dict) -> None:
    """Writes last.pt of a run for which these constants were typed."""
    torch.save({"resume": {"origin": {"user_config": typed}}}, folder / "last.pt")


def ranked(*folders: Path) -> list:
    return sorted(map(read_run, folders), key=lambda run: -run.best.get("AP", -1))


def rows_of(*folders: Path) -> list[dict[str, str]]:
    head, *rows = table(ranked(*folders))
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_real_run_shows_the_numbers_of_its_log(demo_images, tmp_path, capsys):
    best = train.main(config(demo_images, tmp_path / "runs", epochs=3, val="1/3")).best
    folder = only_run(tmp_path / "runs")
    rows, run = log_of(folder), read_run(folder)
    assert run.best["AP"] == pytest.approx(best) == max(float(row["AP"]) for row in rows)
    assert [row["AP"] for row in run.rows] == [float(row["AP"]) for row in rows]
    assert run.classes[0].isdigit() and run.constants["val"] == "1/3"
    capsys.readouterr()
    main([str(folder)])
    assert f"{100 * best:.2f}" in capsys.readouterr().out


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
    assert second["minutes"] == "1.5" and third["seed"] == "none"
    assert (third["best mAP"], third["last mAP"], third["learning_rate"]) == ("-", "-", "-")


def test_the_data_and_the_classes_are_columns_where_they_differ(tmp_path):
    """The validation data are those that the user wrote, not the files into which a run divided its images."""
    same, other = made(tmp_path / "a", [0.5]), made(tmp_path / "b", [0.4], classes=("a", "c"), all_labeled=True)
    part = made(tmp_path / "c", [0.3], val="runs/c/val.txt")
    type_constants(part, {"val": ".2", "train": "u.txt"})
    rows = rows_of(same, other, part)
    assert [row["classes"] for row in rows] == ["2: a, b", "2: a, c", "2: a, b"]
    assert [row["val"] for row in rows] == ["v.txt", "v.txt", ".2"] and [row["train"] for row in rows][2] == "u.txt"
    assert [row["all_labeled"] for row in rows] == ["-", "true", "-"]
    assert not {"val", "classes", "train"} & rows_of(same)[0].keys()


def test_without_val_the_validation_data_are_those_in_the_training_data(tmp_path):
    folders = [made(tmp_path / name, [0.5], train=name, val=name) for name in ("a", "b")]
    for folder in folders:
        type_constants(folder, {"train": folder.name, "val": train.Config.val})
    assert [row["val"] for row in rows_of(*folders)] == ["a", "b"]


def test_runs_of_several_seeds_and_folds_have_a_mean_and_a_spread(tmp_path, capsys):
    rows = (("seed", "v.txt", 0, 0.2), ("seed", "v.txt", 1, 0.4), ("fold", "1/3", 0, 0.5), ("fold", "3/3", 0, 0.8))
    folders = []
    for number, (kind, val, seed, value) in enumerate((*rows, ("other", "v.txt", 2, 0.1))):
        own = f"runs/{kind}{number}/val.txt" if kind == "fold" else val
        constants = {"seed": seed, "mosaic": 1.0 if kind == "other" else 0.5}
        folder = made(tmp_path / f"{kind}{number}", [value, 0.01], val=own, **constants)
        if kind == "fold":
            (folder / "val.txt").write_text(kind + str(number))
        type_constants(folder, json.loads((folder / "config.json").read_text()) | {"val": val})
        folders.append(folder)
    runs = ranked(*folders)
    assert [run.best["AP"] for run in runs] == [0.8, 0.5, 0.4, 0.2, 0.1]
    assert [row["val"] for row in rows_of(*folders)] == ["3/3", "1/3", "v.txt", "v.txt", "v.txt"]
    folds, seeds = repeats(runs)
    assert all(word in folds for word in ("1, 2", "val", "65.00", "21.21"))
    assert all(word in seeds for word in ("3, 4", "seed", "30.00", "14.14"))
    assert repeats(runs[1:4:2]) == [] and repeats([runs[0], runs[2]]) == []
    main(list(map(str, folders)))
    assert seeds in capsys.readouterr().out


def test_names_of_runs_and_patterns_are_compared(tmp_path, monkeypatch, capsys):
    """cmd.exe passes runs/* as it is."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine-2026-01-31-1", "mine-2026-01-31-2", "more-2026-01-31-1"):
        made(tmp_path / "runs" / name, [0.5])
    (tmp_path / "more").mkdir()  # the data of the run
    main(["mine", "more", "min"])
    text = capsys.readouterr().out
    assert "mine-2026-01-31-2" in text and "more-2026-01-31-1" in text and "mine-2026-01-31-1" not in text
    told(text.partition("not compared")[2], "min:")
    main(["runs/m*", "mine"])
    text = capsys.readouterr().out
    assert [line.split()[1] for line in text.splitlines()[1:4]] == sorted(path.name for path in Path("runs").iterdir())
    assert "not compared" not in text


def spoil(folder: Path, what: str) -> Path:
    """Damages a run folder."""
    if what in ("config.json", "log.csv", "best.pt"):
        (folder / what).write_bytes((folder / what).read_bytes()[:20])
    else:
        (folder / what.removeprefix("no ")).unlink()
    return folder


@pytest.mark.parametrize("what", ["config.json", "log.csv", "best.pt", "no config.json", "no log.csv"])
def test_a_broken_run_is_listed_with_the_reason(tmp_path, capsys, what):
    good, bad = made(tmp_path / "good", [0.1]), spoil(made(tmp_path / "bad", [0.2, 0.3]), what)
    main([str(good), str(bad), str(tmp_path / "gone")])
    printed = capsys.readouterr().out
    assert re.search(f"not compared:\n  {re.escape(str(bad))}: .+", printed), printed
    told(printed, tmp_path / "gone")
    with pytest.raises(SystemExit, match="^1$"):
        main([str(bad)])
    told(capsys.readouterr().out, bad)


def test_control_characters_of_a_run_are_not_printed(tmp_path, capsys):
    main([str(made(tmp_path / "run", [0.1])), str(made(tmp_path / "more", [0.2], note="a\x1b[2J"))])
    assert "\x1b" not in capsys.readouterr().out


def test_without_folders_the_program_explains_itself(capsys):
    for words, status in (([], 1), (["--help"], 0)):
        with pytest.raises(SystemExit, match=f"^{status}$"):
            main(words)
        told(capsys.readouterr().out, "python -m tools.compare")


def test_runs_on_other_validation_data_or_with_other_classes_are_no_repetitions(tmp_path):
    same = [made(tmp_path / f"same-{seed}", [0.2 + seed / 10], seed=seed) for seed in range(2)]
    others = made(tmp_path / "val", [0.5], val="w.txt", seed=2), made(tmp_path / "c", [0.6], classes=("a",), seed=3)
    assert len(repeats(ranked(*same))) == 1
    assert all(repeats(ranked(same[0], other)) == [] for other in others)
    assert repeats(ranked(same[0], made(tmp_path / "again", [0.4], seed=0))) == []


def test_a_run_without_best_pt_is_compared(tmp_path):
    """It is written only after the first evaluation."""
    run = read_run(spoil(made(tmp_path / "run", [None, None]), "no best.pt"))
    assert run.best == {} and "best.pt" in run.classes
