"""The comparison of runs as something to look at: a plot, and an HTML page that needs no other file."""

import base64
from collections.abc import Sequence
from pathlib import Path

from report.page import document, text
from report.plots import draw_runs
from tools.compared_runs import Run, notes, table
from utils.config import ConfigError, require_writable
from utils.files import atomic_write

FILES = ("compare.png", "compare.html")
TITLE = "Runs compared"  # of the page, by which a later comparison recognizes it


def write_page(folder: Path, runs: Sequence[Run], refused: dict[str, str]) -> Path:
    """Writes compare.png and compare.html to a folder; returns the path of the page. Raises ConfigError."""
    require_page(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plot, page = (folder / name for name in FILES)
    draw_runs({f"{i}  {run.folder.name}": curve(run) for i, run in enumerate(runs, 1)}, plot)
    with atomic_write(page) as file:
        file.write(html_page(runs, refused, plot.read_bytes()).encode("utf-8", "backslashreplace"))
    return page


def curve(run: Run) -> list[tuple[float, float, float]]:
    """Returns epoch, minutes and mAP of each evaluated epoch."""
    rows = zip(run.rows, run.minutes, strict=True)
    return [(row["epoch"], minutes, row["AP"]) for row, minutes in rows if row in run.evaluated]


def html_page(runs: Sequence[Run], refused: dict[str, str], plot: bytes) -> str:
    """Returns the page; `plot` is a PNG."""
    head, *rows = table(runs)
    kinds = ["wide" if name in ("run", "data") else "" for name in head]
    cells = [[f'<td class="{kind}">{text(cell)}' for kind, cell in zip(kinds, row, strict=True)] for row in rows]
    heads = "".join(f'<th class="{kind}">{text(name)}' for kind, name in zip(kinds, head, strict=True))
    body = "".join(f"<tr>{''.join(row)}" for row in cells)
    meaning, *marks = notes(runs)
    warnings = "".join(f"<li>{text(line)}</li>" for line in marks)
    reasons = "".join(f"<li>{text(folder)}: {text(why)}</li>" for folder, why in refused.items())
    image = f'<img class="plot" alt="mAP over epochs and minutes" src="data:image/png;base64,{base64.b64encode(plot).decode()}">'
    results = f'<div class="scroll" tabindex="0"><table class="runs"><thead><tr>{heads}</thead>{body}</table></div>'
    results += f'<p class="faint">{text(meaning)}</p>{f"<ul class=warnings>{warnings}</ul>" if marks else ""}'
    sections = {"Constants that differ, and results": results, "mAP50-95": image}
    sections |= {"Not compared": f"<ul class=errors>{reasons}</ul>"} if refused else {}
    return document(TITLE, f"<header><h1>{TITLE}</h1></header>", sections)


def require_page(folder: Path) -> None:
    """Raises ConfigError if the page cannot be written to a folder, or would replace a file of another origin."""
    require_writable(f"output={folder}", folder)
    plot, page = (folder / name for name in FILES)
    known = page.is_file() and f"<title>{TITLE}</title>".encode() in page.read_bytes()[:1000]
    other = next((path for path in (page, plot) if path.exists() and not known), None)
    if other:
        why = "would be replaced, and no page of an earlier comparison lies next to it"
        raise ConfigError(f"{other} {why}: give another folder with output=FOLDER, or delete the file")
