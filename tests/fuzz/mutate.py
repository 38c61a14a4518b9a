"""Damages inputs: bytes, text, JSON and XML. Every function takes its randomness from a `random.Random`."""

import copy
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

NUMBERS = (
    "0",
    "-1",
    "-0.0",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "1e200",
    "1e-320",
    "0.1",
    "2147483648",
    "9007199254740993",
)
NUMBERS += (
    "1" + "0" * 400,
    "18446744073709551616",
    "1_000",
    "0x10",
    "１２",
    "1,5",
    "+7",
    "007",
    "1e5",
    "true",
    "null",
    '"5"',
)
WORDS = (  # odd Unicode, and text that terminals, shells, drawing, JSON, XML and file systems treat in their own way
    *(
        "",
        " ",
        "\t",
        "\x00",
        "\x1b[31mred\x1b[0m",
        "\x07",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
        "\u202etac",
        "e\u0301",
        "é",
    ),
    *(
        "鸟",
        "👩‍👩‍👧",
        "\U0010ffff",
        "\ufffe",
        "a\nb",
        "a\r\nb",
        "a,b",
        "a;b",
        'a"b',
        "a'b",
        "a:b",
        "a#b",
        "- a",
        "a: b",
        "{}",
        "%s",
    ),
    *(
        "../a",
        "/etc/passwd",
        "C:\\new\\a.png",
        "a\\b",
        "~",
        "con",
        ".",
        "..",
        "x" * 300,
        "y" * 5000,
        "null",
        "true",
        "no",
        "1",
        "1.0",
    ),
    *("<b>", "&amp;", "]]>", "none", "nan", "Cat", "cat ", "İ", "ß", "\ud800", "\udcff", "cat\ud800\udfff"),
)
MANY = 300  # copies of one value


def data_of(text: str) -> bytes:
    """Returns text as UTF-8; lone surrogates become the bytes that Python's surrogatepass writes."""
    return text.encode("utf-8", "surrogatepass")


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Damages bytes in one to four places."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_BYTES)(rng, data)
    return data


def _place(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(start + rng.choice((1, 1, 2, 4, 16, 64, len(data))), len(data))


def _flip(rng: random.Random, data: bytes) -> bytes:
    spot = rng.randrange(max(len(data), 1))
    return data[:spot] + bytes([byte ^ 1 << rng.randrange(8) for byte in data[spot : spot + 1]]) + data[spot + 1 :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    start, end = _place(rng, data)
    return data[:start] + data[end:]


def _copy(rng: random.Random, data: bytes) -> bytes:
    start, end = _place(rng, data)
    times = max(1, min(rng.choice((1, 1, 1, 2, 10, 3000)), 100_000 // (end - start + 1)))
    return data[:start] + data[start:end] * times + data[start:]


def _swap(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) > 1:
        a, b = rng.sample(range(len(lines)), 2)
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def _insert(rng: random.Random, data: bytes) -> bytes:
    spot = rng.randrange(len(data) + 1)
    odd = (
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xc3",
        b"\r",
        b"\n",
        b"\n\n",
        b"\t",
        b" ",
        b",",
        b'"',
        b"<!--",
    )
    return data[:spot] + rng.choice((*odd, data_of(rng.choice(WORDS)), rng.choice(NUMBERS).encode())) + data[spot:]


def _number(rng: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"-?\d+\.?\d*", data))
    if not found:
        return _insert(rng, data)
    spot = rng.choice(found)
    return data[: spot.start()] + rng.choice(NUMBERS).encode() + data[spot.end() :]


def _word(rng: random.Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"[A-Za-z_]+", data))
    if not found:
        return _insert(rng, data)
    spot, other = rng.choice(found), rng.choice((*WORDS, rng.choice(found)[0].decode()))
    return data[: spot.start()] + data_of(other) + data[spot.end() :]


def _recode(rng: random.Random, data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32")), "replace")


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


_BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_flip, _cut, _copy, _swap, _insert, _number, _number, _word, _word),
    *(_recode, _truncate),
)


# ---- JSON


class _Text(str):
    """JSON text that json.dumps cannot write, such as 1e999."""


def nested(depth: int) -> _Text:
    """Returns `depth` lists, one inside of the other, as text: values of that depth would end Python's own recursion."""
    return _Text("[" * depth + "]" * depth)


def odd_value(rng: random.Random, value: Any) -> Any:
    """Returns a value of another type or size instead of `value`."""
    if rng.random() < 0.3:
        return _Text(rng.choice(NUMBERS[:-3])) if rng.random() < 0.9 else nested(3000)
    if rng.random() < 0.5:
        return rng.choice(WORDS)
    return rng.choice(
        (
            None,
            True,
            False,
            [],
            {},
            0,
            -1,
            0.5,
            1,
            10**9,
            "5",
            [value],
            {"a": value},
            [value, value],
            str(value),
            nested(200),
        )
    )


def spoil_json(rng: random.Random, value: Any, likely: Sequence[str] = ()) -> bytes:
    """Returns JSON with one to four changed values; sometimes its text is damaged as well.

    `likely`: keys whose values are changed more often than others."""
    root, most = [copy.deepcopy(value)], MANY
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        places = list(_places(root))
        wanted = [place for place in places if place[1] in likely]
        parent, key = rng.choice(wanted if wanted and rng.random() < 0.5 else places)
        change = rng.randrange(8)
        if change == 0 and parent is not root:
            del parent[key]
        elif change == 1 and isinstance(parent, list) and parent is not root:
            times = rng.choice((1, min(2, most), most))
            parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(times)]
            most //= times  # copies of copies would fill the memory
        elif change == 2 and isinstance(parent, dict):
            parent[rng.choice((*WORDS, *parent))] = parent.pop(key)
        elif change == 3:
            other, name = rng.choice(places)
            with_key = name in other if isinstance(other, dict) else name < len(other)
            parent[key] = copy.deepcopy(other[name]) if with_key else None
        else:
            parent[key] = odd_value(rng, parent[key])
    data = json_data(root[0], rng)
    return spoil(rng, data) if rng.random() < 0.15 else data


def _places(root: list) -> Any:
    """Yields (container, key) of every value."""
    stack: list = [root]
    while stack:
        parent = stack.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        for key in keys:
            yield parent, key
            if isinstance(parent[key], dict | list) and len(stack) < 100:
                stack.append(parent[key])


def json_data(value: Any, rng: random.Random) -> bytes:
    """Returns a value as JSON, with or without escapes and blanks; `_Text` is written without quotes."""
    texts: list[str] = []

    def mark(value: Any) -> Any:
        if isinstance(value, _Text):
            texts.append(str(value))
            return f"@@{len(texts) - 1}@@"
        if isinstance(value, dict):
            return {key: mark(inner) for key, inner in value.items()}
        return [mark(inner) for inner in value] if isinstance(value, list) else value

    text = json.dumps(mark(value), ensure_ascii=rng.random() < 0.7, indent=rng.choice((None, None, 1)))
    return data_of(re.sub('"@@(\\d+)@@"', lambda found: texts[int(found[1])], text))


# ---- XML


def spoil_xml(rng: random.Random, root: ElementTree.Element) -> bytes:
    """Returns XML with one to four changed elements; sometimes its text is damaged as well."""
    most = MANY
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        parents = [node for node in root.iter() if len(node)]
        if not parents:
            break
        parent = rng.choice(parents)
        node = rng.choice(list(parent))
        change = rng.randrange(7)
        if change == 0:
            parent.remove(node)
        elif change == 1:
            times = rng.choice((1, min(2, most), most))
            parent.extend([node] * times)
            most //= times
        elif change == 2:
            node.tag = rng.choice(("name", "object", "bndbox", "xmin", "box", "image", "{urn:a}name", "a.b"))
        elif change == 3:
            inner = ElementTree.SubElement(node, node.tag)
            inner.text = node.text
        elif change == 4 and node.attrib:
            node.set(rng.choice(list(node.attrib)), rng.choice((*NUMBERS, *WORDS)))
        else:
            node.text = rng.choice((*NUMBERS, *WORDS, rng.choice(WORDS) * 3))
    text = _xml_text(root)
    if rng.random() < 0.1:
        text = rng.choice(_HEADS)(text)
    data = data_of(text)
    return spoil(rng, data) if rng.random() < 0.15 else data


def _xml_text(node: ElementTree.Element) -> str:
    """Returns an element as text. Unlike ElementTree, it also writes characters that XML forbids."""
    attributes = "".join(f" {key}={quoteattr(value)}" for key, value in node.attrib.items())
    tag = node.tag.rpartition("}")[2]
    space = ' xmlns="urn:a"' if "}" in node.tag else ""
    text = (node.text or "").replace("&", "&amp;").replace("<", "&lt;")
    return f"<{tag}{space}{attributes}>{text}{''.join(map(_xml_text, node))}</{tag}>{node.tail or ''}"


def _bomb(text: str) -> str:
    """Adds nested entities that expand to a billion words (a "billion laughs" attack)."""
    entities = '<!ENTITY a0 "lol">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    return f"<!DOCTYPE x [{entities}]>" + text.replace("</", "&a9;</", 1)


def _outside(text: str) -> str:
    """Adds an external entity, which names a file of the system."""
    return '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + text.replace("</", "&a;</", 1)


_HEADS: tuple[Callable[[str], str], ...] = (
    *(_bomb, _outside, lambda text: f'<?xml version="1.0" encoding="utf-16"?>{text}'),
    *(lambda text: f'<?xml version="1.0" encoding="nonsense"?>{text}', lambda text: f"<a>{text}</a>"),
    *(lambda text: f"\ufeff{text}", lambda text: f"<!-- c -->\n{text}", lambda text: "<a>" * 20_000 + text),
)
