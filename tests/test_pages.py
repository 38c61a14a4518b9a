"""Every command and every Python block of the pages runs, on a small stand-in of the data that the page has in mind.

Each runs in a new copy of one folder (see `stand_ins`), which holds files and folders under the names that the pages use.
`python SCRIPT` and `python -m MODULE` run within the test's process, torchrun and pip as separate programs.

What differs from the page: placeholders have values (see `filled`), the words of OVERRIDES follow the words of the command, so
that a training takes a second and not an hour, and the weights of a tiny model stand in for official ones (no downloads).
A new page needs nothing here, unless it uses a file that is missing in `stand_ins` or a script that OVERRIDES must make fast.
"""

import ast
import contextlib
import glob
import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pages
import pytest
import torch
from lively import lively
from pages import ROOT, text_of
from painted import drawn
from refused import refused
from small import SMALL, TINY_WEIGHTS, train_quietly

import nets
import train
from datasets import demo
from nets.pretrained import COCO_CATEGORY_IDS, COCO_CLASSES
from utils.config import override

EXCEPTIONS = {  # command -> why it does not run here
    "git clone ADDRESS thaw": "needs the address of a repository, and a network",
    "python3 -m venv .venv": "test_first_block.py runs it",
    "source .venv/bin/activate": "test_first_block.py runs it",
    "py -m venv .venv": "a program of Windows",
    "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu": "needs a network",
    "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu130": "needs a network",
    "uv run train.py": "needs uv and a network",
    "uv run predict.py ...": "needs uv and a network",
    "uv run pytest": "needs uv and a network",
    "python -m pytest": "runs these tests",
    "tensorboard --logdir runs": "a server, which does not end",
    "python -m tests.stress minutes=60": "takes an hour; test_torture.py runs its parts",
    "python train.py device=cuda:all": "needs several GPUs; test_simulated_gpu.py simulates them",
    "docker build -t thaw .": "needs Docker; test_platforms.py runs the commands of the Dockerfile",
    "docker build -t thaw --build-arg BASE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime .": "needs Docker, as above",
    'docker run --rm -v "$PWD/data:/thaw/data" -v "$PWD/runs:/thaw/runs" thaw python train.py train=data/mine '
    "name=mine": "needs Docker",
    'docker run --rm --gpus all --shm-size=4g -v "$PWD/data:/thaw/data" -v "$PWD/runs:/thaw/runs" thaw python train.py '
    "train=data/mine name=mine": "needs Docker and a GPU",
    "python -m docs.draw": "replaces images in docs/images of the repository",
    "git apply change.diff": "test_extend.py applies every diff of the page",
    "python train.py model=resnet_18 weights=none": "needs the change of its page; test_extend.py trains with it",
    "python train.py optimizer=nadam": "needs the change of its page; test_extend.py trains with it",
    "python -m tools.suspects apply=runs/suspects-DATE-1 accept=1-11,14": "needs proposals; test_suspects.py applies some",
    "ovc best.onnx --compress_to_fp16=False": "a program of OpenVINO, which is no requirement",
    'pnnx best.onnx "inputshape=[1,3,416,416]" fp16=0': "a program of ncnn, which is no requirement",
    "trtexec --onnx=best.onnx --saveEngine=best.engine --fp16": "a program of TensorRT, which needs a GPU",
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 --rdzv_id=JOB "
    "--rdzv_conf=read_timeout=600 --max-restarts=3 train.py name=mine ...": "needs two computers; test_nodes.py "
    "runs two nodes in network namespaces",
    # the first line of a script stands for all of it
    "#!/bin/bash": "scripts for Slurm and SageMaker; test_engines.py runs them with stand-ins for the programs of Slurm",
    "# ray_train.py": "test_engines.py runs it in a cluster of Ray",
    "python ray_train.py": "a file of its page; test_engines.py runs it in a cluster of Ray",
    "# sagemaker_job.py": "needs an account of AWS",
    **dict.fromkeys(
        (
            "python train.py train=s3://BUCKET/set name=mine output=s3://BUCKET/runs",
            "python train.py resume=true name=mine output=s3://BUCKET/runs",
            "python evaluate.py checkpoint=s3://BUCKET/runs/mine-DATE-1/best.pt data=s3://BUCKET/set split=test",
            "python predict.py checkpoint=s3://BUCKET/runs/mine-DATE-1/best.pt source=s3://BUCKET/new_images",
        ),
        "needs a bucket; test_buckets.py and test_addresses.py do the same",
    ),
    **dict.fromkeys(
        (
            "mount-s3 --read-only BUCKET /mnt/bucket",
            "rclone mount --read-only --vfs-cache-mode full REMOTE:BUCKET /mnt/bucket --daemon",
            "aws s3 sync s3://BUCKET/set data/set",
            "python train.py train=/mnt/bucket/set name=mine",
            "python -m tools.check data=s3://BUCKET/set",
        ),
        "programs of others, which are no requirements, and the folder that they make",
    ),
}
SLOW = (
    r"^torchrun|checkpoint=coco|evaluate\.py .*model=|epochs=100 |export\.py|tools\.suspects|\.onnx|^python train\.py$"
    r"|tests\.fuzz"
)

OVERRIDES = {  # script -> words that follow the words of the command, so that it is fast
    "train.py": f"model=tiny_n weights={TINY_WEIGHTS} image_size=64,64 epochs=1 freeze_epochs=0 no_aug_epochs=0 batch_size=4 "
    "freeze_batch_size=4 workers=0 device=cpu",
    "evaluate.py": "workers=0 device=cpu",
    "predict.py": "device=cpu",
    "export.py": "check_images=1",
    "tools.suspects": "epochs=1 image_size=64,64 weights=none",
    "tests.fuzz": "inputs=60 corpus=found",
}
OF_OFFICIAL_WEIGHTS = ["model=tiny_n", "image_size=64,64"]  # for commands of other scripts with model=
PROMISED = {  # script -> files that every run of it writes
    "train.py": ("best.pt", "last.pt", "log.csv", "curves.png", "train_batch_1.jpg", "val_predictions.jpg"),
    "evaluate.py": ("metrics.json", "detections.json", "precision_recall.png", "confusion_matrix.png"),
    "predict.py": ("detections.json",),
    "export.py": (".onnx",),
    "tools.suspects": ("suspects.html", "suspects.txt", "suspects.csv"),
}
NOT_REQUIRED = "{}, which a page names, is not in requirements.txt"
MINE, MORE = "runs/mine-2026-01-30-1", "runs/more-2026-01-30-1"  # runs: one of the stand-ins, one with more classes
DATA = ["train=data/mine/train.txt", "val=data/mine/val.txt"]  # for `...` after train.py
ELSEWHERE = {
    "checkpoint": f"{MINE}/best.pt",
    "source": "images",
    "data": DATA[1].partition("=")[2],
}  # for NAME=...
OUTPUTS = ("output", "page", "json", "html")  # constants whose value is a file or folder to write


def every(found: Callable[[str], list[str]]) -> list[tuple[str, str]]:
    """(page, command or block) of all pages, each once: at the first page that has it."""
    places: dict[str, str] = {}
    for page in pages.USER_PAGES:
        for one in found(text_of(page)):
            places.setdefault(one, page.name)
    return [(page, one) for one, page in places.items()]


COMMANDS = every(pages.commands)
BLOCKS = every(lambda text: pages.code(text, "python"))
RUN = re.compile(r"runs/\w+-(DATE-1|\.\.\.)")  # a run folder as the pages name it


def first_line(command: str) -> str:
    return command.splitlines()[0]


def parameter(page: str, command: str):
    """A command to run as a parameter of a test, marked as slow if it is."""
    marks = [pytest.mark.slow] if re.search(SLOW, command) else []
    return pytest.param(command, id=f"{page}: {command}", marks=marks)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    """A folder with everything that the pages name: data sets, images, a video, a run, weights."""
    folder = tmp_path_factory.mktemp("pages")
    parts = {"train": range(6), "val": range(6, 9), "test": range(9, 11)}
    for name in ("data/mine", "FOLDER", "data/tiles", "data/voc"):
        (folder / name).mkdir(parents=True)
        drawn(folder / name, parts)
        (folder / name / "classes.txt").write_text("\n".join(demo.CLASSES))
    shutil.copytree(folder / "FOLDER", folder / "NEW")  # classes that no model has
    (folder / "NEW/classes.txt").write_text("\n".join(f"new {name}" for name in demo.CLASSES))
    for name, part in itertools.product(("tiles", "voc"), ("train", "val")):
        (folder / f"data/{name}/{part}.txt").rename(folder / f"data/{name}/all_{part}.txt")
    for name in ("images", "new_images", "large_images", "data/VOC2012"):
        (folder / name).mkdir()
        for number in range(3 if "images" in name else 9):
            shutil.copy(folder / f"FOLDER/{number}.png", folder / name)
    for number in range(9):
        box = "<xmin>2</xmin><ymin>3</ymin><xmax>30</xmax><ymax>40</ymax>"
        shape = f"<filename>{number}.png</filename><size><width>320</width><height>240</height></size>"
        named = f"<annotation>{shape}<object><name>star</name><bndbox>{box}</bndbox></object></annotation>"
        (folder / f"data/VOC2012/{number}.xml").write_text(named)
    for name in ("VOC", "VOCdevkit/VOC2007"):
        shutil.copytree(folder / "data/VOC2012", folder / name)
    shutil.copy(ROOT / "requirements.txt", folder)
    (folder / "docs/images").mkdir(parents=True)
    shutil.copy(ROOT / "docs/images/rider.jpg", folder / "docs/images")
    image = cv2.imread(str(folder / "FOLDER/0.png"))
    for name in ("a.jpg", "b.jpg", "photo.jpg", "image.jpg", "large.jpg", "raccoon-186.jpg"):
        cv2.imwrite(str(folder / name), image)
    video = cv2.VideoWriter(str(folder / "video.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    for shift in range(6):
        video.write(np.roll(cv2.resize(image, (64, 48)), shift, 1))
    video.release()
    weights_and_data(folder)
    return folder


def weights_and_data(folder: Path) -> None:
    """Writes a trained run, weights of another program with COCO's classes, and data for these."""
    with contextlib.chdir(folder):  # a run holds the paths of its data
        trained, *_ = train_quietly(override(train.Config(**SMALL), [*DATA, "epochs=2", "output=runs"]))
        trained.rename(MINE)
    shutil.copy(folder / MINE / "best.pt", folder)
    official = lively(nets.build("tiny_n", len(COCO_CLASSES)), (64, 64))
    torch.save(official.state_dict(), folder / "yolox_s.pth")
    images = [{"id": 1, "file_name": "images/0.png", "width": 320, "height": 240}]
    boxes = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [3, 4, 50, 60], "area": 3000, "iscrowd": 0}]
    names = [{"id": i, "name": n} for i, n in zip(COCO_CATEGORY_IDS, COCO_CLASSES, strict=True)]
    coco = {"images": images, "annotations": boxes, "categories": names}
    (folder / "instances_val2017.json").write_text(json.dumps(coco))
    (folder / "coco/annotations").mkdir(parents=True)
    for part in ("train", "val"):
        placed = [{**images[0], "file_name": "../../images/0.png"}]
        (folder / f"coco/annotations/instances_{part}2017.json").write_text(json.dumps({**coco, "images": placed}))


@pytest.fixture
def place(stand_ins: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of the folder of stand-ins, as the current folder; a small demo; official weights without a download."""
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # restored: scripts replace them
    monkeypatch.setattr(demo, "IMAGES", {"train": 12, "val": 4})
    monkeypatch.setattr(nets, "fetch_weights", lambda *_, **__: tmp_path / "yolox_s.pth")
    return tmp_path


# ---- running


def filled(command: str) -> list[str]:
    """The words of a command, with values in place of `...`."""
    words = []
    for word in pages.words_of(command):
        name, _, value = word.partition("=")
        if word == "...":  # constants of a training, or options of torchrun
            words += DATA if "train.py" in words else []
        elif value == "...":
            words.append(f"{name}={ELSEWHERE[name]}")
        else:
            words += glob.glob(word) or [RUN.sub(MINE, word.replace("runs/more-DATE-1", MORE))]
    return words


def replaced(words: list[str], overrides: list[str]) -> list[str]:
    """The words of a command with `overrides` in place of other values of the same constants."""
    names = {word.partition("=")[0] for word in overrides}
    return [word for word in words if word.partition("=")[0] not in names] + overrides


def overrides_of(script: str, words: list[str]) -> list[str]:
    """The words that follow the words of a command."""
    with_model = script != "train.py" and any(word.startswith("model=") for word in words)
    own = any(word.startswith("weights=runs/") for word in words)  # a checkpoint of the page stays the initial weights
    fast = [word for word in OVERRIDES.get(script, "").split() if not (own and word.startswith("weights="))]
    return [*fast, *(OF_OFFICIAL_WEIGHTS if with_model else [])]


def run(command: str) -> str:
    """Runs a command of a page in the current folder and returns the name of its script. Fails unless it succeeds."""
    words = filled(command)
    if words[0] == "export":
        name, value = words[1].split("=")
        os.environ[name] = value
        return "export"
    if words[0] == "pip":  # what is there already needs no download
        words = words[: words.index("--index-url")] if "--index-url" in words else words
        for name in () if "-r" in words else words[2:]:
            pytest.importorskip(name, reason=NOT_REQUIRED.format(name))
        return run_program([sys.executable, "-m", "pip", *words[1:], "--dry-run", "--no-index"], "pip")
    if words[0] == "torchrun":
        return run_torchrun(words[1:])
    if words[:2] == ["python", "-c"]:
        print(run_program([sys.executable, *words[1:]], "python"))
        return "python"
    assert words[0] == "python", f"{command}: run() cannot run {words[0]}; extend it, or add the command to EXCEPTIONS"
    is_module = words[1] == "-m"
    script, *rest = words[2:] if is_module else words[1:]
    if script == "tools.convert":
        for folder in ("data/mine", "data/tiles", "data/voc"):  # it writes a new data set there
            shutil.rmtree(folder, ignore_errors=True)
    if "resume=true" in rest or "resume=mine" in rest:
        shutil.copytree(MINE, "runs/mine-2026-01-31-1")
    if is_resumed(rest):  # the stand-in has two epochs
        return run_python(script, is_module, replaced(rest, ["epochs=3"]))
    return run_python(script, is_module, replaced(rest, overrides_of(script, rest)))


def is_resumed(words: list[str]) -> bool:
    return any(word.startswith("resume=") for word in words)


def run_python(script: str, is_module: bool, words: list[str]) -> str:
    """Runs a script or a module in this process."""
    file = ROOT / script if (ROOT / script).is_file() else Path(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(file), *words])
        try:
            if is_module:
                patch.delitem(sys.modules, script, raising=False)  # runpy warns of a module that is imported already
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(file), run_name="__main__")
        except SystemExit as error:
            assert error.code in (None, 0), error.code
    return script


def run_torchrun(words: list[str]) -> str:
    """Runs a training of torchrun: two processes on the CPU stand in for those on GPUs."""
    at = words.index("train.py")
    options = [word.replace("nproc_per_node=8", "nproc_per_node=2") for word in words[:at] if word != "--standalone"]
    rest = [str(ROOT / "tests/tiny.py"), *replaced(words[at + 1 :], overrides_of("train.py", []))]
    rest += [] if any(word.startswith("train=") for word in words) else DATA
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return run_program([*start, *options, *rest], "train.py")


def run_program(words: list[str], name: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return name


def files(folder: Path) -> dict[Path, int]:
    """All files in a folder, with the times of their changes."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def missing(script: str, words: list[str], changed: set[Path]) -> list[str]:
    """What a command has promised to write, by its script and its constants, and has not written."""
    promised = [] if "--help" in words else list(PROMISED.get(script, ()))
    if is_resumed(words):
        promised = ["last.pt", "log.csv", "curves.png"]  # the others may be there already
    for word in words:
        name, _, value = word.partition("=")
        if name in OUTPUTS:
            promised.append(Path(value).name)
        elif script == "tools.convert" and word.endswith(".txt"):
            stem = Path(word).stem
            promised += ["classes.txt", f"{stem}_train.txt" if "split=" in " ".join(words) else f"{stem}.txt"]
    written = [part for path in changed for part in path.parts] + [path.suffix for path in changed]
    return [name for name in promised if name not in written]


@pytest.mark.parametrize("command", [parameter(*one) for one in COMMANDS if first_line(one[1]) not in EXCEPTIONS])
def test_a_command_of_a_page_runs_and_writes_what_it_promises(command, place, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")  # what a command exports ends with the test
    if ".onnx" in command:
        run(f"python export.py {MINE}/best.pt output=best.onnx")
    before = files(place)
    script = run(command)
    changed = {path.relative_to(place) for path, when in files(place).items() if before.get(path) != when}
    assert not missing(script, filled(command), changed), (sorted(map(str, changed)), capsys.readouterr().out)
    assert changed or capsys.readouterr().out or script in ("export", "pip")


TO_RUN = [one for one in BLOCKS if first_line(one[1]) not in EXCEPTIONS]


@pytest.mark.parametrize(
    ("page", "block"), [pytest.param(*one, id=f"{one[0]}: {first_line(one[1])}") for one in TO_RUN]
)
def test_a_python_block_of_a_page_runs(page, block, place, monkeypatch):
    """In the same module, the functions of earlier blocks of its page that it uses are defined before."""
    earlier = [other for name, other in BLOCKS[: BLOCKS.index((page, block))] if name == page]
    trees = [definitions(other) for other in earlier if defined(other) & used(block)]
    trees.append(ast.parse(RUN.sub(MINE, block)))
    if "onnx_detector" in packages_of(trees[-1]):  # it comes from an export
        run(f"python export.py {MINE}/best.pt output=best.onnx")
        monkeypatch.syspath_prepend(place)
        monkeypatch.delitem(sys.modules, "onnx_detector", raising=False)
    names = {"__name__": "page", "shorter": lambda cfg: override(cfg, OVERRIDES["train.py"].split())}
    for tree in trees:
        for package in packages_of(tree):
            pytest.importorskip(package, reason=NOT_REQUIRED.format(package))
        exec(compile(with_short_trainings(tree), page, "exec"), names)


def with_short_trainings(tree: ast.Module) -> ast.Module:
    """Replaces train.main(cfg) by train.main(shorter(cfg)), in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "train.main":
            node.args[0] = ast.Call(ast.Name("shorter", ast.Load()), [node.args[0]], [])
    return ast.fix_missing_locations(tree)


def definitions(block: str) -> ast.Module:
    """The imports, functions and classes of a Python block, without what it does."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return ast.Module([node for node in ast.parse(block).body if isinstance(node, kinds)], [])


def defined(block: str) -> set[str]:
    """The names of the functions and classes of a Python block."""
    return {node.name for node in definitions(block).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def used(block: str) -> set[str]:
    """The names that a Python block reads."""
    return {node.id for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Name)}


def packages_of(tree: ast.Module) -> set[str]:
    """The packages that a program imports."""
    nodes = list(ast.walk(tree))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_no_exception_is_stale():
    assert set(EXCEPTIONS) <= {first_line(one) for _, one in COMMANDS + BLOCKS}
    assert all(len(reason) > 10 for reason in EXCEPTIONS.values())


def test_code_blocks_have_a_language_that_is_tested_or_is_no_program():
    known = {"bash", "python"}, {"diff", "", "json", "yaml", "dockerfile"}  # test_extend.py applies diffs
    for page in pages.USER_PAGES:
        assert {language for language, _ in pages.blocks(text_of(page))} <= set().union(*known), page.name


def test_blocks_get_the_functions_of_earlier_blocks_only_where_they_use_them():
    first = "import os\n\ndef count():\n    return len(os.listdir())\n\nprint(count())\n"
    assert defined(first) == {"count"} and used("n = count()") == {"n", "count"}
    assert [type(node).__name__ for node in definitions(first).body] == ["Import", "FunctionDef"]
    assert packages_of(ast.parse("def f():\n    import wandb.sdk\n    from a.b import c")) == {"wandb", "a"}


def test_a_command_that_fails_or_writes_nothing_is_noticed(place):
    with refused(AssertionError, "nothing.pt"):
        run("python predict.py nothing.pt images")
    with refused(AssertionError, "curl"):
        run("curl example.org")
    assert missing("evaluate.py", ["output=results"], {Path("results/metrics.json")}) == [
        "detections.json", "precision_recall.png", "confusion_matrix.png"
    ]  # fmt: skip
