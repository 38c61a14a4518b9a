"""benchmarks/: every script starts and prints its constants, and every page names commands that exist."""

import re
import runpy
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from refused import refused

from benchmarks import aquarium, milliseconds, table
from utils.config import ConfigError

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
    text = page.read_text(encoding="utf-8")
    for module, words in COMMAND.findall(re.sub(r"`[^`]+` \(at commit [0-9a-f]{7}\)", "", text)):
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


def test_subsets_of_labels_are_nested_and_follow_the_lists(tmp_path):
    folder = tmp_path / "train/images"
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"{number:02}.jpg").touch()
    few, more, other = (
        {Path(path).name for path in aquarium.subset(aquarium.Config(data=str(tmp_path)), labels, seed)}
        for labels, seed in ((5, 0), (10, 0), (5, 1))
    )
    assert few < more and len(more) == 10 and few != other
    (tmp_path / "5_0.txt").write_text("03.jpg\n01.jpg\n07.jpg\n09.jpg\n11.jpg\n")
    listed = aquarium.subset(aquarium.Config(data=str(tmp_path), lists=str(tmp_path)), 5, 0)
    assert [Path(path).name for path in listed] == ["03.jpg", "01.jpg", "07.jpg", "09.jpg", "11.jpg"]
    (tmp_path / "5_0.txt").write_text("03.jpg\n01.jpg\n07.jpg\n09.jpg\nother.jpg\n")
    for cfg, labels in (
        (aquarium.Config(data=str(tmp_path), lists=str(tmp_path)), 5),
        (aquarium.Config(str(tmp_path)), 21),
    ):
        with refused(ConfigError, "train/images", str(labels)):
            aquarium.subset(cfg, labels, 0)
