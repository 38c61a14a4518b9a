"""utils/start.py: wrong words and Ctrl-C are answered in one line, before PyTorch has been imported."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refused import mentions, refused, told

from utils import start
from utils.files import missing_text
from utils.start import misspelled

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "train.py",
    "evaluate.py",
    "predict.py",
    "export.py",
    "-m tools.check",
    "-m tools.suspects",
    "-m tools.convert",
)


def run(tmp_path: Path, command: str, torch: str) -> subprocess.CompletedProcess:
    """Runs a command whose PyTorch is the code `torch`."""
    (tmp_path / "torch.py").write_text(torch)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"} | {"PYTHONPATH": paths}
    words = [sys.executable, *command.split()]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", COMMANDS[::3])
def test_a_misspelled_constant_is_answered_before_pytorch_is_imported(tmp_path, command):
    done = run(tmp_path, f"{command} clases=cat", "import os; os._exit(9)")
    assert done.returncode == 1 and done.stdout == ""
    assert mentions(done.stderr, "classes=cat") and done.stderr.strip().count("\n") == 0


@pytest.mark.parametrize("command", COMMANDS[:4])
def test_ctrl_c_while_pytorch_is_imported_ends_with_one_line(tmp_path, command):
    handler = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a test in the background inherits SIG_IGN
    done = run(tmp_path, command, f"import os, signal, time; {handler}; os.kill(os.getpid(), 2); time.sleep(9)")
    assert done.returncode == -signal.SIGINT and done.stdout == ""
    assert mentions(done.stderr, "stopped") and done.stderr.strip().count("\n") == 0


@pytest.mark.parametrize("module", ["difflib", "cv2"])  # the first imports, and a slow one
@pytest.mark.parametrize("command", COMMANDS[2:5:2])
def test_ctrl_c_during_the_first_imports_ends_with_one_line(tmp_path, command, module):
    handler = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    (tmp_path / f"{module}.py").write_text(
        f"import os, signal, time; {handler}; os.kill(os.getpid(), 2); time.sleep(9)"
    )
    done = run(tmp_path, command, "import os; os._exit(9)")
    assert done.returncode == -signal.SIGINT and done.stdout == ""
    assert mentions(done.stderr, "stopped") and done.stderr.strip().count("\n") == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that is in use")
def test_a_folder_that_was_deleted_is_named_before_mkl_ends_the_process(tmp_path):
    gone = tmp_path / "gone"
    program = f"import os, runpy; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
    program += f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1 and len(done.stderr.split("\n\n")) == 1 and mentions(done.stderr, "cd")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_python_without_the_requirements_is_told_to_activate_the_environment(tmp_path, command):
    (tmp_path / "cv2.py").write_text("raise ModuleNotFoundError('no cv2', name='cv2')")
    done = run(tmp_path, command, "")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert mentions(done.stderr, "cv2") and mentions(done.stderr, "requirements.txt")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_older_python_is_told_which_one_is_needed(tmp_path, command):
    """Before anything is imported that it cannot read; the files up to there have no syntax that is newer than Python 3.8."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 10, 13, 'final', 0)")
    done = run(tmp_path, command, "import os; os._exit(9)")
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert mentions(done.stderr, "3.10") and mentions(done.stderr, "3.11")
    script = command.removeprefix("-m ").replace(".", "/").replace("/py", ".py")
    for file in (script if script.endswith(".py") else f"{script}.py", "utils/__init__.py"):
        ast.parse((ROOT / file).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_missing_system_library_is_reported_with_the_fix(tmp_path):
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    done = run(tmp_path, "train.py", "")
    assert done.returncode == 1 and "libGL.so.1" in done.stderr and "pip install opencv-python-headless" in done.stderr


@pytest.mark.parametrize(
    "version, other, needs, fault, index",
    [
        ("2.13.0+cpu", "0.28.0", "torch (==2.13.0)", "operator torchvision::nms does not exist", "/cpu"),
        ("2.15.0", "0.28.0", "torch==2.13.0", "operator torchvision::nms does not exist", None),
        ("2.7.0a0+nv25", "0.22.0a0", "torch", "", None),  # in a container of NVIDIA, other labels fit
        ("2.13.0", "0.28.0", "torch (==2.13.0)", None, None),  # no doubt: not imported, which would take seconds
    ],
)
def test_torch_and_torchvision_of_different_builds_are_told(monkeypatch, version, other, needs, fault, index):
    def imported():
        assert fault is not None
        if fault:
            raise RuntimeError(fault)

    monkeypatch.setattr(start.metadata, "version", {"torch": version, "torchvision": other}.get)
    monkeypatch.setattr(start.metadata, "requires", lambda _: ["numpy", needs])
    monkeypatch.setattr(start, "import_torchvision", imported)
    message = start.unfit_torchvision()
    if fault:
        told(message, version, other, fault, "pip install torch torchvision")
        assert message.partition("--index-url")[2].endswith(index or "")
    else:
        assert message is None


def test_a_torchvision_without_cuda_does_not_fit_to_a_torch_with_it(monkeypatch):
    start.import_torchvision()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.ops.torchvision, "_cuda_version", lambda: -1)
    with refused(RuntimeError, "torchvision", "CUDA"):
        start.import_torchvision()


def test_a_program_from_standard_input_may_import_train():
    code = "import sys; sys.modules['torch'] = None\ntry: import train\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-"], input=code, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert mentions(done.stdout, "torch") and done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "a=b.jpg").touch()
    return tmp_path


@pytest.mark.parametrize("words", ["weights.pt photos val=.2", "a=b.jpg", "mine 0 --name value", "no/such.txt"])
def test_words_that_may_be_right_are_left_to_the_script(folder, words):
    assert misspelled(words.split(), {"val"}) is None
    assert mentions(misspelled([*words.split(), "vall=.2"], {"val"}), "val=.2")


def test_a_path_below_a_folder_without_permission_is_not_called_missing(folder, monkeypatch):
    def denied(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", denied)  # for root, every folder is open
    told(missing_text("photos/a.png"), "Permission denied", "permissions")
    assert "no such file" not in missing_text("photos/a.png")


def test_only_a_similar_name_is_proposed(folder):
    """The folder of the command is named for a relative path only."""
    assert "did you mean photos?" in missing_text("photo") and "photos" in missing_text(str(folder / "photo"))
    assert str(folder) in missing_text("tset") and str(folder) not in missing_text("/nowhere/tset")
    (folder / "runs/mine-2026-01-31-2").mkdir(parents=True)
    assert f"did you mean {Path('runs/mine-2026-01-31-2')}?" in missing_text("runs/mine")
    (folder / "a.txt").touch()
    assert all("no such file" in missing_text(path) for path in ("", "a.txt/"))
