"""The comparison of runs as something to look at: a plot, and an HTML page that needs no other file."""

from collections.abc import Sequence
from pathlib import Path

from report import page
from report.plots import draw_runs
from tools.compared_runs import Run, class_table, notes, table
from utils.config import require_writable
from utils.files import atomic_write
from utils.outputs import require_replaceable

FILES = ("compare.png", "compare.html")
TEMPLATE = Path(__file__).with_name("compare.html")
TITLE = "Runs compared"  # of the page, by which a later comparison recognizes it


def write_page(folder: Path, runs: Sequence[Run], refused: dict[str, str]) -> Path:
    """Writes compare.png and compare.html to a folder; returns the path of the page. Raises ConfigError."""
    require_page(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot, html = (folder / name for name in FILES)
    draw_runs({f"{i}  {run.folder.name}": curve(run) for i, run in enumerate(runs, 1)}, plot)
    with atomic_write(html) as file:
        file.write(html_page(runs, refused, plot.read_bytes()).encode("utf-8", "backslashreplace"))
    return html


def curve(run: Run) -> list[tuple[float, float, float]]:
    """Returns epoch, minutes and mAP of each evaluated epoch."""
    rows = zip(run.rows, run.minutes, strict=True)
    return [(row["epoch"], minutes, row["AP"]) for row, minutes in rows if row in run.evaluated]


def html_page(runs: Sequence[Run], refused: dict[str, str], plot: bytes) -> str:
    """Returns the page; `plot` is a PNG."""
    head, *rows = table(runs)
    meaning, *warnings = notes(runs)
    sections = ["Constants that differ, and results", "mAP50-95"]
    classes = class_table(runs)
    if classes:
        sections.append("Classes")
    if refused:
        sections.append("Not compared")
    values = {"head": head, "rows": rows, "meaning": meaning, "warnings": warnings, "refused": refused}
    values["classes"] = classes
    return page.render(TEMPLATE, TITLE, sections, plot=page.data_uri(plot, "png"), **values)


def require_page(folder: Path) -> None:
    """Raises ConfigError if the page cannot be written to a folder, or would replace a file of another origin."""
    require_writable(f"output={folder}", folder)
    plot, html = (folder / name for name in FILES)
    known = html.is_file() and f"<title>{TITLE}</title>".encode() in html.read_bytes()[:1000]
    require_replaceable(f"output={folder}", (html, plot), known, "comparison")
