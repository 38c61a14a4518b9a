"""Constants of the entry scripts: name=value overrides, checks, help, and what a start prints of them."""

import ast
import difflib
import inspect
import math
import numbers
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from utils import migration
from utils.files import matched, missing_text
from utils.remote import refuse_keys
from utils.text import brief, control_fix, printable


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Dataclass)
MAX_SEED = 2**63 - 1  # PyTorch takes no larger one
WORDS = {"none": None, "true": True, "yes": True, "on": True, "1": True}
WORDS |= {"false": False, "no": False, "off": False, "0": False}
TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
COUNTS = ("no", "one", "two", "three", "four")


class ConfigError(ValueError):
    """A constant has an unusable value. The message names the constant, its value and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Constants:
    """The base of the dataclasses of constants: Config(imgsz=640) in Python gets the help that the command line gives."""

    def __new__(cls, *_: Any, **named: Any) -> "Constants":
        known = get_type_hints(cls)
        for name, value in named.items():
            if name not in known:
                raise ConfigError(unknown_text(f"{name}={show(value)}", known))
        return super().__new__(cls)


def override(cfg: T, argv: Sequence[str], positional: Mapping[str, Callable[[str], bool]] | None = None) -> T:
    """Returns a copy of the dataclass `cfg` with the name=value overrides in `argv`, each read by its declared type.

    Whole numbers may be written as 1e3, pairs as 640,640 or [640,640] or 640, and None as none if the type allows it.
    A word without a name is the value of the first constant in `positional` whose function accepts it.
    `-h` and `--help` print the constants with their comments and exit.
    Raises ConfigError for unknown names, for names that are given twice, and for values that do not fit.
    """
    if any(item in ("-h", "--help", "help") for item in argv):
        print(help_text(cfg))
        raise SystemExit(0)
    cfg, kinds = check(cfg), get_type_hints(type(cfg))
    changes: dict[str, Any] = {}
    for index, word in enumerate(argv):
        item = _with_name(word, positional or {}, kinds)
        name, equals, text = item.partition("=")
        shown = brief(item)
        if name.startswith("-") or (name in kinds and not text.strip()):
            raise ConfigError(_without_dashes(argv[index:], kinds, cfg))
        if not equals and positional:
            names = " or ".join(f"{other}={shown}" for other in positional)
            fix = "" if "/" in item else f", or write {names}"
            raise ConfigError(f"{shown!r}: {missing_text(item)}{fix}")
        if name not in kinds:
            raise ConfigError(unknown_text(item, kinds))
        if name in changes:
            raise ConfigError(f"{shown}: {name}= is given twice, also as {show(changes[name])}: remove one")
        try:
            changes[name] = _parse(text if os.path.exists(text) else text.strip(), kinds[name])
        except ValueError:
            fix = _expected(name, kinds[name], getattr(cfg, name)) + _meanings(name, kinds[name], text)
            raise ConfigError(f"{shown}: write {fix}") from None
    return check(replace(cfg, **changes))


def _with_name(word: str, positional: Mapping[str, Callable[[str], bool]], kinds: Mapping[str, Any]) -> str:
    """Returns a word of the command line with a name, if it has none and a constant of `positional` accepts it."""
    name, equals, _ = word.partition("=")
    if name in kinds or ((equals or word.startswith("-")) and not os.path.exists(word)):
        return word
    word = matched(word)
    owner = next((constant for constant, accepts in positional.items() if accepts(word)), None)
    return f"{owner}={word}" if owner else word


def _without_dashes(argv: Sequence[str], kinds: Mapping[str, Any], cfg: Any) -> str:
    """Returns the message for --name=value, --name value, name value and name=: what to write instead."""
    name, _, text = argv[0].partition("=")
    name = name.lstrip("-").replace("-", "_") or "name"
    after = next((word for word in argv[1:3] if word != "="), "--")  # name = value is three words
    if not text.strip() and not after.startswith("--") and after.partition("=")[0] not in kinds:
        text = after
    given = brief(text.strip()) or "VALUE"
    if name not in kinds:
        return f"{brief(argv[0])}: {migration.unknown_constant(name, given, kinds)}"
    expected = _expected(name, kinds[name], getattr(cfg, name))
    return f"{brief(argv[0])}: write {name}={given}, without dashes and spaces: {expected}"


def unknown_text(word: str, names: Collection[str]) -> str:
    """Returns the message for a word name=value whose name is none of the constants `names`: what to write instead."""
    name, _, text = word.partition("=")
    given = brief(text.strip()) or "VALUE"
    return f"{brief(word)}: {migration.unknown_constant(name, given, names)}"


def is_weights(word: str) -> bool:
    """Whether a word on the command line is the path of a checkpoint or of weights."""
    return word.endswith((".pt", ".pth", ".onnx", ".pdparams"))


def check(cfg: T) -> T:
    """Returns a copy of `cfg` whose values have exactly their declared types: 1 -> 1.0, a list -> a tuple, a Path -> text.

    It covers values that were typed into the file or passed from a notebook. Raises ConfigError for a value of another type,
    for a constant without a type and for control characters in text.
    """
    kinds, values = get_type_hints(type(cfg)), {}
    for name, value in vars(type(cfg)).items():
        if not name.startswith("_") and name not in kinds and not callable(value) and not hasattr(value, "__get__"):
            fixed = f"{name}: {type(value).__name__} = {value!r}"
            raise ConfigError(f"{name} = {value!r} has no type. Write {fixed} in {type(cfg).__name__}")
    for name, kind in kinds.items():
        value = getattr(cfg, name)
        if isinstance(value, str) and name != "source":  # which is neither printed nor kept
            refuse_keys(f"{name}=", value)
        try:
            values[name] = _convert(value, kind)
        except ValueError:
            fix = _expected(name, kind, vars(type(cfg)).get(name)) + _meanings(name, kind, str(value))
            if str in (kind, *get_args(kind)) and isinstance(value, int | float):
                fix = f'it in quotes: {name}="{show(value)}"'
            raise ConfigError(f"{name} = {value!r}: write {fix}") from None
        if isinstance(values[name], str) and any(c < " " or c == "\x7f" for c in values[name]):
            raise ConfigError(f"{name}={value!r} holds a control character: {control_fix(values[name])}")
    return replace(cfg, **values)


def require(
    cfg: Any,
    minimum: Mapping[str, float],
    maximum: Mapping[str, float],
    choices: Mapping[str, Sequence[str | None]],
) -> None:
    """Raises ConfigError for a number (or one of a pair) below `minimum` or above `maximum`, and for a word not in `choices`.

    The keys are names of constants. A constant that is None or text passes the limits.
    """
    for name in {**minimum, **maximum}:
        value = getattr(cfg, name)
        for number in value if isinstance(value, tuple) else [value]:
            if number is None or isinstance(number, str):
                continue
            if number < minimum.get(name, -math.inf):
                bound = f"at least {show(minimum[name])}"
            elif number > maximum.get(name, math.inf):
                bound = f"at most {show(maximum[name])}"
            else:
                continue
            raise ConfigError(f"{name}={show(value)}: it must be {bound} ({comments(type(cfg))[name]})")
    for name, words in choices.items():
        value, known = getattr(cfg, name), [show(word) for word in words]
        if value not in words:
            same = migration.value_here(name, show(value))
            near = [same] if same in known else difflib.get_close_matches(show(value).lower(), known, n=1)
            hint = f"did you mean {name}={near[0]}? " if near else ""
            if is_weights(show(value)):
                hint = f"a file is weights={value} or checkpoint={value}. "
            raise ConfigError(f"{name}={show(value)}: {hint}Choose one of: {', '.join(known)}")


def require_writable(option: str, folder: str | Path, fix: str = "name another folder") -> None:
    """Raises ConfigError, with the folder and the fix, if files cannot be written to the folder of `option`.

    The folder may not exist yet. Writes a temporary file into it, or into the nearest one above it that exists: permissions
    alone do not show a read-only disk to the administrator, nor folders of the system such as /proc.
    """
    folder = Path(folder).absolute()
    there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        raise ConfigError(f"{option}: cannot write in {there} ({error.strerror}): {fix}") from error


def help_text(cfg: Any) -> str:
    """Returns what the script of the class of `cfg` does, and its constants with types and comments, from the source code."""
    kind = type(cfg)
    kinds, about = get_type_hints(kind), inspect.getdoc(sys.modules[kind.__module__]) or ""
    rows = []
    for name, comment in comments(kind).items():
        if name in kinds:
            rows.append((f"  {name}={show(getattr(cfg, name))}", type_text(kinds[name]), comment))
        else:
            rows.append((name, "", ""))
    wide, narrow = (max(len(row[column]) for row in rows if row[1]) for column in (0, 1))
    lines = [f"{left:{wide}}  {middle:{narrow}}  {right}".rstrip() for left, middle, right in rows]
    return "\n".join([about, "", "constants, written as name=value:", *lines])


def comments(kind: type) -> dict[str, str]:
    """Returns {name of a constant: its comment} of a class from its source code, and {title of a group: ""}, in its order."""
    found = {}
    _, _, body = inspect.cleandoc("\n" + inspect.getsource(kind)).partition(":\n")
    for line in inspect.cleandoc(body).splitlines():
        name, _, rest = line.partition(": ")
        if name in get_type_hints(kind):
            found[name] = rest.partition("  # ")[2]
        elif line.startswith("# "):
            found[line[2:]] = ""
    return found


def type_text(kind: Any) -> str:
    """Returns a type in words: text or none, a whole number, two numbers."""
    if kind in TYPES:
        return TYPES[kind]
    members = get_args(kind)
    if get_origin(kind) is not tuple:
        return " or ".join(type_text(member) for member in members)
    plural = f"{TYPES[members[0]].removeprefix('a ')}s"
    return plural if members[-1] is Ellipsis else f"{COUNTS[len(members)]} {plural}"


def constants_text(cfg: T, written: T, derived: Mapping[str, Any]) -> str:
    """Returns the constants that were changed, as they can be typed again, those that the run chose in place of none, and others.

    `cfg`: with the values of the run; `written`: as the user wrote them; `derived`: name -> value of what is computed from them.
    """
    values, defaults, given = vars(cfg), vars(type(cfg)()), vars(written)
    chosen = [name for name, value in values.items() if given[name] is None and value is not None]
    changed = [name for name, value in values.items() if name not in chosen and value != defaults[name]]
    lines = []
    for title, names in (("changed", changed), ("chosen", chosen)):
        if title == "chosen":  # by the run: nobody types them
            values = {name: float(f"{v:.4g}") if isinstance(v, float) else v for name, v in values.items()}
        text = " ".join(quote(f"{name}={show(values[name])}") for name in names)
        lines += wrap(
            text,
            width=110,
            initial_indent=f"{title:11}",
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines += [f"{name:20}{show(value)}" for name, value in derived.items()]
    return printable("\n".join(lines))


def show(value: Any) -> str:
    """Returns a value as text, as it can be typed after `name=`."""
    if isinstance(value, tuple | list):
        return ",".join(map(show, value)) or "()"
    if isinstance(value, float):
        short = f"{value:.6g}"  # 0.3 of 0.30000000000000004, a quotient
        return short if math.isclose(float(short), value, rel_tol=1e-12) else repr(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _parse(text: str, kind: Any) -> Any:
    """Text -> a value of type `kind`: a Python number or tuple, a word such as none or yes, a list of words, or text."""
    readings = [WORDS.get(text.lower(), text), [part.strip() for part in text.strip("()[]").split(",")], text]
    with suppress(ValueError, TypeError, SyntaxError):
        literal = ast.literal_eval(text)
        if not isinstance(literal, str):
            readings.insert(0, literal)
    for value in readings:
        with suppress(ValueError):
            return _convert(value, kind)
    raise ValueError(text)


def _convert(value: Any, kind: Any) -> Any:
    """A Python value as a member of the type `kind`. Raises ValueError if no member fits."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(value) in members and (value is None or isinstance(value, bool)):
        return value
    if isinstance(value, str | os.PathLike) and str in members:
        return os.fspath(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number:
        if int in members and value % 1 == 0:  # 1e3 and 64.0 are whole numbers
            return int(value)
        if float in members and abs(value) <= sys.float_info.max:
            return float(value)
    of = next((get_args(member) for member in members if get_origin(member) is tuple), None)
    if of is None or value is None or isinstance(value, bool | str | os.PathLike):
        raise ValueError(value)
    items = list(value) if isinstance(value, Sequence) else [value]
    if of[-1] is Ellipsis:
        of = of[:1] * len(items)
    elif len(items) == 1 and len(of) == 2 and (int in of or items[0] == 1):  # 640 for 640,640
        items = items * 2
    return tuple(_convert(item, member) for item, member in zip(items, of, strict=True))


def _expected(name: str, kind: Any, example: Any) -> str:
    """Returns the type and an example, for messages: two whole numbers, for example image_size=416,416.

    A default of 0 or false turns something off: the example turns it on."""
    if example == 0:
        example = 0.5 if isinstance(example, float) else type(example)(1)
    shown = "" if example is None else f", for example {name}={show(example)}"
    return f"{type_text(kind)}{shown}"


def _meanings(name: str, kind: Any, text: str) -> str:
    """Returns what a number may mean where two are needed, for messages: 1 ± .5 in other programs, or .5 for all images."""
    if get_args(kind) != (float, float) or not re.fullmatch(r"\d*\.?\d+", text):
        return ""
    number = float(text)
    around = ""
    if number < 1:
        around = f"{name}={show(1 - number)},{show(1 + number)} for 1 ± {show(number)}, as in Ultralytics; "
    return f": {around}{name}={show(number)},{show(number)} for always {show(number)}"
