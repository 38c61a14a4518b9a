"""The arrows of the design: who may import whom, read from the source; and that starting a run loads nothing it may not need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("nets", "datasets", "utils")
SCRIPTS = tuple(file.stem for file in ROOT.glob("*.py"))
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts): p for part in PACKAGES for p in (ROOT / part).glob("*.py")
}
EXCEPTIONS = {"utils.detector", "utils.onnx"}  # what users' own programs import, and exported files as models
HEAVY = (
    "matplotlib",
    "tensorboard",
    "torch.utils.tensorboard",
    "pycocotools",
    "faster_coco_eval",
    "onnx",
    "onnxruntime",
)


def imports(source: str, everywhere: bool = True) -> set[str]:
    """Absolute names of imported modules and of what is taken from them; `everywhere`: also those inside of functions."""
    found, tree = set(), ast.parse(source)
    nodes = list(ast.walk(tree)) if everywhere else list(_at_import(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _at_import(node: ast.AST):
    """The nodes that run when the module is imported: all but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _at_import(child)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def forbidden(module: str, names: set[str]) -> set[str]:
    """Those of the imported `names` that `module` must not import."""
    package = module.partition(".")[0]
    own = {n for n in names if any(within(n, p) for p in PACKAGES + SCRIPTS)}
    allowed = [package] if package == "utils" else [package, "utils.boxes"]
    return {n for n in own if not any(within(n, a) for a in allowed)}


@pytest.mark.parametrize("module", sorted(set(MODULES) - EXCEPTIONS))
def test_arrows(module):
    wrong = forbidden(module, imports(MODULES[module].read_text(encoding="utf-8")))
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}"


def test_the_rules_can_be_broken():
    assert forbidden("nets.x", imports("from datasets.images import read_image\nimport utils.boxes"))
    assert forbidden("datasets.x", imports("def f():\n    import nets"))
    assert forbidden("datasets.x", imports("from utils import draw"))
    assert forbidden("utils.x", imports("from datasets import images")) == {"datasets.images"}
    assert forbidden("utils.x", imports("from train import main"))
    assert not forbidden("nets.x", imports("from utils.boxes import iou\nimport nets.blocks\nimport torch.utils.data"))
    assert imports("def f():\n    import matplotlib", everywhere=False) == set()
    assert imports("try:\n    import a\nexcept ImportError:\n    import b", everywhere=False) == {"a", "b"}


def test_the_map_is_complete():
    assert {"nets.yolox", "datasets.loader", "utils.boxes", "nets.__init__"} <= set(MODULES)
    assert {"train"} <= set(SCRIPTS)
    for package in PACKAGES:  # no module hides in a folder below
        assert not [p for p in (ROOT / package).rglob("*.py") if p.parent != ROOT / package]


def reached_from(script: str) -> set[str]:
    """All modules of the project that importing the script imports."""
    found, waiting = set(), [script]
    while waiting:
        name = waiting.pop()
        path = MODULES.get(name) or (ROOT / f"{name}.py" if name in SCRIPTS else None)
        if path is None or name in found:
            continue
        found.add(name)
        for imported in imports(path.read_text(encoding="utf-8"), everywhere=False):
            package = imported.partition(".")[0]
            waiting += [imported, imported.rpartition(".")[0], f"{package}.__init__"]
    return found


def test_training_imports_nothing_heavy_at_the_start():
    reached = reached_from("train")
    assert {"train", "nets.yolox", "utils.optim", "utils.run", "datasets.mosaic"} <= reached
    for module in reached:
        path = MODULES.get(module, ROOT / f"{module}.py")
        names = imports(path.read_text(encoding="utf-8"), everywhere=False)
        assert not [n for n in names if any(within(n, h) for h in HEAVY)], module


def test_starting_a_run_loads_no_plotting_no_tensorboard_no_onnx():
    code = "import sys, train; print([m for m in ('matplotlib', 'tensorboard', 'onnx', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_readme_names_every_constant_and_there_are_no_more_than_45():
    import train

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    constants = list(train.Config.__dataclass_fields__)
    missing = [name for name in constants if f"`{name}`" not in readme]
    assert missing == [] and len(constants) <= 45


def test_reading_annotations_loads_no_torch():
    code = "import sys, datasets.formats, datasets.images; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
