"""docs/integrations.md: its blocks run with their packages, which are not in requirements.txt: without them a test is skipped.

`on_row` of train.py, for loggers. docs/first_detector.ipynb runs from start to end.
"""

import ast
import importlib
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from files import noise
from lively import lively_checkpoint
from small import SMALL, config, log_of, only_run, train_quietly, untimed

import train
from datasets import demo
from deploy.detector import Detector
from engine.run_folder import Run
from utils import checkpoint

ROOT = Path(__file__).parents[1]
CHECKPOINT = Path("runs/mine-2026-01-30-1/best.pt")  # the newest run of the name `mine` that the page uses
NOTEBOOK = ROOT / "docs/first_detector.ipynb"
TEXT = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
ROWS = [{"epoch": 1, "loss": 2.5, "skipped_steps": 0}, {"epoch": 2, "loss": 1.5, "skipped_steps": 0, "AP": 0.25}]


def block(mark: str) -> str:
    """The first block of the page with this text."""
    return next(block for block in BLOCKS if mark in block)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_a_program():
    for code in BLOCKS:
        compile(code, "integrations.md", "exec")


@pytest.mark.slow
def test_supervision_gets_equal_boxes_scores_and_class_ids(place):
    pytest.importorskip("supervision", reason="pip install supervision")
    lively_checkpoint(place / CHECKPOINT, image_size=(96, 128), metrics={"confidence": 0.2})
    cv2.imwrite("photo.jpg", noise(0, 96, 128))
    names = {}
    exec(block('detector("photo.jpg")'), names)
    found, (result,) = names["detections"], Detector(CHECKPOINT)("photo.jpg")
    assert len(found) == len(result.scores) > 5
    np.testing.assert_array_equal(found.xyxy, result.boxes)
    np.testing.assert_array_equal(found.confidence, result.scores)
    np.testing.assert_array_equal(found.class_id, result.labels)


@pytest.mark.slow
def test_optuna_trains_once_per_trial_and_keeps_the_best(place, demo_images, capsys):
    optuna = pytest.importorskip("optuna", reason="pip install optuna")
    shutil.copytree(demo_images, "data/mine")
    code = block("create_study").replace("epochs=10", "epochs=2, **small").replace("n_trials=20", "n_trials=2")
    written = ("epochs", "learning_rate", "name")  # by the code of the page
    names = {"small": {name: value for name, value in SMALL.items() if name not in written}}
    exec(code, names)
    study = names["study"]
    assert [path.name.partition("-")[0] for path in sorted(Path("runs").iterdir())] == ["trial0", "trial1"]
    for number, trial in enumerate(study.trials):
        (folder,) = Path("runs").glob(f"trial{number}-*")
        config = json.loads((folder / "config.json").read_text())
        assert {name: config[name] for name in trial.params} == trial.params
        assert trial.value == checkpoint.load(folder / "best.pt")["metrics"]["AP"]
    assert study.best_value == max(trial.value for trial in study.trials)
    assert str(study.best_params) in capsys.readouterr().out and optuna.__version__


def test_on_row_gets_every_row_once_when_its_epoch_is_saved(demo_images, tmp_path):
    rows = []

    def on_row(row, run):
        assert (run.folder / "last.pt").exists() and log_of(run.folder)[-1]["epoch"] == str(row["epoch"])
        rows.append(row)
        if len(rows) == 2:
            raise ConnectionError("the logger's own")

    cfg = config(demo_images, tmp_path / "runs", epochs=3, evaluate_every=2)
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


@pytest.mark.slow
def test_the_notebook_runs_from_start_to_end(tmp_path):
    """In a copy of the project, with the real weights where there are any, and from scratch otherwise."""
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    for name in ("datasets", "deploy", "engine", "metrics", "nets", "report", "utils"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "train.py", tmp_path)
    (tmp_path / "docs").mkdir()
    notebook = nbformat.read(NOTEBOOK, 4)
    weights = ROOT.parent / "shared/weights/yolox_nano.pth"
    if weights.exists():
        shutil.copy(weights, tmp_path)
    else:
        for cell in notebook.cells:
            cell.source = cell.source.replace('else "coco"', "else None")
    nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "docs")}}
    ).execute()
    (folder,) = (tmp_path / "runs").iterdir()
    rows = (folder / "log.csv").read_text().splitlines()
    ap = float(rows[-1].split(",")[rows[0].split(",").index("AP")])
    assert ap > 0.3 or not weights.exists()
    assert torch.load(folder / "best.pt", weights_only=True)["classes"] == list(demo.CLASSES)
