"""HTML pages of the tools: one file each that needs no other, for light and dark screens."""

from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("check_page.css")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the browser asks no network for anything


def document(title: str, body: str) -> str:
    """Returns a whole page with a title and a body, both HTML."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{STYLE.read_text(encoding='utf-8')}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )


def as_html(value: object) -> str:
    """Returns a text as HTML: markup is shown as text, and characters that cannot be printed are replaced."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(value)))
