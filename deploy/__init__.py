"""A trained model at work: detection, tiles, videos, results, export."""

from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def require_own_modules() -> None:
    """Raises ImportError if a module of another project hides one of this project, such as a utils.py next to a program."""
    for name in sorted(path.parent.name for path in ROOT.glob("*/__init__.py")):
        spec = find_spec(name) if name != "tools" else None  # tools are programs, which nothing here imports
        if spec and spec.origin and ROOT not in Path(spec.origin).resolve().parents:
            raise ImportError(
                f"{spec.origin} has the name of a folder of {ROOT}, {name}, and comes before it: rename it, or take the file "
                f"onnx_detector.py, which export.py writes and which needs nothing of this project (docs/deploy.md)"
            )


require_own_modules()
