"""Fuzzers of texts: the annotation file, classes.txt and YOLO."""

import math
import os
import random
from pathlib import Path

import yaml

from datasets.formats.class_names import read_classes
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from utils.text import class_name_problem

from . import mutate
from .harness import Case, Failure, Fuzzer
from .samples import CLASSES, SIZES, Box, bare, boxes_of, check_annotations, compare, image_files, lines_of


def _names(path: Path) -> list[str]:
    """Class names, one per line."""
    lines = [bare(line) for line in lines_of(path)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# ---- annotation file


def make_annotation_file(rng: random.Random) -> Case:
    lines = []
    for name in SIZES:
        words = [f"{b.x1},{b.y1},{b.x2},{b.y2},{CLASSES.index(b.name)}" for b in boxes_of(rng, name)]
        words = [word + ",1" if rng.random() < 0.2 else word for word in words]
        lines.append(" ".join([name, *words]))
    case = {"train.txt": mutate.spoil(rng, mutate.data_of("\n".join(lines) + "\n"))}
    if rng.random() < 0.7:
        names = mutate.data_of("\n".join(CLASSES) + "\n")
        case["classes.txt"] = mutate.spoil(rng, names) if rng.random() < 0.1 else names
    return case


def run_annotation_file(folder: Path) -> None:
    source = folder / "train.txt"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    names = _names(folder / "classes.txt") if (folder / "classes.txt").exists() else list(map(str, range(10_000)))
    images = []
    for line in lines_of(source):
        words = line.split()
        boxes = []
        while len(words) > 1 and words[-1].count(",") >= 3 and not words[-1].endswith(".png"):
            *corners, label, crowd = (words.pop() + ",0").split(",")[:6]
            boxes.append(Box(*map(float, corners), names[int(float(label))], float(crowd) == 1))
        images += [boxes] if words else []
    compare(source, found, images)


# ---- classes.txt


def make_classes(rng: random.Random) -> Case:
    count = rng.choice((0, 1, 3, 3, 3, 80, 2000))
    names = [rng.choice((f"class {i}", rng.choice(mutate.WORDS))) if count > 3 else CLASSES[i] for i in range(count)]
    return {"classes.txt": mutate.spoil(rng, mutate.data_of("".join(f"{name}\n" for name in names)))}


def run_classes(folder: Path) -> None:
    found = read_classes(str(folder / "classes.txt"))
    if list(found) != _names(folder / "classes.txt"):
        raise Failure("wrong", f"read {found[:5]}")
    if bad := next(filter(None, map(class_name_problem, found)), ""):
        raise Failure("wrong", f"accepted: {bad}")


# ---- YOLO


def make_yolo(rng: random.Random) -> Case:
    """Images, label files, and data.yaml or classes.txt."""
    case: Case = image_files("images/")
    for name, (width, height) in SIZES.items():
        lines = []
        for box in boxes_of(rng, name):
            numbers = [(box.x1 + box.x2) / 2 / width, (box.y1 + box.y2) / 2 / height]
            numbers += [(box.x2 - box.x1) / width, (box.y2 - box.y1) / height]
            if rng.random() < 0.2:
                numbers = [
                    box.x1 / width,
                    box.y1 / height,
                    box.x2 / width,
                    box.y1 / height,
                    box.x2 / width,
                    box.y2 / height,
                ]
            lines.append(" ".join(map(str, [CLASSES.index(box.name), *numbers])))
        if rng.random() < 0.9:
            case[f"labels/{name[:-4]}.txt"] = mutate.data_of("\n".join(lines))
    if rng.random() < 0.6:
        names = rng.choice((list(CLASSES), dict(enumerate(CLASSES))))
        config = {"path": ".", "train": rng.choice(("images", "list.txt")), "names": names}
        config |= rng.choice(({}, {"nc": 3}, {"val": "images"}, {"nc": rng.choice((10**9, "x", -1))}))
        case["data.yaml"] = mutate.data_of(yaml.safe_dump(config, allow_unicode=True))
        case["list.txt"] = mutate.data_of("".join(f"images/{name}\n" for name in SIZES))
    else:
        case["classes.txt"] = mutate.data_of("\n".join(CLASSES))
    texts = [name for name in case if not name.endswith(".png")]
    for _ in range(rng.choice((0, 1, 1, 2))):
        name = rng.choice(texts)
        case[name] = mutate.spoil(rng, case[name])
    if rng.random() < 0.05 and "data.yaml" in case:
        case["data.yaml"] += rng.choice(_YAML_BOMBS)
    return case


_YAML_BOMBS = (
    b"\na0: &a0 [lol]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 12)),
    b"\nnames: cat\n",
    b"\nnc: 1000000000\n",
    b"\nx: " + b"[" * 5000,
    b"\nx: &x [*x]\nnames: *x\n",
    b"\n<<: {train: images}\n? [a, b]\n: c\n",
)


def run_yolo(folder: Path) -> None:
    found = read(str(folder), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    sizes = {f"{name[:-4]}": size for name, size in SIZES.items()}
    images = []
    if not all(os.path.isfile(found.path(index)) for index in range(len(found))):
        return  # train.py stops with a list of the missing images
    for index in range(len(found)):
        stem = Path(found.path(index)).stem
        width, height = sizes[stem]
        label = folder / "labels" / f"{stem}.txt"
        lines = lines_of(label) if label.exists() else []
        boxes = []
        for words in (line.split() for line in lines if line.strip()):
            name, *values = map(float, words)
            if len(values) == 4:
                x, y, w, h = values
                values = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            xs, ys = values[::2] or [math.nan], values[1::2] or [math.nan]
            corners = (min(xs) * width, min(ys) * height, max(xs) * width, max(ys) * height)
            boxes.append(Box(*corners, found.classes[int(name)]))
        images.append(boxes)
    if not (folder / "list.txt").exists() and len(images) != len(SIZES):
        raise Failure("wrong", f"{len(images)} of {len(SIZES)} images without an error")
    _check_yolo_names(folder, found.classes)
    compare(folder, found, images, 1e-4)


def _check_yolo_names(folder: Path, classes: tuple[str, ...]) -> None:
    if not (folder / "data.yaml").exists():
        expected = _names(folder / "classes.txt")
    else:
        config = {str(k).lower(): v for k, v in yaml.load((folder / "data.yaml").read_bytes(), yaml.BaseLoader).items()}
        names = config.get("names") or [str(i) for i in range(int(config["nc"]))]
        expected = [names[str(i)] for i in range(len(names))] if isinstance(names, dict) else list(names)
        expected = [bare(str(name)) for name in expected]
    if list(classes) != expected:
        raise Failure("wrong", f"the classes are {classes[:9]} instead of {expected[:9]}")


FUZZERS = (
    Fuzzer("annotation_file", make_annotation_file, run_annotation_file),
    Fuzzer("classes", make_classes, run_classes, fraction=0.5),
    Fuzzer("yolo", make_yolo, run_yolo),
)
