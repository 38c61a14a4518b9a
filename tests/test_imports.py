"""The structure of the project, read from the source: who imports whom, and what a start loads."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {
    "utils": 1,
    "nets": 2,
    "datasets": 2,
    "metrics": 2,
    "report": 3,
    "engine": 4,
    "deploy": 5,
    "tools": 6,
}  # scripts are above
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for pattern in ("*.py", *(f"{room}/**/*.py" for room in FLOORS))
    for path in ROOT.glob(pattern)
}
SCRIPTS = {name for name in MODULES if "." not in name}
PROGRAMS = {  # scripts and tools, with what they run
    name: main
    for name, path in MODULES.items()
    if "standalone" not in name  # they run without this project
    and (main := path.read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')[2])
}
HEAVY = {"matplotlib", "tensorboard", "pycocotools", "faster_coco_eval", "onnx", "onnxruntime"}


def imports(source: str) -> set[str]:
    """Absolute names of imported modules and of what is imported from them, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_import(node: ast.AST):
    """The nodes that run when the module is imported: all but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def forbidden(module: str, names: set[str]) -> set[str]:
    """The rooms and scripts of the project among the imported `names` that `module` must not import."""
    room = module.partition(".")[0]
    others = {name.partition(".")[0] for name in names} - {room}
    floor = FLOORS.get(room, max(FLOORS.values()) + 1)
    return {other for other in others & FLOORS.keys() if FLOORS[other] >= floor} | others & (
        SCRIPTS | {"tests", "benchmarks"}
    )


def test_imports_go_down():
    """From a room to the rooms below it; also imports inside functions."""
    wrong = {module: forbidden(module, imports(path.read_text(encoding="utf-8"))) for module, path in MODULES.items()}
    assert not {module: names for module, names in wrong.items() if names}


def test_every_script_and_tool_runs_by_run_script():
    """It ends Ctrl-C, closed pipes, full disks and characters that the terminal cannot show without a traceback."""
    assert {"train", "tools.check", "tools.convert", "tools.compare"} <= PROGRAMS.keys()
    assert [name for name, main in PROGRAMS.items() if "run_script(" not in main] == []


def modules_loaded_by(statement: str, names: set[str]) -> set[str]:
    code = f"import sys; {statement}; print(*({names!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.slow
def test_starting_a_run_loads_no_plotting_no_tensorboard_no_onnx():
    assert modules_loaded_by("import train", HEAVY - {"faster_coco_eval"}) == set()


@pytest.mark.parametrize("script", ["train", "tools.check"])
def test_a_script_prepares_what_pytorch_reads_when_it_is_imported(script):
    """Threads that do not wait in a busy loop, and the process that started the script, which may be killed meanwhile."""
    program = f"""
import os, sys
class Finder:
    def find_spec(self, name, path, target):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), "utils.signals" in sys.modules, flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
import {script}
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["10000", "True"], done.stderr


def test_reading_annotations_loads_no_torch():
    assert modules_loaded_by("import datasets.formats.read, utils.images", {"torch"}) == set()
