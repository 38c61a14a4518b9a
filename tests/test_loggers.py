"""`on_row` of train.py gets every row of log.csv once; the loggers of docs/integrations.md write them, in their offline modes."""

import re
from pathlib import Path

import pytest
from small import config, log_of, only_run, train_quietly, untimed

import train
from engine.run_folder import Run

PAGE = (Path(__file__).parents[1] / "docs/integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(def on_row.*?)```", PAGE, re.DOTALL)
EXAMPLES = {re.search(r"import (\w+)", code)[1]: code for code in BLOCKS}
ROWS = [{"epoch": 1, "loss": 2.5, "skipped_steps": 0}, {"epoch": 2, "loss": 1.5, "skipped_steps": 0, "AP": 0.25}]


def test_every_row_arrives_once_when_its_epoch_is_saved(demo_images, tmp_path):
    rows = []

    def on_row(row, run):
        assert (run.folder / "last.pt").exists() and log_of(run.folder)[-1]["epoch"] == str(row["epoch"])
        assert run.config["model"] == "tiny_n"
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


def example(name: str):
    """`on_row` of an example of the page."""
    assert len(EXAMPLES[name].splitlines()) <= 10
    space = {}
    exec(EXAMPLES[name], space)
    return space["on_row"]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "mine-2026-01-01-1", {"epochs": 2, "image_size": (64, 64), "classes": None})


def test_the_page_has_two_examples():
    assert list(EXAMPLES) == ["wandb", "mlflow"]


def test_wandb_writes_the_rows_offline(run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "DIR": tmp_path, "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    for row in ROWS:
        example("wandb")(row, run)
    assert wandb.run.id == wandb.run.name == run.folder.name and wandb.run.config["epochs"] == 2
    summary = {name: wandb.run.summary[name] for name in ROWS[1]}
    wandb.finish()
    assert summary == ROWS[1]
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 100


def test_mlflow_writes_the_rows_and_continues_a_resumed_run(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow is not installed as a whole")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for row in ROWS:
        example("mlflow")(row, run)
        mlflow.end_run()  # the second row comes from another process
    (found,) = mlflow.search_runs(experiment_names=["thaw"], output_format="list")
    assert found.info.run_name == run.folder.name and found.data.params["image_size"] == "(64, 64)"
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.5), (2, 1.5)]
    assert found.data.metrics["AP"] == 0.25
