"""docs/integrations.md: the blocks of loggers run with their packages, or are skipped without them; the others compile."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest
from small import config, log_of, only_run, train_quietly, untimed

import train
from engine.run_folder import Run

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs/first_detector.ipynb"
TEXT = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
ROWS = [{"epoch": 1, "loss": 2.5, "skipped_steps": 0}, {"epoch": 2, "loss": 1.5, "skipped_steps": 0, "AP": 0.25}]


def block(mark: str) -> str:
    """The first block of the page with this text."""
    return next(block for block in BLOCKS if mark in block)


def test_every_block_is_a_program():
    for code in BLOCKS:
        compile(code, "integrations.md", "exec")


def test_on_row_gets_every_row_once_when_its_epoch_is_saved(demo_images, tmp_path):
    rows = []

    def on_row(row, run):
        assert (run.folder / "last.pt").exists() and log_of(run.folder)[-1]["epoch"] == str(row["epoch"])
        rows.append(row)
        if len(rows) == 2:
            raise ConnectionError("the logger's own")

    cfg = config(demo_images, tmp_path / "runs", epochs=3, evaluate_every=2, save_minutes=0)
    with pytest.raises(ConnectionError):
        train_quietly(cfg, on_row=on_row)
    train_quietly(train.replace(cfg, resume=True), on_row=on_row)
    folder = only_run(tmp_path / "runs")
    assert [row["epoch"] for row in rows] == [1, 2, 3] and ["AP" in row for row in rows] == [False, True, True]
    texts = [{name: str(value) for name, value in untimed(row).items()} for row in rows]
    assert texts == [{name: value for name, value in row.items() if value} for row in log_of(folder)]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "mine-2026-01-01-1", {"epochs": 2, "image_size": (64, 64), "classes": None})


def test_wandb_writes_the_rows_offline(run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    for name, value in {"MODE": "offline", "DIR": tmp_path, "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    names = {}
    exec(block("import wandb"), names)
    for row in ROWS:
        names["on_row"](row, run)
    summary = {name: wandb.run.summary[name] for name in ROWS[1]}
    assert wandb.run.name == run.folder.name and summary == ROWS[1]
    wandb.finish()


def test_mlflow_writes_the_rows_and_continues_a_resumed_run(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    pytest.importorskip("sqlalchemy", reason="pip install mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    names = {}
    exec(block("import mlflow"), names)
    for row in ROWS:
        names["on_row"](row, run)
        mlflow.end_run()  # the second row comes from another process
    (found,) = mlflow.search_runs(experiment_names=["thaw"], output_format="list")
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.5), (2, 1.5)]


def test_the_notebook_is_small_and_shows_what_its_code_prints():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert NOTEBOOK.stat().st_size < 500_000
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/jpeg" in output.get("data", {}) for output in outputs) >= 3


def test_the_notebook_imports_names_of_the_project():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (ROOT / node.module.partition(".")[0]).is_dir()]
    names = [(importlib.import_module(node.module), name.name) for node in own for name in node.names]
    assert len(names) >= 6 and not [name for module, name in names if not hasattr(module, name)]
