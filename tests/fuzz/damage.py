"""Damages inputs: bytes, JSON and XML. Every function takes its randomness from a `random.Random`."""

import copy
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import quoteattr

NUMBERS = (
    "0 -1 -0.0 1e999 -1e999 NaN Infinity 1e200 1e-320 0.1 2147483648 9007199254740993 18446744073709551616".split()
)
NUMBERS += ["1" + "0" * 400, *'1_000 0x10 １２ 1,5 +7 007 1e5 true null "5"'.split()]
# odd Unicode, and text that terminals, shells, drawing, JSON, XML and file systems treat in their own way
WORDS = "../a|/etc/passwd|C:\\new\\a.png|~|con|.|..|null|true|no|1|{}|%s|<b>|&amp;|]]>|none|nan|Cat|cat |İ|ß|鸟|👩‍👩‍👧".split(
    "|"
)
WORDS += "|\t|\x00|\x1b[31mred\x1b[0m|\x07|\x7f|\x85|\u2028|\ufeff|\u202etac|e\u0301|\U0010ffff|\ufffe".split("|")
WORDS += [
    *"a\nb|a\r\nb|a,b|a;b|a\"b|a'b|a:b|a#b|- a|a: b|\ud800|\udcff|cat\ud800\udfff".split("|"),
    " ",
    "x" * 300,
    "y" * 5000,
]
PIECES = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc3", b"\r", b"\n\n", b"\t", b",", b'"', b"<!--"]
MAX_COPIES = 300


def data_of(text: str) -> bytes:
    """Returns text as UTF-8; lone surrogates become the bytes that Python's surrogatepass writes."""
    return text.encode("utf-8", "surrogatepass")


# ---- bytes


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Damages bytes in one to four places."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice((flip, cut, repeat, swap_lines, insert, number, number, word, word, recode))(rng, data)
    return data


def place(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(start + rng.choice((1, 1, 2, 4, 16, 64, len(data))), len(data))


def flip(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 20)) if raw else 0):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def cut(rng: random.Random, data: bytes) -> bytes:
    start, end = place(rng, data)
    return data[:start] + data[end:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = place(rng, data)
    times = max(1, min(rng.choice((1, 1, 2, 10, 3000)), 100_000 // (end - start + 1)))
    return data[:start] + data[start:end] * times + data[start:]


def swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def insert(rng: random.Random, data: bytes) -> bytes:
    spot = rng.randrange(len(data) + 1)
    return data[:spot] + rng.choice((*PIECES, data_of(rng.choice(WORDS)), rng.choice(NUMBERS).encode())) + data[spot:]


def number(rng: random.Random, data: bytes) -> bytes:
    return replaced(rng, data, rb"-?\d+\.?\d*", rng.choice(NUMBERS).encode())


def word(rng: random.Random, data: bytes) -> bytes:
    return replaced(rng, data, rb"[A-Za-z_]+", data_of(rng.choice(WORDS)))


def replaced(rng: random.Random, data: bytes, pattern: bytes, new: bytes) -> bytes:
    """Replaces one of the places that match a pattern."""
    found = list(re.finditer(pattern, data))
    if not found:
        return insert(rng, data)
    spot = rng.choice(found)
    return data[: spot.start()] + new + data[spot.end() :]


def recode(rng: random.Random, data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32")), "replace")


# ---- JSON


class Raw(str):
    """JSON text that json.dumps cannot write, such as 1e999."""


def odd_value(rng: random.Random, value: Any) -> Any:
    """Returns a value of another type or size instead of `value`."""
    if rng.random() < 0.3:
        return Raw(rng.choice(NUMBERS[:13]))
    if rng.random() < 0.5:
        return rng.choice(WORDS)
    nested = [Raw("[" * depth + "]" * depth) for depth in (200, 3000)]
    return rng.choice([None, True, [], {}, 0, -1, 0.5, 10**9, "5", [value], {"a": value}, str(value), *nested])


def spoil_json(rng: random.Random, value: Any) -> bytes:
    """Returns JSON with up to four changed values; sometimes its text is damaged as well."""
    root, copies = [copy.deepcopy(value)], MAX_COPIES
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        parent, key = rng.choice(list(places(root)))
        change = rng.randrange(8)
        if change == 0 and parent is not root:
            del parent[key]
        elif change == 1 and isinstance(parent, list) and parent is not root:
            times = rng.choice((1, min(2, copies), copies))
            parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(times)]
            copies //= times  # copies of copies would fill the memory
        elif change == 2 and isinstance(parent, dict):
            parent[rng.choice((*WORDS, *parent))] = parent.pop(key)
        else:
            parent[key] = odd_value(rng, parent[key])
    data = json_data(rng, root[0])
    return spoil(rng, data) if rng.random() < 0.15 else data


def places(root: list) -> Iterator[tuple[Any, Any]]:
    """Yields (container, key) of every value."""
    stack: list = [root]
    while stack:
        parent = stack.pop()
        for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
            yield parent, key
            if isinstance(parent[key], dict | list):
                stack.append(parent[key])


def json_data(rng: random.Random, value: Any) -> bytes:
    """Returns a value as JSON, with or without escapes; `Raw` is written without quotes."""
    texts: list[str] = []

    def mark(value: Any) -> Any:
        if isinstance(value, Raw):
            texts.append(str(value))
            return f"@@{len(texts) - 1}@@"
        if isinstance(value, dict):
            return {key: mark(inner) for key, inner in value.items()}
        return [mark(inner) for inner in value] if isinstance(value, list) else value

    text = json.dumps(mark(value), ensure_ascii=rng.random() < 0.7)
    return data_of(re.sub('"@@(\\d+)@@"', lambda found: texts[int(found[1])], text))


# ---- XML


def spoil_xml(rng: random.Random, text: str) -> bytes:
    """Returns XML with up to four changed elements; sometimes its text is damaged, or attacks its reader."""
    root, copies = ElementTree.fromstring(text), MAX_COPIES
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        parents = [node for node in root.iter() if len(node)]
        if not parents:
            break
        parent = rng.choice(parents)
        node, change = rng.choice(list(parent)), rng.randrange(6)
        if change == 0:
            parent.remove(node)
        elif change == 1:
            times = rng.choice((1, copies))
            parent.extend([node] * times)
            copies //= times
        elif change == 2:
            node.tag = rng.choice(("name", "object", "bndbox", "xmin", "box", "image", "a.b"))
        elif change == 3 and node.attrib:
            node.set(rng.choice(list(node.attrib)), rng.choice(NUMBERS + WORDS))
        else:
            node.text = rng.choice(NUMBERS + WORDS)
    text = xml_text(root)
    data = data_of(rng.choice((bomb, outside, deep))(text) if rng.random() < 0.1 else text)
    return spoil(rng, data) if rng.random() < 0.15 else data


def xml_text(node: ElementTree.Element) -> str:
    """Returns an element as text. Unlike ElementTree, it also writes characters that XML forbids."""
    attributes = "".join(f" {key}={quoteattr(value)}" for key, value in node.attrib.items())
    text = (node.text or "").replace("&", "&amp;").replace("<", "&lt;")
    return f"<{node.tag}{attributes}>{text}{''.join(map(xml_text, node))}</{node.tag}>"


def bomb(text: str) -> str:
    """Adds nested entities that expand to a billion words (a "billion laughs" attack)."""
    entities = '<!ENTITY a0 "lol">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    return f"<!DOCTYPE x [{entities}]>" + text.replace("</", "&a9;</", 1)


def outside(text: str) -> str:
    """Adds an external entity, which names a file of the system."""
    return '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + text.replace("</", "&a;</", 1)


def deep(text: str) -> str:
    return "<a>" * 20_000 + text
