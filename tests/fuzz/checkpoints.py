"""Fuzzers of checkpoints and weights files, also of PaddlePaddle: flipped bits, archives taken apart, odd contents."""

import copy
import io
import random
import sys
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from deploy import load

sys.path += [folder for folder in [str(Path(__file__).parents[1])] if folder not in sys.path]  # for `tiny`

import tiny  # noqa: F401  registers model="tiny_n"

import nets
from engine import resume
from engine.optimizer import EMA, Updater, build_optimizer
from engine.schedule import Plan, Schedule
from engine.state import State
from utils import checkpoint, file_checks
from utils.config import ConfigError
from utils.file_checks import CheckpointError
from utils.processes import Ranks

from . import spoil
from .harness import Case, Failure, Fuzzer

DATA = Path(__file__).parents[1] / "data"
PADDLE_TYPES = (dict, list, str, bytes, bool, int, float, type(None), torch.Tensor)
CLASSES = ("cat", "dog", "bird")
RUN = "runs/train-2026-01-31-1"
ODD = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**70,
        10**6,
        1.5,
        -0.5,
        float("nan"),
        float("inf"),
        1e308,
        "",
        "x" * 300,
        "cat\ud800",
        "a\nb",
    ),
    *("\x1b[31m", "64", b"\x00\xff", [], {}, (), [[]], {"a": 1}, {1: 2}, [1, 2, 3], (10**6, 10**6), (64, 96), (33, 64)),
    *("yolox_s", "yolov9_t", "tiny_n", "../../etc", [""] * 20000, ["cat"], ["cat", None], {"epoch": 1}),
)


@lru_cache(1)
def contents() -> dict[str, Any]:
    """The contents of the last.pt of a short training."""
    torch.manual_seed(0)
    model = nets.build("tiny_n", len(CLASSES))
    updater = new_updater(model)
    model(torch.zeros(2, 3, 32, 32)).boxes.sum().backward()
    updater.optimizer.step()
    config = {"model": "tiny_n", "image_size": (64, 96), "val": "val.txt", "classes": None, "mosaic": 0.5, "ema": True}
    row = {"epoch": 1, "AP": 0.25, "box": 1.5, "confidence": 0.4}
    rest = {"model": model.state_dict(), "updater": updater.state_dict(), "state": {"rows": (row,)}}
    rest |= {
        "meter": {"batches": 0, "seconds": 0.0, "sums": {}},
        "rates": {"power": 0.5, "max_images": 64, "clip": 10.0},
    }
    rest |= {"origin": {"written": dict(config), "facts": {}, "trained": None}}
    rest |= {"course": {"max_epochs": 0, "warmup_epochs": 1.0, "no_aug_epochs": 1, "budget": None}}
    return {
        **{"format": 2, "config": config, "classes": list(CLASSES), "epoch": 1, "step": 3, "metrics": row},
        "model": updater.ema.model.state_dict(),
        "resume": rest,
    }


def new_updater(model: nets.DetectionModel) -> Updater:
    """An updater as train.py builds it."""
    plan = Plan.of(8, 2, 1, 4, 4, 1)
    schedule = Schedule(plan, "cosine", 0.004, 0.0002, 1.0, 1)
    return Updater(model, build_optimizer("adamw", model, 0.05), schedule, EMA(model, 4, True), "none", 1, clip=10.0)


def saved(value: Any, legacy: bool = False) -> bytes:
    """The bytes of a PyTorch file."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


@lru_cache(4)
def intact(kind: str) -> bytes:
    """The bytes of an intact file: "last.pt", "best.pt" or "weights.pth"."""
    whole = checkpoint.plain(contents())
    if kind == "best.pt":
        whole = {name: value for name, value in whole.items() if name != "resume"}
    return saved({"model": whole["model"]} if kind == "weights.pth" else whole)


def places(value: Any, where: tuple = ()) -> list[tuple]:
    """The paths of everything in nested containers."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        items = []
    return [where] * bool(where) + [found for key, item in items for found in places(item, (*where, key))]


def replaced(value: Any, where: tuple, new: Any) -> Any:
    """Nested containers with another value at a path; `...` removes it."""
    if not where:
        return new
    key, rest = where[0], where[1:]
    if isinstance(value, dict):
        if not rest and new is ...:
            return {name: item for name, item in value.items() if name != key}
        return {name: replaced(item, rest, new) if name == key else item for name, item in value.items()}
    items = [replaced(item, rest, new) if number == key else item for number, item in enumerate(value)]
    return (list if isinstance(value, list) else tuple)(item for item in items if item is not ...)


def odd_tensor(rng: random.Random, like: torch.Tensor) -> torch.Tensor:
    """A tensor that a checkpoint should not have."""
    same = tuple(like.shape) if like.numel() < 10**6 else (2, 2)  # one below claims terabytes
    shape = rng.choice((same, same, (), (0,), (1,), (3, 5), (2, 0, 3), (7, 8, 1, 1)))
    return rng.choice(
        (
            torch.full(shape, float(rng.choice(("nan", "inf", "-inf", "1e30")))),
            torch.ones(
                shape, dtype=rng.choice((torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.complex64))
            ),
            torch.ones(()).expand(shape),
            torch.ones(3, 3).to_sparse(),
            torch.empty(10**6, 10**6, device="meta"),
            torch.zeros(2, 3, dtype=torch.float64).t(),
        )
    )


def laughs(depth: int, width: int = 10) -> list:
    """Nested lists that share their items: few in the file, width ** depth for a careless reader."""
    value: list = ["ha"]
    for _ in range(depth):
        value = [value] * width
    return value


def circle() -> list:
    """A list that holds itself."""
    value: list = []
    value.append(value)
    return value


def odd_contents(rng: random.Random, kind: str) -> Any:
    """The contents of a file with one to three odd values."""
    whole = torch.load(io.BytesIO(intact(kind)), weights_only=True)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        where = rng.choice(places(whole))
        if rng.random() < 0.5:  # near the top, where most meanings are
            where = where[: rng.randint(1, 3)]
        old = whole
        for key in where:
            old = old[key]
        how = rng.random()
        if how < 0.2:
            new = ...
        elif how < 0.3:
            new = rng.choice((laughs(rng.choice((5, 40, 60))), circle(), set("ab"), torch.Size([1, 2])))
        elif isinstance(old, torch.Tensor) and how < 0.8:
            new = odd_tensor(rng, old)
        else:
            new = copy.deepcopy(rng.choice(ODD))
        try:
            whole = replaced(whole, where, new)
        except RecursionError:
            pass
        if not isinstance(whole, dict | list | tuple) or not places_safe(whole):
            break
    return whole


def places_safe(value: Any) -> bool:
    """Whether nested containers can be walked."""
    try:
        return bool(value) and len(repr(type(value))) > 0 and not has_odd(value)
    except RecursionError:
        return False


def has_odd(value: Any, depth: int = 0) -> bool:
    """Whether there are containers that cannot be walked."""
    if depth > 10:
        return True
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return any(has_odd(item, depth + 1) for item in items)
    return False


def surgery(rng: random.Random, data: bytes) -> bytes:
    """Takes an archive apart and writes it again: compressed, with other, missing, repeated or swapped records."""
    out, how = io.BytesIO(), rng.randrange(7)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(item.filename, archive.read(item)) for item in archive.infolist()]
    kind = zipfile.ZIP_DEFLATED if how == 0 else zipfile.ZIP_STORED
    a, b = rng.randrange(len(records)), rng.randrange(len(records))
    if how == 1:
        records.append((records[a][0], rng.randbytes(50)))
    elif how == 2:
        del records[a]
    elif how == 3:
        records[a], records[b] = (records[a][0], records[b][1]), (records[b][0], records[a][1])
    elif how == 4:
        records[a] = (records[a][0], spoil.spoil(rng, records[a][1]) if records[a][1] else b"")
    elif how == 5:
        pickled = next(i for i, (name, _) in enumerate(records) if name.endswith("data.pkl"))
        records[pickled] = (records[pickled][0], spoil.spoil(rng, records[pickled][1]))
    elif how == 6:
        records[a] = (rng.choice(("../../x", "/etc/x", records[a][0] + "x", "a" * 300)), records[a][1])
    with zipfile.ZipFile(out, "w", kind) as archive, _quiet():
        for name, record in records:
            archive.writestr(name, record)
    return out.getvalue()


def _quiet():
    import warnings

    catching = warnings.catch_warnings()
    warnings.simplefilter("ignore")
    return catching


def damaged(rng: random.Random, kind: str) -> tuple[str, bytes]:
    """A file, and how it was damaged."""
    how, data = rng.random(), intact(kind)
    if how < 0.05:
        return "intact", data
    if how < 0.3:
        return "flipped", spoil.spoil(rng, data, rng.choice((64, 2000)))
    if how < 0.35:
        end = data.rfind(b"PK\x01\x02") if rng.random() < 0.5 else data.rfind(b"PK\x05\x06")
        return "flipped", data[:end] + spoil.spoil(rng, data[end:], 40)
    if how < 0.55:
        return "surgery", surgery(rng, data)
    try:
        return "odd", saved(odd_contents(rng, kind), legacy=rng.random() < 0.1)
    except (RecursionError, RuntimeError):
        return "intact", data


def make_best(rng: random.Random) -> Case:
    how, data = damaged(rng, "best.pt")
    return {f"{how}_best.pt": data}


def make_last(rng: random.Random) -> Case:
    how, data = damaged(rng, "last.pt")
    return {f"{RUN}/last.pt": data, "how.txt": how.encode()}


def make_weights(rng: random.Random) -> Case:
    how, data = damaged(rng, rng.choice(("weights.pth", "weights.pth", "best.pt")))
    return {f"{how}_weights.pth": data}


def check_model(model: torch.nn.Module, how: str, expected: dict[str, torch.Tensor]) -> None:
    """Raises Failure for weights that are not finite, and for bits that changed unnoticed."""
    state = model.state_dict()
    if not all(value.isfinite().all() for value in state.values()):
        raise Failure("wrong", "weights that are not finite are loaded")
    if how in ("intact", "flipped") and not all(torch.equal(state[name], expected[name]) for name in state):
        raise Failure("wrong", "changed weights are loaded")


@torch.inference_mode()
def run_best(folder: Path) -> None:
    (path,) = folder.iterdir()
    loaded = load.load(path)
    how = path.name.partition("_")[0]
    check_model(loaded.model, how, contents()["model"])
    if how == "intact" and (loaded.classes, loaded.image_size, loaded.confidence) != (CLASSES, (64, 96), 0.4):
        raise Failure("wrong", f"{loaded[1:]}")
    if not 0 < loaded.confidence <= 1 or len(loaded.classes) != loaded.model.num_classes:
        raise Failure("wrong", f"confidence {loaded.confidence}, {len(loaded.classes)} classes")
    loaded.model(torch.zeros(1, 3, 64, 64))


def run_last(folder: Path) -> None:
    run, how = folder / RUN, (folder / "how.txt").read_text() if (folder / "how.txt").exists() else "odd"
    part = resume.find(str(run), str(folder / "runs"), "train", Ranks()).last["resume"]
    model = nets.build("tiny_n", len(CLASSES), part["model"])
    updater = new_updater(model)
    with file_checks.fitting("last.pt"):
        model.load_state_dict(part["model"])
        updater.load_state_dict(part["updater"])
    state, meter = State(**part["state"]), part["meter"]
    check_model(model, how, contents()["resume"]["model"])
    check_model(updater.ema.model, how, contents()["model"])
    if how == "intact" and (state.epoch, state.best, meter["batches"]) != (1, 0.25, 0):
        raise Failure("wrong", f"{state}, {meter}")


def run_weights(folder: Path) -> None:
    (path,) = folder.iterdir()
    model, pretraining = nets.build_pretrained("tiny_n", CLASSES, str(path), Ranks(), lambda text: None)
    if pretraining is None:
        raise Failure("wrong", "no weights were loaded")
    check_model(model, path.name.partition("_")[0], contents()["model"])


def make_paddle(rng: random.Random) -> Case:
    """A file of PaddlePaddle with changed, missing or moved bytes, mostly in the instructions at its start."""
    name = rng.choice(("tiny_protocol2", "tiny_protocol4", "tiny_nested"))
    data = (DATA / f"{name}.pdparams").read_bytes()
    return {"a.pdparams": spoil.spoil(rng, data, rng.choice((64, 300, len(data))))}


def run_paddle(folder: Path) -> None:
    contents = checkpoint.read(folder / "a.pdparams")
    if any(type(value) not in PADDLE_TYPES for _, value in file_checks.walk(contents)):
        raise Failure("wrong", f"{contents}"[:300])


ERRORS = (CheckpointError, ConfigError, nets.pretrained.PretrainedError, ValueError)
FUZZERS = (
    Fuzzer("best", make_best, run_best, ERRORS, fraction=0.4),
    Fuzzer("last", make_last, run_last, ERRORS, lambda text, case: "last.pt" in text or "train-2026" in text, 0.4),
    Fuzzer("weights", make_weights, run_weights, ERRORS, fraction=0.4),
    Fuzzer("paddle", make_paddle, run_paddle, ERRORS, fraction=0.4),
)
