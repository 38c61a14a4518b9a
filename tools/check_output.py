"""The files that the data check writes: the report as JSON, and the page. They replace only the files of an earlier check."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from utils.config import ConfigError, require_writable
from utils.draw import JPEG_QUALITY
from utils.outputs import require_replaceable, write_all

MARK = "tools.check"  # the comment in a contact sheet
MARKS = (MARK.encode(), b"<title>Data check</title>")  # one of these is in the first bytes of a page
FIRST = 1000  # bytes
PAGES = (".html", ".png", ".jpg", ".jpeg")


def require_output(option: str, path: str, suffixes: tuple[str, ...]) -> None:
    """Raises ConfigError for an output file that cannot be written, or that exists and was not written by an earlier check."""
    given, file = f"{option}={path}", Path(path)
    if not path.lower().endswith(suffixes):
        raise ConfigError(f"{given}: give a name that ends with {' or '.join(suffixes)}")
    require_writable(given, file.parent)
    require_replaceable(given, [file], file.is_file() and is_output(file), "check")


def is_output(file: Path) -> bool:
    """Returns whether a file was written by this check. An empty file counts too."""
    if file.suffix.lower() != ".json":
        with open(file, "rb") as opened:
            head = opened.read(FIRST)
        return not head or any(mark in head for mark in MARKS)
    try:
        report = json.loads(file.read_bytes() or b'{"errors": []}')
    except (ValueError, RecursionError):
        return False
    return isinstance(report, dict) and (set(report) == {"errors"} or {"size", "train", "warnings"} <= set(report))


def write_report(path: str, report: dict[str, Any]) -> None:
    """Writes the report as JSON."""
    _write(path, json.dumps(report, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace"))


def write_html(path: str, html: str) -> None:
    """Writes the page."""
    _write(path, html.encode("utf-8", "backslashreplace"))


def write_sheet(path: str, sheet: np.ndarray) -> None:
    """Writes a contact sheet, uint8 [H, W, 3] BGR, with a comment by which a later check recognizes it."""
    info, data, image = PngInfo(), BytesIO(), Image.fromarray(np.ascontiguousarray(sheet[..., ::-1]))
    info.add_text("Software", MARK)
    if path.lower().endswith(".png"):
        image.save(data, "PNG", pnginfo=info)
    else:
        image.save(data, "JPEG", comment=MARK, quality=JPEG_QUALITY)
    _write(path, data.getvalue())


def _write(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_all({Path(path): data})
