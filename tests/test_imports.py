"""The structure of the project, read from the source: who imports whom, and what a start loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for pattern in ("*.py", "utils/*.py", "nets/*.py", "datasets/*.py", "tools/*.py")
    for path in ROOT.glob(pattern)
}
SCRIPTS = {name for name in MODULES if "." not in name}
ALLOWED = {"utils": {"utils"}, "nets": {"nets", "utils"}, "datasets": {"datasets", "utils"}}
LIBRARY = {"utils", "nets", "datasets"}
HEAVY = {"matplotlib", "tensorboard", "pycocotools", "faster_coco_eval", "onnx", "onnxruntime"}


def imports(source: str, everywhere: bool = True) -> set[str]:
    """Absolute names of imported modules and of what is imported from them; `everywhere`: also those inside functions."""
    tree, found = ast.parse(source), set()
    for node in ast.walk(tree) if everywhere else at_import(tree):
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
    """The packages and scripts of the project among the imported `names` that `module` must not import."""
    package = module.partition(".")[0]
    allowed = ALLOWED.get(package, LIBRARY | ({"tools"} if package == "tools" else set()))
    return {name.partition(".")[0] for name in names} & (LIBRARY | SCRIPTS | {"tools", "tests", "benchmarks"}) - allowed


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_import_only_what_their_package_may_import(module):
    assert forbidden(module, imports(MODULES[module].read_text(encoding="utf-8"))) == set()


def test_the_rules_of_imports_can_be_broken():
    assert forbidden("nets.x", imports("from datasets import store\nimport utils.boxes")) == {"datasets"}
    assert forbidden("datasets.x", imports("def f():\n    import nets")) == {"nets"}
    assert forbidden("utils.x", imports("from nets.model import DetectionModel\nfrom train import main"))
    assert forbidden("datasets.check", imports("import tools.check")) == {"tools"}
    assert forbidden("evaluate", imports("from tools.check import main\nimport train")) == {"tools", "train"}
    assert not forbidden(
        "tools.check", imports("import nets, datasets.store, torch.utils.data\nfrom utils import draw")
    )
    assert imports("def f():\n    import matplotlib", everywhere=False) == set()
    assert imports("try:\n    import a\nexcept ImportError:\n    import b", everywhere=False) == {"a", "b"}


def test_the_map_of_modules_is_complete():
    assert {"nets.yolox", "datasets.loader", "utils.boxes", "nets.__init__", "train", "tools.check"} <= set(MODULES)
    for package in (*LIBRARY, "tools"):  # there is no module in a folder below
        assert not [path for path in (ROOT / package).rglob("*.py") if path.parent != ROOT / package]


def reached_from(*scripts: str) -> set[str]:
    """All modules of the project that importing the scripts imports."""
    found, waiting = set(), list(scripts)
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in found:
            found.add(name)
            for imported in imports(MODULES[name].read_text(encoding="utf-8"), everywhere=False):
                waiting += [imported, imported.rpartition(".")[0], f"{imported.partition('.')[0]}.__init__"]
    return found


def test_every_script_and_tool_runs_by_run_script():
    """It ends Ctrl-C, closed pipes, full disks and characters that the terminal cannot show without a traceback."""
    named = [name for name in MODULES if "." not in name or name.startswith("tools.")]
    scripts = {
        name: MODULES[name].read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')[2] for name in named
    }
    assert {"train", "tools.check", "tools.convert", "tools.compare"} <= {name for name in scripts if scripts[name]}
    assert [name for name in scripts if scripts[name] and "run_script(" not in scripts[name]] == []


def test_training_imports_nothing_heavy_at_the_start():
    reached = reached_from("train")
    assert {"train", "nets.yolox", "utils.optim", "utils.run", "datasets.mosaic"} <= reached
    for module in reached:
        names = imports(MODULES[module].read_text(encoding="utf-8"), everywhere=False)
        assert not {name.partition(".")[0] for name in names} & HEAVY and "torch.utils.tensorboard" not in names, module


def modules_loaded_by(statement: str, names: set[str]) -> set[str]:
    code = f"import sys; {statement}; print(*({names!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_starting_a_run_loads_no_plotting_no_tensorboard_no_onnx():
    assert modules_loaded_by("import train", HEAVY - {"faster_coco_eval"}) == set()


def test_reading_annotations_loads_no_torch():
    assert modules_loaded_by("import datasets.formats, utils.images", {"torch"}) == set()
