"""What a visitor copies: the blocks of the READMEs, from top to bottom, in an environment of their own."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from lively import lively
from pages import ROOT, code, text_of
from painted import drawn

import nets
from datasets import demo
from nets.pretrained import COCO_CLASSES

SHORTER = '''"""Python imports this file at its start: the programs get words that follow those of the command."""
import sys
from pathlib import Path

words = sys.orig_argv[1:]
words = words[1:] if words[:1] == ["-u"] else words  # torchrun starts its processes so
module = words[0] == "-m" if words else False
name = Path(words[module]).name if words else ""
train = "image_size=64,64 epochs=1 freeze_epochs=0 no_aug_epochs=0 batch_size=4 workers=0 device=cpu"
more = {"tools.suspects": "epochs=1 image_size=64,64 weights=none", "evaluate.py": "workers=0 device=cpu"}
more["train.py"] = "" if any(word.startswith("resume=") for word in words) else train
given = {word.partition("=")[0] for word in words}
sys.argv += [word for word in more.get(name, "").split() if word.partition("=")[0] not in given]
'''


@pytest.fixture
def visitor(tmp_path: Path) -> Path:
    """The folder of the program, with data and images of the visitor. Its official files have random weights."""
    folder = tmp_path / "thaw"
    left = shutil.ignore_patterns(".*", "__pycache__", "data", "runs", "tests", "benchmarks")
    shutil.copytree(ROOT, folder, ignore=left)
    for name in ("FOLDER", "NEW", "images"):
        (folder / name).mkdir()
        drawn(folder / name, {} if name == "images" else {"all": range(10)})
        if name != "images":
            names = COCO_CLASSES if name == "FOLDER" else demo.CLASSES  # of COCO: the model knows them without training
            (folder / name / "classes.txt").write_text("\n".join(names[: len(demo.CLASSES)]))
    shutil.copy(folder / "FOLDER/0.png", folder / "images")
    addresses = folder / "nets/pretrained.py"
    for size in ("nano", "s"):
        file = tmp_path / "cache" / f"yolox_{size}.pth"
        file.parent.mkdir(exist_ok=True)
        torch.save(lively(nets.build(f"yolox_{size}", 80), (64, 64)).state_dict(), file)
        digest = nets.MODELS["yolox"].weights[size].sha256
        addresses.write_text(text_of(addresses).replace(digest, hashlib.sha256(file.read_bytes()).hexdigest()))
    return folder


@pytest.mark.slow
def test_the_blocks_of_the_readme_run_as_they_are_written_one_after_the_other(visitor):
    """In one shell, as pasted: the environment, and all that the commands before have made, stay. The blocks of the Chinese
    page have the same lines (test_readme.py)."""
    blocks = code(text_of(ROOT / "README.md"), "bash")
    hook, packages = visitor.parent / "hook", sysconfig.get_paths()["purelib"]
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(SHORTER)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("THAW", "PIP", "PYTEST"))}
    own |= {
        "PYTHONPATH": f"{hook}{os.pathsep}{packages}",
        "THAW_CACHE": str(visitor.parent / "cache"),
        "PIP_NO_INDEX": "1",
    }
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # its python3 makes the environment
    done = subprocess.run(
        ["bash", "-ex"], input="\n".join(blocks), cwd=visitor, env=own, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not re.search("^Successfully installed|Traceback", done.stdout + done.stderr, re.MULTILINE)
    assert (visitor / ".venv/bin/python").exists()
    for path in ("found/rider.jpg", "check.html", "runs/demo-*/best.pt", "found/0.*", "runs/mine-*/best.onnx"):
        assert list(visitor.glob(path)), path


@pytest.mark.skipif(sys.platform == "win32", reason="the commands of a container for Linux")
def test_what_the_dockerfile_copies_is_the_whole_program(tmp_path):
    """Its last command, with other folders."""
    (command,) = re.findall(r"^RUN --mount=type=bind,target=/source (.*)", text_of(ROOT / "Dockerfile"), re.MULTILINE)
    (tmp_path / "thaw").mkdir()
    folders = {"/source": ROOT, "/thaw": tmp_path / "thaw"}  # replaced at once: either may be part of the other's path
    command = re.sub("/source|/thaw", lambda found: shlex.quote(str(folders[found[0]])), command)
    subprocess.run(["sh", "-ec", command], check=True)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    copied = {path.name for path in (tmp_path / "thaw").iterdir()}
    assert copied == {*(path.name for path in ROOT.glob("*.py")), *packages, "LICENSE", "NOTICE"}
