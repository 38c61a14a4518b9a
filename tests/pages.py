"""What the pages hold: their text, tables, code blocks and commands."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP_PAGES = [ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")]
USER_PAGES = [*TOP_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = "python3?|py|source|uv|torchrun|pip|git|docker|tensorboard|jupyter|sbatch|ovc|pnnx|trtexec"
INLINE = re.compile(rf"({PROGRAMS}) +[^ ]")  # a command in the text, not only the name of a program


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """The code blocks of a page: (language, contents)."""
    return re.findall(r"^ *```([\w-]*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


def code(text: str, language: str) -> list[str]:
    """The contents of the code blocks in one language."""
    return [contents for name, contents in blocks(text) if name == language]


def without_code(text: str) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """The inline code of a text."""
    return re.findall(r"`([^`\n]+)`", text)


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, without the line below the head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", without_code(text) + "\n", re.MULTILINE)
    split = [[[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()] for block in blocks]
    return [[row for row in table if not set("".join(row)) <= set("-: ")] for table in split]


def lines_of(block: str) -> list[str]:
    """The lines of a code block without comments; continued lines are joined."""
    lines = block.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [line for line in lines if line]


def code_lines(text: str, languages: str = r"\w*") -> list[str]:
    """The lines of all code blocks in languages that match a pattern."""
    return [line for language, block in blocks(text) if re.fullmatch(languages, language) for line in lines_of(block)]


def commands(text: str) -> list[str]:
    """The shell commands of a page, in code blocks and in its text. A script, which starts with #!, is one command."""
    found = []
    for block in code(text, "bash"):
        found += [block] if block.startswith("#!") else [" ".join(line.split()) for line in lines_of(block)]
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=[|*-])", without_code(text))]
    return found + [span for paragraph in paragraphs for span in spans(paragraph) if INLINE.match(span)]


def words_of(command: str) -> list[str]:
    """The words of a command, as a shell splits it."""
    return shlex.split(command)
