"""HTML pages that need no other file and no network: what the data check and the report of an evaluation have in common."""

import base64
import hashlib
from html import escape
from pathlib import Path

import cv2
import numpy as np

from utils.draw import color_of

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the browser asks no network for anything


def document(title: str, head: str, sections: dict[str, str], style: str = "", script: str = "", data: str = "") -> str:
    """Returns a page: a head, links to the sections (title -> HTML), and the sections.

    `style` follows the common style. `data` (JSON without "<") is in the element "data", where `script` finds it. No other
    script runs, because the page has the hash of this one.
    """
    links = "".join(f'<a href="#s{number}">{name}</a>' for number, name in enumerate(sections))
    body = "".join(f'<section id="s{i}"><h2>{name}</h2>{sections[name]}</section>' for i, name in enumerate(sections))
    policy = POLICY
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        body += f'<script id="data" type="application/json">{data}</script><script>{script}</script>'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>{STYLE.read_text(encoding='utf-8')}{style}</style></head>"
        f'<body><main>{head}<nav aria-label="Sections">{links}</nav>{body}</main></body></html>'
    )


def printable(value: object) -> str:
    """Returns a text in which characters that cannot be printed are replaced."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(value))


def text(value: object) -> str:
    """Returns a text as HTML: markup is shown as text, and characters that cannot be printed are replaced."""
    return escape(printable(value))


def color(label: int) -> str:
    """Returns the color of a class for CSS; gray for -1."""
    blue, green, red = color_of(label) if label >= 0 else (150, 150, 150)
    return f"#{red:02x}{green:02x}{blue:02x}"


def dot(label: int) -> str:
    """Returns a small disk in the color of a class."""
    return f'<i class="dot" style="background:{color(label)}"></i>'


def small_jpeg(image: np.ndarray, side: int, quality: int) -> bytes:
    """Returns an image [H, W, 3] as JPEG, shrunk to at most `side` pixels."""
    height, width = image.shape[:2]
    scale = min(side / max(height, width), 1)
    size = [max(round(length * scale), 1) for length in (width, height)]
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def data_uri(jpeg: bytes) -> str:
    """Returns a JPEG as an address that holds the image itself."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
