"""Fuzzers of name=value overrides, and of tools.convert, whose results are read again."""

import dataclasses
import json
import random
import types
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import evaluate
import export
import predict
import train
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from tools import check as tools_check
from tools import convert as tools_convert
from utils.config import check, override, show
from utils.text import brief, printable

from . import documents, mutate, texts
from .harness import Case, Failure, Fuzzer
from .samples import check_annotations, rows

SCRIPTS = {
    **{"train": train.Config, "evaluate": evaluate.Config, "predict": predict.Config, "export": export.Config},
    **{"check": tools_check.Config, "convert": tools_convert.Config},
}


# ---- constants


def make_constants(rng: random.Random) -> Case:
    script = rng.choice(("train", *SCRIPTS))
    fields = dataclasses.fields(SCRIPTS[script])
    words, values = [], {}
    for _ in range(rng.choice((1, 1, 2, 5))):
        field = rng.choice(fields)
        text = rng.choice(
            (*mutate.NUMBERS, *mutate.WORDS, show(field.default), f"({show(field.default)})", "[" * 500, "1,2,3")
        )
        name = (
            field.name
            if rng.random() < 0.9
            else rng.choice((*mutate.WORDS, f"--{field.name}", field.name.upper(), "lr"))
        )
        word = f"{name}={text}" if rng.random() < 0.95 else name
        if rng.random() < 0.2:
            word = mutate.spoil(rng, mutate.data_of(word)).decode("utf-8", "surrogateescape")
        words.append(word)
        values[field.name] = mutate.odd_value(rng, field.default)
    job = {"script": script, "words": words} if rng.random() < 0.7 else {"script": script, "values": values}
    return {"job.json": json.dumps(job, default=list).encode()}


def run_constants(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    kind = SCRIPTS[job["script"]]
    try:
        cfg = override(kind(), job["words"]) if "words" in job else check(dataclasses.replace(kind(), **job["values"]))
    except SystemExit as end:  # --help
        if end.code:
            raise
        return
    hints = get_type_hints(kind)
    for name, value in vars(cfg).items():
        if not _fits(value, hints[name]):
            raise Failure("wrong", f"{name} is {value!r}, not {hints[name]}")
    words = [f"{name}={show(value)}" for name, value in vars(cfg).items()]
    if "words" in job and override(kind(), words) != cfg:
        raise Failure("wrong", f"what show() writes is read as something else: {cfg}")
    if kind is train.Config:
        train.checked(cfg)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has exactly the declared type."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        inner = inner[:1] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple) else inner
        return type(value) is tuple and len(value) == len(inner) and all(map(_fits, value, inner))
    return value is None if kind is type(None) else type(value) is kind and value == value


def _names_constant(message: str, case: Case) -> bool:
    job = json.loads(case["job.json"])
    names = [field.name for field in dataclasses.fields(SCRIPTS[job["script"]])]
    starts = [part for word in job.get("words", ()) for part in (brief(word)[:50], printable(repr(brief(word)))[:50])]
    return any(name in message for name in names) or any(message.startswith(start) for start in starts)


# ---- tools.convert

SOURCES = {  # a maker of inputs -> what is converted
    texts.make_annotation_file: "train.txt",
    texts.make_yolo: ".",
    documents.make_coco: "coco.json",
    documents.make_labelme: ".",
    documents.make_labelstudio: "tasks.json",
    documents.make_via: "via.json",
    documents.make_voc: ".",
    documents.make_cvat: "annotations.xml",
}


def _names_option(message: str, case: Case) -> bool:
    return any(word in message for word in ("/data/", "classes=", "merge=", "split=", "the path"))


@cache
def _images() -> dict[str, bytes]:
    return documents.image_files()


def make_convert(rng: random.Random) -> Case:
    make = rng.choice(list(SOURCES))
    case = {f"source/{name}": data for name, data in ({**_images(), **make(rng)}).items()}
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["split"] = rng.choice(([0.5, 0.5], [0.4, 0.3, 0.3], [0.9, 0.2], [1.0], [float("nan"), 1]))
    if rng.random() < 0.2:
        options["merge"] = rng.choice(("cat:small dog", "cat:" + rng.choice(mutate.WORDS), "cat", "x:y", ":"))
    if rng.random() < 0.2:
        options["classes"] = rng.choice(("cat,small dog", "cat", "鸟,cat", rng.choice(mutate.WORDS)))
    if rng.random() < 0.1:
        case["out/classes.txt"] = mutate.spoil(rng, mutate.data_of("cat\nsmall dog\n鸟\n"))
    target = rng.choice(("data.txt", "data.json", "data.txt", "data.json", "data.xml"))
    case["job.json"] = json.dumps({"source": SOURCES[make], "target": target, "options": options}).encode()
    return case


def run_convert(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    options = job["options"]
    if "split" in options:
        options["split"] = tuple(options["split"])
    source, target = folder / "source" / job["source"], folder / "out" / job["target"]
    report = tools_convert.convert(str(source), str(target), source_split="all", **options)
    print("\n".join(report))
    names = [target.with_name(f"data_{part}{target.suffix}") for part in ("train", "val", "test")]
    written = [name for name in names if name.exists()] if "split" in options else [target]
    if len(written) != len(options.get("split", "1")):
        raise Failure("wrong", f"wrote {written}")
    wanted = options.get("classes")
    wanted = tuple(name.strip() for name in wanted.split(",")) if wanted else None
    chosen = ReadOptions(classes=wanted, select=bool(wanted), merge=options.get("merge"), bad_boxes="drop")
    expected = read(str(source), "all", chosen)
    try:
        found = [read(str(name), "all") for name in written]
    except DataError as error:
        raise Failure("wrong", f"what was written cannot be read: {error}") from error
    for data in found:
        check_annotations(data)
        order = sorted if target.suffix == ".json" else tuple  # a COCO file orders classes by their ids
        # A list without boxes is read as a list of YOLO images, whose own class list may be longer.
        names = data.classes if len(data.labels) else data.classes[: len(expected.classes)]
        if order(names) != order(expected.classes):
            raise Failure("wrong", f"the classes {expected.classes[:9]} became {data.classes[:9]}")
    images = {}
    for data in found:
        images |= {Path(data.path(i)).resolve(): _rounded(boxes) for i, boxes in enumerate(rows(data))}
    before = {}
    for i, boxes in enumerate(rows(expected)):
        before.setdefault(Path(expected.path(i)).resolve(), []).append(_rounded(boxes))
    dropped = any("left out" in line for line in report)
    if set(images) != set(before) or not dropped and any(boxes not in before[path] for path, boxes in images.items()):
        raise Failure("wrong", f"{before} became {images}"[:2000])


def _rounded(boxes: list) -> list[tuple]:
    return sorted((*(round(value, 4) for value in box[:4]), *box[4:]) for box in boxes)


FUZZERS = (
    # train.checked also raises ValueError, which run_script prints as it is
    Fuzzer("constants", make_constants, run_constants, (ValueError,), _names_constant),
    Fuzzer("convert", make_convert, run_convert, names_place=_names_option),
)
