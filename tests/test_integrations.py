"""docs/integrations.md: each block of code runs with its package. docs/first_detector.ipynb runs from start to end.

The packages are not in requirements.txt: without them a test is skipped.
"""

import ast
import base64
import functools
import importlib
import json
import re
import shutil
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from browser import CHROMIUM
from files import noise
from lively import lively_checkpoint
from small import SMALL

import nets
from datasets import demo
from deploy.detector import Detector
from nets.pretrained import COCO_CLASSES
from utils import checkpoint
from utils.draw import draw_boxes

ROOT = Path(__file__).parents[1]
CHECKPOINT = Path("runs/mine-2026-01-30-1/best.pt")  # the newest run of the name `mine` that the page uses
NOTEBOOK = ROOT / "docs/first_detector.ipynb"
MARKS = {"supervision": 'detector("photo.jpg")', "tracking": "tracker, capture =", "counting": "LineZone"}
MARKS |= {"gradio": "gr.Interface", "optuna": "create_study", "fiftyone": "# not run"}


def blocks() -> list[str]:
    """The blocks of Python code of the page, without the loggers, which test_loggers.py runs."""
    text = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(?!def on_row)(.*?)^```", text, re.MULTILINE | re.DOTALL)


def block(name: str) -> str:
    """The only block with the mark of this name."""
    (found,) = [one for one in blocks() if MARKS[name] in one]
    return found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def coco_checkpoint(shared: Path) -> Path:
    """Writes the real weights as a checkpoint of a training, where the page expects one."""
    state, *_ = nets.read_weights(shared / "weights/yolox_nano.pth", "yolox_nano")
    config = {"model": "yolox_nano", "image_size": (416, 416), "val": None}
    contents = {"config": config, "classes": list(COCO_CLASSES), "epoch": 1, "step": 1, "metrics": {}, "model": state}
    CHECKPOINT.parent.mkdir(parents=True)
    checkpoint.save(CHECKPOINT, contents)
    return CHECKPOINT


def test_every_block_has_a_test_or_says_that_it_was_not_run():
    assert sorted(blocks()) == sorted(map(block, MARKS))
    for code in blocks():
        compile(code, "integrations.md", "exec")


@pytest.mark.slow
def test_supervision_gets_equal_boxes_scores_and_class_ids(place):
    pytest.importorskip("supervision", reason="pip install supervision")
    lively_checkpoint(place / CHECKPOINT, image_size=(96, 128), metrics={"confidence": 0.2})
    cv2.imwrite("photo.jpg", noise(0, 96, 128))
    names = {}
    exec(block("supervision"), names)
    found, (result,) = names["detections"], Detector(CHECKPOINT)("photo.jpg")
    assert len(found) == len(result.scores) > 5
    np.testing.assert_array_equal(found.xyxy, result.boxes)
    np.testing.assert_array_equal(found.confidence, result.scores)
    np.testing.assert_array_equal(found.class_id, result.labels)
    assert tuple(found.data["class_name"]) == result.names


@pytest.fixture
def crossing(place, shared) -> dict[str, Detector]:
    """Names for a block; video.mp4, in which a bear and a stop sign pass each other, one to the right and one to the left."""
    for package in ("supervision", "trackers"):
        pytest.importorskip(package, reason=f"pip install {package}")
    coco_checkpoint(shared)
    folder = shared / "data/coco_val326/images"
    objects = [cv2.resize(cv2.imread(str(folder / f"{i:012}.jpg")), (220, 260)) for i in (285, 724)]  # bear, stop sign
    video = cv2.VideoWriter("video.mp4", cv2.VideoWriter_fourcc(*"mp4v"), 25, (640, 640))
    for step in range(16):
        frame = np.full((640, 640, 3), 114, np.uint8)
        for (x, y), image in zip(((70 + 18 * step, 30), (350 - 18 * step, 340)), objects, strict=True):
            frame[y : y + 260, x : x + 220] = image
        video.write(frame)
    video.release()
    return {"detector": Detector(CHECKPOINT, device="cpu")}


@pytest.mark.slow
def test_tracking_keeps_the_number_of_each_object(crossing, capsys):
    exec(block("tracking"), crossing)
    rows = re.findall(r"^(-?\d+) ([a-z ]+) \[", capsys.readouterr().out, re.MULTILINE)
    numbers = {
        name: [number for number, other in rows if other == name and number != "-1"] for name in ("bear", "stop sign")
    }
    for found in numbers.values():
        assert len(found) >= 12 and len(set(found)) == 1, numbers
    assert set(numbers["bear"]) != set(numbers["stop sign"])


@pytest.mark.slow
def test_objects_are_counted_once_and_those_that_cross_the_line_with_their_direction(crossing, capsys):
    exec(block("counting"), crossing)
    assert "2 objects, 2 crossed" in capsys.readouterr().out
    assert (crossing["line"].in_count, crossing["line"].out_count) == (1, 1)
    crossing["ends"] = crossing["supervision"].Point(630, 0), crossing["supervision"].Point(630, 640)
    elsewhere = "\n".join(row for row in block("counting").splitlines() if not row.startswith("ends ="))
    exec(elsewhere, crossing)
    assert "2 objects, 0 crossed" in capsys.readouterr().out


@pytest.mark.slow
def test_an_image_that_is_dropped_on_the_gradio_page_comes_back_with_boxes(place, monkeypatch):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    gradio = pytest.importorskip("gradio", reason="pip install gradio")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if not CHROMIUM:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    lively_checkpoint(place / CHECKPOINT, image_size=(96, 128), metrics={"confidence": 0.5})
    monkeypatch.setattr(
        gradio.Interface,
        "launch",
        functools.partialmethod(gradio.Interface.launch, prevent_thread_lock=True, quiet=True),
    )
    names = {}
    exec(block("gradio"), names)
    image, page = noise(0, 96, 128), names["page"]
    (result,) = names["detector"](image)
    expected = draw_boxes(image, result.boxes, result.labels, names["detector"].classes, result.scores)
    assert len(result.scores) and not np.array_equal(expected, image)
    data = base64.b64encode(cv2.imencode(".png", image)[1].tobytes()).decode()
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            tab = browser.new_page()
            errors = []
            tab.on("pageerror", lambda error: errors.append(error))
            tab.goto(page.local_url, timeout=120_000, wait_until="domcontentloaded")
            tab.wait_for_selector("input[type=file]", state="attached", timeout=120_000)
            tab.evaluate(DROP, data)
            tab.wait_for_function(TWO_IMAGES, timeout=120_000)
            sources = tab.eval_on_selector_all("img", "images => images.map(image => image.src)")
            shown = [read_url(source) for source in sources]  # while the server runs
            browser.close()
    finally:
        page.close()
        gradio.close_all()
    assert not errors
    assert any(np.array_equal(one, expected) for one in shown), sources


DROP = """data => {
    const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "photo.png", {type: "image/png"}));
    const target = document.querySelector("input[type=file]");
    for (const kind of ["dragenter", "dragover", "drop"])
        target.dispatchEvent(new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""


TWO_IMAGES = "[...document.images].filter(image => image.src.startsWith('http') && image.naturalWidth).length >= 2"


def read_url(address: str) -> np.ndarray | None:
    """Reads an image from a local server; None if it is none."""
    if not address.startswith("http://127.0.0.1"):
        return None
    with urllib.request.urlopen(address, timeout=30) as answer:
        return cv2.imdecode(np.frombuffer(answer.read(), np.uint8), cv2.IMREAD_COLOR)


@pytest.mark.slow
def test_optuna_trains_once_per_trial_and_keeps_the_best(place, demo_images, capsys):
    optuna = pytest.importorskip("optuna", reason="pip install optuna")
    shutil.copytree(demo_images, "data/mine")
    code = block("optuna").replace("epochs=10", "epochs=2, **small").replace("n_trials=20", "n_trials=2")
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
