"""Every command and every Python block of the pages runs, on small stand-ins for the files that it names.

Each runs in a new folder with a run named mine, and a data set FOLDER; `provide` makes what else it names. A training is as
short as OVERRIDES says, and a tiny model stands in for official weights. A new page needs nothing here. The commands of the
README run with the quick tests, all others with the slow ones.
"""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import pages
import pytest
import torch
from files import coco, text
from lively import lively
from pages import ROOT, text_of
from painted import drawn
from refused import refused
from small import SMALL, TINY_WEIGHTS, train_quietly

import nets
import train
from datasets import demo
from nets.pretrained import COCO_CLASSES
from utils.config import override

NOT_RUN = {  # pattern of commands and blocks -> why they do not run here
    r"git |source |py |python3 -m venv|\.venv/|uv |pip |docker ": "change the environment; .ci/run runs those of the README",
    r"tensorboard|python -m pytest|python -m docs": "servers, these tests, and what replaces images of the repository",
    r"ovc |pnnx |trtexec |sahi |python -m benchmarks": "other programs, and what takes hours",
    r".*s3://|mount-s3|rclone|.*/mnt/": "need a bucket; test_buckets.py does the same with a server on this computer",
    r"torchrun \.\.\.": "the options are those of the command that is resumed",
    r".*(--nnodes|cuda:all)": "test_nodes.py and test_simulated_gpu.py do the same",
    r"#!|# ray_train|python ray_train|# sagemaker": "test_engines.py runs those that need no account",
    r"python export\.py .*(format|check)=": "need packages of their own; test_formats.py runs what is installed",
    r"python detector": "test_deploy.py runs the program next to an exported file",
    r".*(model=resnet_18|optimizer=nadam)": "test_extend.py runs them after the change of the page",
    r"import (cv2|gradio|optuna|supervision)\b|# not run|def on_row": "test_integrations.py runs some, and compiles the others",
    r"export |python -m torch": "have no effect to see",
    r".*\.cuda\(\)": "needs a GPU",
}
QUICK = ("README.md",)
OVERRIDES = {  # script -> words that follow the words of the command, so that it is fast
    "train.py": f"model=tiny_n weights={TINY_WEIGHTS} image_size=64,64 epochs=1 freeze_epochs=0 no_aug_epochs=0 batch_size=4 "
    "freeze_batch_size=4 workers=0 device=cpu report=false",
    "evaluate.py": "workers=0 device=cpu",
    "predict.py": "device=cpu",
    "export.py": "check_images=1",
    "tools.suspects": "epochs=1 image_size=64,64 weights=none",
}
DATA = ["train=FOLDER/train.txt", "val=FOLDER/val.txt"]  # for `...` after train.py


def is_run(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern in NOT_RUN)


def found(kind) -> list:
    """Parameters of tests: the commands or blocks of all pages, each once, at the first page that has it."""
    first: dict[str, tuple[str, str]] = {}  # provide() makes a copy of FOLDER for that of VOC
    for page in pages.USER_PAGES:
        for command in filter(is_run, kind(text_of(page))):
            first.setdefault(command.replace("VOCdevkit/VOC2007", "FOLDER"), (command, page.name))
    slow = re.compile(r"torchrun|.*(export\.py|suspects|resume=)|python train\.py( train=FOLDER)?( val=\.2)?$")
    return [
        pytest.param(
            command,
            id=f"{page}: {command.splitlines()[0]}",
            marks=[pytest.mark.slow] if page not in QUICK or slow.match(command) else [],
        )
        for command, page in first.values()
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder with a data set, two runs, and a file of weights with COCO's classes."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "FOLDER").mkdir()
    drawn(folder / "FOLDER", {"train": range(6), "val": range(6, 9), "test": range(9, 11)})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a run holds the paths of its data
        run, *_ = train_quietly(override(train.Config(**SMALL), [*DATA, "epochs=2", "output=runs"]))
        for name in ("mine", "more"):
            shutil.copytree(run, f"runs/{name}-2026-01-30-1")
        shutil.rmtree(run)
    official = lively(nets.build("tiny_n", len(COCO_CLASSES)), (64, 64))
    torch.save(official.state_dict(), folder / "official.pth")
    return folder


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of the folder, as the current folder; a small demo; official weights without a download."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # restored: scripts replace them
    monkeypatch.setattr(demo, "IMAGES", {"train": 12, "val": 4})
    monkeypatch.setattr(nets, "fetch_weights", lambda *_, **__: tmp_path / "official.pth")
    return tmp_path


def provide(name: str) -> None:
    """Makes the image, video, annotations or folder that a page names, unless it is there."""
    path = Path(name)
    if path.exists() or not re.fullmatch(r"[\w./-]+", name) or path.is_absolute():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".jpg", ".png"):
        shutil.copy("FOLDER/0.png", path)
    elif path.suffix == ".mp4":
        video = cv2.VideoWriter(name, cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
        for _ in range(6):
            video.write(cv2.resize(cv2.imread("FOLDER/0.png"), (64, 48)))
        video.release()
    elif path.suffix == ".pt":
        shutil.copy("runs/mine-2026-01-30-1/best.pt", path)
    elif path.suffix == ".onnx":
        run(f"python export.py checkpoint=mine output={name}")
    elif path.suffix == ".json":
        shutil.copy("FOLDER/0.png", path.parent)
        text(path, coco("0.png"))
    elif path.suffix == ".txt":
        shutil.copytree("FOLDER", path.parent, dirs_exist_ok=True)
        shutil.copy("FOLDER/train.txt", path)
    elif not path.suffix:
        labels = shutil.ignore_patterns("*.txt") if "images" in name.lower() else None
        shutil.copytree("FOLDER", path, ignore=labels)
        if name == "NEW":  # classes that no model has
            text(path / "classes.txt", "\n".join(f"new {label}" for label in demo.CLASSES))


def replaced(words: list[str], overrides: list[str]) -> list[str]:
    """The words of a command with `overrides` in place of other values of the same constants."""
    names = {word.partition("=")[0] for word in overrides}
    return [word for word in words if word.partition("=")[0] not in names] + overrides


def short(script: str, words: list[str]) -> list[str]:
    """The words of a command, with data in place of `...`, and with those that make it fast."""
    words = [other for word in words for other in (DATA if word == "..." else [word])]
    if any(word.startswith("resume=") for word in words):
        return replaced(words, ["epochs=3"])  # the stand-in has two
    overrides = OVERRIDES.get(script, "").split()
    if script != "train.py" and any(word.startswith("model=") for word in words):
        overrides += ["model=tiny_n", "image_size=64,64"]
    return replaced(words, overrides)


def provide_inputs(words: list[str]) -> None:
    """Makes what the words of a command name: the values of some constants, and the first word without a name."""
    inputs = [
        word.partition("=")[2] for word in words if re.match("(train|val|data|source|checkpoint|image_root)=", word)
    ]
    inputs += [word for word in words if "=" not in word and not re.match(r"-|.*\.py$|tools\.|\.\.\.$", word)][:1]
    inputs += [word for word in words if word.endswith((".jpg", ".png"))]
    for name in inputs:
        if not Path(f"runs/{name}-2026-01-30-1").exists() and name not in ("coco", "objects365"):
            provide(name)


def run(command: str) -> None:
    """Runs a command of a page in the current folder. Fails unless it succeeds."""
    first, *words = pages.words_of(command)
    provide_inputs(words)
    if first == "torchrun":  # two processes on the CPU stand in for those on GPUs
        at = words.index("train.py")
        options = ["--standalone", "--nproc_per_node=2"]
        run_program(
            "-m", "torch.distributed.run", *options, str(ROOT / "tests/tiny.py"), *short("train.py", words[at + 1 :])
        )
        return
    assert first == "python", f"{command}: run() cannot run {first}; extend it, or add a pattern to NOT_RUN"
    if words[0] == "-c":
        print(run_program(*words))
        return
    is_module = words[0] == "-m"
    script, *words = words[is_module:]
    words = [str(path) for word in words for path in (sorted(Path().glob(word)) if "*" in word else [word])]
    run_python(script, is_module, short(script, words))


def run_python(script: str, is_module: bool, words: list[str]) -> None:
    """Runs a script or a module in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(ROOT / script), *words])
        try:
            if is_module:
                patch.delitem(sys.modules, script, raising=False)  # runpy warns of a module that is imported already
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as error:
            assert error.code in (None, 0), error.code


def run_program(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> dict[Path, int]:
    """All files in a folder, with the times of their changes."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", found(pages.commands))
def test_a_command_of_a_page_runs(command, place, capsys):
    before = files(place)
    run(command)
    assert files(place) != before or capsys.readouterr().out


@pytest.mark.parametrize("block", found(lambda page: pages.code(page, "python")))
def test_a_python_block_of_a_page_runs(block, place, monkeypatch):
    for name in re.findall(r'"([\w/.]+\.(?:jpg|mp4|txt))"', block):
        provide(name)
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            package = (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
            if package == "detector":  # it comes from an export
                provide("best.onnx")
                monkeypatch.syspath_prepend(place)
            pytest.importorskip(package, reason=f"{package} is not in requirements.txt")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "train.main":
            node.args[0] = ast.Call(ast.Name("shorter", ast.Load()), [node.args[0]], [])
    shorter = {"shorter": lambda cfg: override(cfg, OVERRIDES["train.py"].split())}
    exec(compile(ast.fix_missing_locations(tree), "page", "exec"), {"__name__": "page", **shorter})


def test_a_command_that_fails_is_noticed(place):
    with refused(AssertionError, "nothing"):
        run("python predict.py checkpoint=nothing source=images")
    with refused(AssertionError, "curl"):
        run("curl example.org")
