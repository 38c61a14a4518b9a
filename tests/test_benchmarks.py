"""benchmarks/: every script starts and prints its constants, and every page names commands that exist."""

import re
import runpy
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch

import nets
from benchmarks import evaluate, milliseconds, table
from datasets.dataset import DetectionDataset
from datasets.formats.finish import prepare
from datasets.formats.read import read
from datasets.loader import ValSampler, build_loader

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "Config(), sys.argv" in path.read_text())
PAGES = sorted((ROOT / "benchmarks").rglob("*.md"))
COMMAND = re.compile(r"python -m ((?:benchmarks|tests|docs)\.\w+)((?: \w+=(?:\"[^\"]*\"|[^\s`]+))*)")


def constants(module: str) -> list[str]:
    return [field.name for field in fields(import_module(module).Config)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_prints_its_constants(name, monkeypatch, capsys):
    module = f"benchmarks.{name}"
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))  # restored: scripts replace them
    monkeypatch.delitem(sys.modules, module, raising=False)  # runpy warns of a module that is imported already
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert not ended.value.code
    text = capsys.readouterr().out
    assert all(f"  {constant}=" in text for constant in constants(module))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page):
    for module, words in COMMAND.findall(page.read_text(encoding="utf-8")):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module
        if module.startswith("benchmarks"):
            names = re.findall(r" (\w+)=", words)
            assert set(names) <= set(constants(module)), module


def test_the_index_names_every_script_and_every_file_of_results():
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    scripts = [file.stem for file in (ROOT / "benchmarks").glob("*.py") if file.stem not in SCRIPTS]
    names = [f"`python -m benchmarks.{name}`" for name in SCRIPTS] + [f"{name}.py" for name in scripts]
    names += [f"(results/{file.name})" for file in (ROOT / "benchmarks/results").iterdir()]
    assert not [name for name in names if name not in text]


def test_a_row_is_added_to_the_last_table_of_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    table.add_row("new", "# New", {"seed": "1"})
    page = tmp_path / "new.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"| other |\n|---|\n\n{before}\nMethod.\n", encoding="utf-8")
    table.add_row("new", "# New", {"seed": "2"})
    *_, first, second, blank, method = page.read_text(encoding="utf-8").splitlines()
    assert "| 1 |" in first and "| 2 |" in second and (blank, method) == ("", "Method.")


def test_an_evaluation_is_timed_by_its_parts(demo_images):
    data, _ = prepare(read(str(demo_images / "val.txt"), "val"))
    loader = build_loader(DetectionDataset(data, "corner"), ValSampler(len(data), 2, (64, 64)), 0, False)
    model = nets.build("tiny_n", len(data.classes))
    seconds, result = evaluate.one_evaluation(model, loader, torch.device("cpu"), with_loss=True)
    taken = dict(zip(evaluate.PARTS, seconds, strict=True))
    assert all(taken[part] > 0 for part in ("data", "network", "loss", "decoding + NMS", "metrics"))
    assert 0 <= result["AP"] <= 1


@pytest.mark.slow
def test_exported_files_take_turns_and_become_a_table(tmp_path):
    cfg = milliseconds.Config(models=("tiny_n:64", "tiny_n:96"), others=(), rounds=3, seconds=0)
    files = milliseconds.exported(cfg, tmp_path)
    assert milliseconds.exported(cfg, tmp_path) == files  # kept: the second call exports nothing
    rounds = milliseconds.measure(cfg, files)
    assert all(len(times) == 3 and min(times) > 0 for times in rounds.values())
    sides = {model: file["gflops"] for model, file in files.items()}
    assert sides["tiny_n:96"] / sides["tiny_n:64"] == pytest.approx(96**2 / 64**2)
    rounds = {"tiny_n:64": [10.0, 20.0, 30.0], "tiny_n:96": [20.0, 40.0, 60.0]}
    *_, fast, slow = milliseconds.table(cfg, files, rounds).splitlines()
    assert fast.startswith("| `tiny_n` | 64 |  |") and "| 20.0 ± 5.0 | 1.00 |" in fast
    assert slow.startswith("| `tiny_n` | 96 |  |") and "| 40.0 ± 10.0 | 2.00 |" in slow


def test_a_published_ap_belongs_to_the_side_of_the_input():
    found = [milliseconds.published(model) for model in ("yolox_nano:416", "yolox_nano:640", "picodet_s:320")]
    assert found == ["25.8", "", "29.1"]
