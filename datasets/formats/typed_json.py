"""Typed reading of JSON: what does not fit its type is a problem that names file, place, value and fix.

A type lists only what is needed; the rest of the file is skipped, not stored.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Raw

from datasets.errors import DataError, open_file
from utils.text import brief, look_of

T = TypeVar("T")
Contents = dict[str, Raw] | list[Raw]  # of a JSON file, not yet parsed below the top level

BOM = b"\xef\xbb\xbf"  # the byte order mark, which editors on Windows write
ABSENT = Raw(b"")  # of a field that is not there
Side = Annotated[float, msgspec.Meta(ge=0, lt=2**31)]  # width or height of an image in pixels
Angle = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_KEY = re.compile(rb'"([^"\\]*)"\s*:')
_GAP = re.compile(rb'[\s,{]*"(?:[^"\\]|\\.)*"\s*:\s*')  # before a value of an object
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def open_json(path: str) -> Contents:
    """Returns the top level of a JSON file, an object or a list. Raises DataError naming file and line."""
    with open_file(path) as file:
        data = file.read().removeprefix(BOM)
    try:
        contents = _decode(data)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}): export the file again") from error
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: a number or text, not an object or a list: export the file again") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, nested too deeply, a number of more than 4,300 digits
        raise DataError(f"{path}: not JSON ({error}): export the file again, as UTF-8") from error
    if problem := _repeated_key(data, contents):
        raise DataError(f"{path}: {problem}")
    return contents


def _decode(data: bytes) -> Contents:
    """Returns the top level of a JSON text, also of what Python accepts beyond the standard, such as NaN."""
    try:
        return msgspec.json.decode(data, type=Contents)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        contents = json.loads(data.decode(), parse_constant=str, parse_float=_finite, object_pairs_hook=_unique)
        data = json.dumps(contents, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return msgspec.json.decode(data, type=Contents)


def as_object(contents: Contents) -> dict[str, Raw]:
    """Returns the top level of a JSON file that is an object; without keys for a list."""
    return contents if isinstance(contents, dict) else {}


def as_list(contents: Contents) -> list[Raw]:
    """Returns the top level of a JSON file that is a list; empty for an object."""
    return contents if isinstance(contents, list) else []


@lru_cache(maxsize=1000)
def _other_spellings(fields: tuple[str, ...], keys: frozenset[bytes]) -> dict[str, str]:
    """Returns {key: field} of the `keys` that are written otherwise than `fields`, as imageId is for image_id."""
    by_look = {look_of(field): field for field in fields}
    names = (key.decode("utf-8", "replace") for key in keys)
    return {name: by_look[look_of(name)] for name in names if name not in fields and look_of(name) in by_look}


def _respelled(text: bytes, names: Mapping[str, str]) -> bytes:
    """Returns the JSON text of an object with other keys, also one that is then there twice. `names`: key -> what it becomes."""
    with suppress(*_ERRORS):
        found = msgspec.json.decode(text, type=dict[str, Raw]).items()
        pairs = [msgspec.json.encode(names.get(key, key)) + b":" + bytes(value) for key, value in found]
        return b"{" + b",".join(pairs) + b"}"
    return text


def unread_keys(raw: Raw, kind: Any) -> set[str]:
    """Returns the keys of an object of JSON that are no fields of the Struct `kind`, in any spelling."""
    looks = set(map(look_of, kind.__struct_encode_fields__))
    return {key for key in parse(raw, dict[str, Raw], "", []) or () if look_of(key) not in looks}


def _repeated_key(text: bytes, found: Any, keys: list[bytes] | None = None) -> str:
    """Returns the problem of a key that an object in a JSON text has twice: one of its values is not read. "" without one.

    `found`: what was read; `keys`: of the text, if they are known. Lists, and objects whose values are not yet parsed, are
    looked into when their values are parsed."""
    if keys is None:
        keys = [] if isinstance(found, list) or _has_all(found, text) else _KEY.findall(text)
    if len(set(keys)) < len(keys):
        try:
            json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            return str(error)
    return ""


def _has_all(found: Any, text: bytes) -> bool:
    """Returns whether an object with raw values has all values of its text: of a key that is there twice, the last is left."""
    at = 0
    for value in found.values() if isinstance(found, dict) else ():
        gap = _GAP.match(text, at)
        if gap is None or not isinstance(value, Raw):
            return False
        at = gap.end() + memoryview(value).nbytes
    return text[at:].strip() == b"}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of (key, value) pairs. Raises ValueError for a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(key)} is there twice in one object: remove the one that is wrong")
    return found


def _finite(text: str) -> float | str:
    """Returns a number, or its text if it is too large for a float: JSON has no infinity."""
    return float(text) if math.isfinite(float(text)) else text


def parse(raw: Raw, kind: type[T], place: str, problems: list[str], strict: bool = False) -> T | None:
    """Returns the JSON text `raw` as `kind`, or None with a problem that starts with `place`. `ABSENT` is null.

    Unless `strict`, numbers, booleans and null may be in quotes."""
    text = bytes(raw) or b"null"
    fields = getattr(kind, "__struct_encode_fields__", ())
    keys = _KEY.findall(text) if fields else None
    if keys and (others := _other_spellings(fields, frozenset(keys))):
        text, keys = _respelled(text, others), None
    try:
        found = msgspec.json.decode(text, type=kind, strict=strict, dec_hook=_convert)
    except _ERRORS as error:
        problems.append(explain(raw, place, error))
        return None
    if problem := _repeated_key(text, found, keys):
        problems.append(f"{place}: {problem}")
    return found


def optional(raw: Raw, kind: type[T], place: str, problems: list[str], strict: bool = False) -> T | None:
    """Returns `parse` of a value, None for null and `ABSENT`."""
    return None if bytes(memoryview(raw)[:5]) in (b"", b"null") else parse(raw, kind, place, problems, strict)


def rows(
    raw: Raw, kind: type[T], place: str, problems: list[str], unread: set[str] | None = None
) -> Iterator[tuple[int, T]]:
    """Yields (index, row) of a list whose rows fit `kind`; the others become problems. `ABSENT` and null have no rows.

    `unread` gets the keys of the first row that are not read."""
    for index, row in enumerate(optional(raw, list[Raw], place, problems, strict=True) or ()):
        if unread is not None and not index:
            unread |= unread_keys(row, kind)
        found = parse(row, kind, f"{place}[{index}]", problems)
        if found is not None:
            yield index, found


def _convert(kind: Any, value: Any) -> Any:
    """Returns the value of a field whose type is a class with the method `of`, such as Degrees in source.py."""
    return kind.of(value)


def explain(raw: Raw, place: str, error: Exception) -> str:
    """Returns the message for `raw`, which does not fit its type: place, value and fix."""
    try:
        value = json.loads(bytes(raw).decode("utf-8", "surrogatepass"), parse_constant=_no_number)
    except (ValueError, RecursionError) as wrong:  # no UTF-8, nested too deeply, a number of more than 4,300 digits
        return f"{place}: not JSON ({wrong}): export the file again, as UTF-8"
    if not isinstance(error, msgspec.ValidationError):
        return f"{place}: a class name, file name or other text holds half of a surrogate pair: rename it"
    name = f" (id {shown(value['id'])})" if isinstance(value, dict) and "id" in value else ""
    problem, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`")
    for key, index in _STEP.findall(path):  # as far as the path tells the keys
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and index:
            value = value[int(index)]
    problem = f"{problem[:1].lower()}{problem[1:]}; correct it, or export the file again"
    return f"{place}{path}{name} is {shown(value)}: {problem}"


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def shown(value: Any) -> str:
    """Returns a value of JSON for a message, at most 60 characters of it."""
    return brief(json.dumps(value, ensure_ascii=False), 60)
