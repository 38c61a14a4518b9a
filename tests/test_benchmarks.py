"""benchmarks/: every script starts and prints its constants, every page names commands that exist; the longest ones run."""

import re
import runpy
import sys
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from statistics import mean
from unittest.mock import patch

import pytest
import torch
from simulated_gpu import simulated_gpu
from small import TINY_WEIGHTS, config
from toys import detector

import nets
from benchmarks import gpu, gpu_runs, incomplete, small_data
from benchmarks.table import RESULTS, append_row, read_rows

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "Config(), sys.argv" in path.read_text())
PAGES = sorted((ROOT / "benchmarks").rglob("*.md"))
COMMAND = re.compile(r"python -m (benchmarks\.\w+)((?: \w+=(?:\"[^\"]*\"|[^\s`]+))*)")
EARLIER = re.compile(r"`[^`]+` \(at commit [0-9a-f]{7}\)")  # a command of another commit


def constants(module: str) -> set[str]:
    return {field.name for field in fields(import_module(module).Config)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_prints_its_constants(name, monkeypatch, capsys):
    module = f"benchmarks.{name}"
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))  # restored: scripts replace them
    monkeypatch.delitem(sys.modules, module, raising=False)  # runpy warns of a module that is imported already
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    text = capsys.readouterr().out
    assert not ended.value.code and all(f"  {constant}=" in text for constant in constants(module))


def test_the_commands_of_the_pages_exist():
    commands = [found for page in PAGES for found in COMMAND.findall(EARLIER.sub("", page.read_text(encoding="utf-8")))]
    for module, words in commands:
        assert set(re.findall(r" (\w+)=", words)) <= constants(module), module
    assert commands


@pytest.fixture
def small_gpu(demo_images, tmp_path, monkeypatch) -> gpu.Config:
    """The constants of benchmarks.gpu, so small that a CPU measures each part in seconds."""
    monkeypatch.setattr(gpu_runs, "WHOLE_RUNS", (("tiny_n", 2),))
    monkeypatch.setattr(gpu_runs, "WHOLE_RUN_IMAGES", (4, 2))
    monkeypatch.setattr(gpu_runs, "RUNS", (("tiny_n", 0.5),))
    for name, part in gpu.PARTS.items():
        monkeypatch.setitem(gpu.PARTS, name, part._replace(seconds=600))  # this computer may be busy
    data = {"data": str(demo_images / "train.txt"), "val": str(demo_images / "val.txt")}
    small = {"models": ("yolox_nano",), "amps": ("fp16",), "size": 64, "batch_size": 2, "seconds": 0.0, "workers": 0}
    return gpu.Config(**small, **data, results=str(tmp_path / "gpu.json"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["speed", "memory", "whole_run", "runs"])
def test_the_benchmark_of_a_gpu_measures_on_a_simulated_one(small_gpu, monkeypatch, part):
    if part in ("speed", "memory"):
        monkeypatch.setattr(nets, "build", lambda name, num_classes, *_: detector(num_classes=num_classes))
    with simulated_gpu(), patch.object(torch.cuda, "set_sync_debug_mode", lambda _: None):
        rows = list(gpu.rows(small_gpu, part))
    own = [row for row in rows if row.get("trainer") not in ("ultralytics", "libreyolo")]
    assert own and not any("error" in row for row in own), rows
    assert all("peers=" in row["error"] for row in rows if row not in own)


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_trains_in_two_processes(small_gpu):
    one, two = gpu.rows(small_gpu, "ranks")
    assert (one["processes"], one["backend"], two["processes"], two["backend"]) == (1, "", 2, "gloo"), (one, two)
    for loss in ("loss", "val loss"):
        assert float(two[loss]) == pytest.approx(float(one[loss]), rel=1e-4)


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_an_exported_file(small_gpu, demo_images, tmp_path, monkeypatch):
    small = vars(config(demo_images, tmp_path / "runs", weights=str(TINY_WEIGHTS), freeze_epochs=0))
    monkeypatch.setattr(gpu_runs, "EXPORTED", small)
    monkeypatch.setattr(gpu_runs, "DEMO_IMAGES", (2, 1))
    monkeypatch.setattr(gpu_runs, "PROVIDERS", ("CPUExecutionProvider", "no provider"))
    missing, torch_row, file_row = gpu.rows(small_gpu, "exported")
    assert "no provider" in missing["runtime"] and "error" in missing
    assert file_row["mAP"] == pytest.approx(torch_row["mAP"], abs=0.01) and torch_row["mAP"] > 0.05
    assert file_row["ms per image"] > 0


def test_the_benchmark_of_a_gpu_continues_where_it_stopped_and_keeps_to_its_minutes(tmp_path, monkeypatch, capsys):
    begun = []

    def run_part(cfg, part):
        begun.append(part)
        if part == "runs" and begun.count(part) == 1:
            raise KeyboardInterrupt
        return [{"result": 1}]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "machine", lambda: "one GPU")
    monkeypatch.setattr(gpu, "run_part", run_part)
    cfg, names = gpu.Config(results=str(tmp_path / "gpu.json")), list(gpu.PARTS)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(cfg)
    gpu.main(cfg)
    assert begun == [*names[:3], *names[2:]]  # the third part was interrupted
    gpu.main(cfg)
    gpu.main(replace(cfg, parts=("speed",)))
    assert begun[len(names) + 1 :] == ["speed"]
    monkeypatch.setattr(gpu, "machine", lambda: "another GPU")
    begun.clear()
    gpu.main(replace(cfg, minutes=1.5))
    assert begun == [name for name in names if gpu.PARTS[name].seconds < 90]
    assert "tests: not begun" in capsys.readouterr().out


def test_a_part_that_fails_or_hangs_becomes_a_row(tmp_path, monkeypatch):
    def breaks(cfg, end):
        yield {"model": "a", "images/s": 5}
        raise RuntimeError("no kernel\nfor this GPU")

    cfg = gpu.Config(results=str(tmp_path / "gpu.json"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.run_part(cfg, "speed") == [{"error": gpu.NO_GPU}]
    monkeypatch.setitem(gpu.PARTS, "speed", gpu.Part(breaks, 0.01, "Steps"))
    assert gpu.run_part(cfg, "speed") == [{"error": "the time limit of 0.01 s ended"}]
    rows = list(gpu.rows(cfg, "speed"))
    assert rows == [{"model": "a", "images/s": 5}, {"error": "RuntimeError: no kernel"}]
    gpu.save(cfg, "speed", rows, 1.0)
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| a | 5 |" in page and "no kernel" in page


@pytest.mark.slow
@pytest.mark.parametrize("images", [0, 4])
def test_each_run_on_small_data_has_one_row_and_is_not_repeated(images, demo_images, tmp_path, monkeypatch):
    tiny = {"model": "tiny_n", "learning_rate": 0.01, "min_learning_rate": 0.001, "batch_size": 4}
    data = small_data.DataSet("train.txt", "val.txt", (9, 5), 2, 64)
    monkeypatch.setattr(small_data, "DATA", {"drawn": data})
    monkeypatch.setattr(small_data, "RECIPES", {"new": small_data.Recipe(tiny, images=images)})
    monkeypatch.setattr(small_data, "STAGES", {"report": [small_data.Run("report", "drawn", 3, "new", 64, 2)]})
    monkeypatch.setattr(small_data, "in_own_process", lambda measure, *arguments: measure(*arguments))
    cfg = small_data.Config(str(demo_images), str(TINY_WEIGHTS), results=str(tmp_path / "rows.csv"))
    small_data.main(cfg)
    (row,) = read_rows(tmp_path / "rows.csv")
    assert (row["recipe"], row["epochs"], row["seed"]) == ("new", "2", "3") and 0 <= float(row["AP"]) <= 1
    assert int(row["images_seen"]) == 2 * (images or 9)
    monkeypatch.setattr(small_data, "in_own_process", None)  # a second start trains nothing
    small_data.main(cfg)
    assert len(read_rows(tmp_path / "rows.csv")) == 1


def test_the_pages_show_the_rows_of_incomplete_labels():
    rows = read_rows(RESULTS / "incomplete.csv")
    page, docs = (ROOT / name for name in ("benchmarks/results/incomplete.md", "docs/incomplete_labels.md"))
    assert incomplete.table(rows) in page.read_text(encoding="utf-8")
    assert all(incomplete.summary(rows) in one.read_text(encoding="utf-8") for one in (page, docs))
    for kind, other in (("masks", "naive"), ("filled", "naive_long"), ("naive_long", "naive"), ("half", "naive")):
        gains = [mean_of(rows, data, kind) - mean_of(rows, data, other) for data in incomplete.SETS]
        assert all(
            ", ".join(f"{gain:+.1f}" for gain in gains) in one.read_text(encoding="utf-8") for one in (page, docs)
        )


def mean_of(rows, data, kind):
    return mean(100 * float(row["AP"]) for row in rows if (row["data"], row["kind"]) == (data, kind))


def test_a_row_follows_the_columns_of_an_existing_file(tmp_path):
    file = tmp_path / "rows.csv"
    append_row(file, {"seed": 1, "error": "", "AP": 0.25})
    append_row(file, {"AP": 0.5, "seed": 2})
    assert read_rows(file) == [{"seed": "1", "error": "", "AP": "0.25"}, {"seed": "2", "error": "", "AP": "0.5"}]
    with pytest.raises(ValueError, match="minutes"):
        append_row(file, {"seed": 3, "minutes": 1.0})


def test_the_schedule_of_libreyolo_is_scaled_to_the_length():
    of_300 = {"warmup_epochs": 5, "no_aug_epochs": 15}
    scaled, plain = (small_data.Recipe(options={"lr0": 0.1}, scaled=scaled) for scaled in (True, False))
    assert small_data.options_of(scaled, 300) == {"lr0": 0.1, **of_300}
    assert small_data.options_of(scaled, 60) == {"lr0": 0.1, "warmup_epochs": 1, "no_aug_epochs": 3}
    assert small_data.options_of(scaled, 15) == {"lr0": 0.1, "warmup_epochs": 1, "no_aug_epochs": 1}
    assert small_data.options_of(plain, 15) == {"lr0": 0.1}
