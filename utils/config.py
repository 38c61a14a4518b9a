"""name=value overrides for a dataclass of constants, its help text, and the table printed at the start.

The class body at the top of an entry script is the block of constants that users edit. `override` reads the command
line by the declared types, `check` also looks at values that were typed into the file or passed from a notebook.
"""

import difflib
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
BOOL_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
SHOWN = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


class ConfigError(ValueError):
    """A constant that cannot be used; the message names it, its value and the cure."""


def override(cfg: T, argv: Sequence[str]) -> T:
    """A copy of the dataclass `cfg` with the constants that `argv` names as name=value, read by their declared types.

    Whole numbers may be written 1e3, pairs 640,640 or [640,640] or 640, nothing as none where the type admits None
    (elsewhere none is a word). Later ones win. `-h` and `--help` print the constants with their comments and exit.
    Raises ConfigError for unknown names, values that do not fit, and everything `check` refuses.
    """
    if any(item in ("-h", "--help", "help") for item in argv):
        print(help_text(cfg))
        raise SystemExit(0)
    cfg, kinds, changes = check(cfg), _kinds(cfg), {}
    for item in argv:
        name, equals, text = item.partition("=")
        if not equals or name.startswith("-"):
            word = name.lstrip("-").replace("-", "_") or "name"
            raise ConfigError(f"{item!r}: write name=value without dashes or blanks, as in {word}={text or 'value'}")
        if name not in kinds:
            raise ConfigError(f"{item}: {_unknown(name, kinds)}")
        if not text.strip():
            raise ConfigError(f"{item}: nothing after '='. Write {name}=VALUE ({_say(kinds[name])})")
        try:
            changes[name] = _parse(text.strip(), kinds[name])
        except ValueError:
            raise ConfigError(f"{item}: {name} is {_say(kinds[name])}") from None
    return check(replace(cfg, **changes))


def check(cfg: T) -> T:
    """A copy of `cfg` whose values have exactly their declared types (1 -> 1.0 for a float, a list -> a tuple, a Path
    -> text). Raises ConfigError for a value of another type, a constant without a type and control characters in text.
    """
    kinds = _kinds(cfg)
    for cls in type(cfg).__mro__:
        for name, value in vars(cls).items():
            if not name.startswith("_") and name not in kinds and not callable(value) and not hasattr(value, "__get__"):
                kind = type(value).__name__
                raise ConfigError(f"{name} = {value!r} has no type. Write {name}: {kind} = {value!r} in {cls.__name__}")
    values = {name: getattr(cfg, name) for name in kinds}
    for name, value in values.items():
        try:
            values[name] = _coerce(value, kinds[name])
        except ValueError:
            raise ConfigError(f"{name} = {value!r}: {name} is {_say(kinds[name])}") from None
        for text in values[name] if isinstance(values[name], tuple) else [values[name]]:
            _refuse_control_characters(name, text)
    return replace(cfg, **values)


def require(cfg: Any, least: dict[str, float], most: dict[str, float], choices: dict[str, Sequence[str]]) -> None:
    """Raises ConfigError naming the constant, its value and what would do: numbers (each of a pair) from `least` to
    `most`, words out of `choices`. None is left alone."""
    for limits, beyond, word in ((least, lambda a, b: a < b, "at least"), (most, lambda a, b: a > b, "at most")):
        for name, limit in limits.items():
            value = getattr(cfg, name)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if any(beyond(number, limit) for number in numbers):
                raise ConfigError(f"{name}={show(value)}: it must be {word} {show(limit)}")
    for name, words in choices.items():
        if getattr(cfg, name) not in words:
            value, known = show(getattr(cfg, name)), [show(word) for word in words]
            near = difflib.get_close_matches(value, known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{name}={value}: {meant}Choose one of: {', '.join(known)}")


def help_text(cfg: Any) -> str:
    """The constants of `cfg` with the comments beside them in the source; the plain table where there is no source."""
    usage = f"usage: python {Path(sys.argv[0]).name} name=value ...    changes constants for this run:\n\n"
    try:
        lines = inspect.cleandoc("\n" + inspect.getsource(type(cfg))).splitlines()
    except (OSError, TypeError):
        return usage + table(cfg)
    start = next(i for i, line in enumerate(lines) if line.startswith("class "))
    methods = (i for i, line in enumerate(lines) if i > start and line.strip().startswith(("def ", "@")))
    return usage + "\n".join(lines[start + 1 : next(methods, len(lines))]).rstrip()


def table(cfg: Any, defaults: Any = None, derived: dict[str, Any] | None = None) -> str:
    """Name and value of every constant, then the `derived` values. Lines start with `*` where the value differs from
    that in `defaults` (None: the values in the class body), which stands beside it.
    """
    rows = []
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        usual = getattr(defaults, field.name) if defaults is not None else field.default
        changed = usual is not MISSING and usual != value
        rows.append(("*" if changed else " ", field.name, show(value), f"(was {show(usual)})" if changed else ""))
    rows += [(" ", name, show(value), "") for name, value in (derived or {}).items()]
    wide = max((len(row[1]) for row in rows), default=0)
    lines = [f"{mark} {name:{wide}}  {text:28}  {note}".rstrip() for mark, name, text, note in rows]
    if derived:
        lines.insert(len(fields(cfg)), "derived")
    return "\n".join(["constants (* changed)", *lines])


def show(value: Any) -> str:
    """A value as it can be typed after `name=`."""
    if isinstance(value, tuple | list):
        return ",".join(map(show, value)) or "()"
    if isinstance(value, float):
        return f"{value:.6g}" if float(f"{value:.6g}") == value else repr(value)
    return "none" if value is None else str(value)


def _unknown(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}?" if near else "see --help for all."
    return f"there is no constant {name!r}; {meant}"


def _kinds(cfg: Any) -> dict[str, Any]:
    hints = get_type_hints(type(cfg))
    return {field.name: hints[field.name] for field in fields(cfg)}


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _parse(text: str, kind: Any) -> Any:
    """Text -> a value of one of the members of `kind`, the narrowest first. Raises ValueError."""
    members = _members(kind)
    lower = text.lower()
    if type(None) in members and lower == "none":
        return None
    if bool in members and lower in BOOL_WORDS:
        return BOOL_WORDS[lower]
    if bool in members and lower in ("0", "1") and not {int, float} & set(members):
        return lower == "1"
    for number in (int, float):
        if number in members:
            try:
                return _number(text, number)
            except ValueError:
                continue
    for member in members:
        if get_origin(member) is tuple:
            parts = [part.strip(" '\"") for part in text.strip("()[] ").split(",")]
            return tuple(_parse(part, of) for part, of in _items([p for p in parts if p], member))
    if str in members:
        return text
    raise ValueError(text)


def _number(text: str, kind: type) -> int | float:
    try:
        return kind(text)
    except ValueError:
        value = float(text)  # 1e3 and 64.0 are whole numbers
        if not value.is_integer():
            raise
        return int(value)


def _coerce(value: Any, kind: Any) -> Any:
    """A Python value -> the same as a member of `kind`. Raises ValueError where it is of another type."""
    members = _members(kind)
    if value is None or isinstance(value, bool):
        if type(value) in members:
            return value
    elif isinstance(value, str | os.PathLike):
        if str in members:
            return os.fspath(value)
    elif isinstance(value, numbers.Integral) and int in members:
        return int(value)
    elif isinstance(value, numbers.Real) and float in members and math.isfinite(value):
        return float(value)
    else:
        for member in members:
            if get_origin(member) is tuple:
                items = list(value) if isinstance(value, Sequence) else [value]
                return tuple(_coerce(item, of) for item, of in _items(items, member))
    raise ValueError(value)


def _items(items: list[Any], kind: Any) -> list[tuple[Any, Any]]:
    """Items of a tuple, each with its declared type: `tuple[T, ...]` takes any number, a pair also a single one."""
    of = get_args(kind)
    if of[-1] is Ellipsis:
        of = (of[0],) * len(items)
    elif len(items) == 1 and len(of) == 2:
        items = items * 2
    if len(items) != len(of):
        raise ValueError(items)
    return list(zip(items, of, strict=True))


def _say(kind: Any) -> str:
    words = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text", type(None): "none"}
    said = []
    for member in _members(kind):
        of = get_args(member)
        if get_origin(member) is tuple:
            count = "a list of" if of[-1] is Ellipsis else str(len(of))
            said.append(f"{count} values with commas between them ({words.get(of[0], 'values')} each)")
        else:
            said.append(words.get(member, str(member)))
    return " or ".join(said)


def _refuse_control_characters(name: str, value: Any) -> None:
    bad = [c for c in value if ord(c) < 32 or ord(c) == 127] if isinstance(value, str) else []
    if bad:
        escape = {c: SHOWN.get(c, f"\\x{ord(c):02x}") for c in bad}
        typed = "".join(escape.get(c, c) for c in value)
        slashes = typed.replace("\\", "/")
        raise ConfigError(
            f'{name} = "{typed}": inside quotes Python reads {escape[bad[0]]} as a control character. '
            f'Write r"{typed}" or "{slashes}"'
        )
