"""HTML pages that need no other file and no network: what the data check, the reports and the comparisons have in common.

A page is a jinja2 template, `NAME.html` next to the module that fills it, which extends page.html and uses macros.html.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import jinja2
import numpy as np
from markupsafe import Markup

from utils.draw import color_of, resized

FOLDER = Path(__file__).parent
STYLE = FOLDER / "page.css"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the browser asks no network for anything


def render(
    template: Path,
    title: str,
    sections: Sequence[str],
    style: str = "",
    script: str = "",
    data: str = "",
    **values: Any,
) -> str:
    """Returns a page: the template, filled with the values. Every value is shown as text, never as markup.

    `sections`: the titles of the sections of the template. `style` (CSS) follows the common style. `data` (JSON without "<")
    is in the element "data", where `script` finds it. No other script runs, because the page has the hash of this one.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"color": color, "thousands": "{:,}".format}
    policy = POLICY
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    own = {"style": Markup(STYLE.read_text(encoding="utf-8") + style), "script": Markup(script), "data": Markup(data)}
    page = environment.get_template(template.name)
    return page.render(title=title, sections=list(sections), policy=Markup(policy), **own, **values)


def _finalize(value: Any) -> Any:
    """Returns a value as a template shows it: only text of the program's own may hold markup and any character."""
    return value if isinstance(value, Markup) else printable(value)


def printable(value: object) -> str:
    """Returns a text in which characters that cannot be printed are replaced."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(value))


def color(label: int) -> str:
    """Returns the color of a class for CSS; gray for -1."""
    blue, green, red = color_of(label) if label >= 0 else (150, 150, 150)
    return f"#{red:02x}{green:02x}{blue:02x}"


def small_jpeg(image: np.ndarray, side: int, quality: int) -> bytes:
    """Returns an image [H, W, 3] as JPEG, shrunk to at most `side` pixels."""
    small = resized(image, min(side / max(image.shape[:2]), 1))
    return cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def data_uri(data: bytes, kind: str = "jpeg") -> Markup:
    """Returns an image file as a data: URI."""
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
