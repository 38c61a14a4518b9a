"""Official weights: where they are, how to know that they are the right ones, and how they come into our models."""

import hashlib
import http.client
import os
import pickle
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from nets import names

HOST = "https://github.com"
YOLOX_RELEASE = "Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
YOLOV9_RELEASE = "MultimediaTechLab/YOLO/releases/download/v1.0-alpha"
DIGESTS = {  # SHA-256 of the files of the first; those of the second are not known here and not checked
    "yolox_nano": "cd28f55fbbc1829f99d9ac9b38a16d259a22889739c8728ea877610201feff7b",
    "yolox_tiny": "9de513de589ac98bb92d3bca53b5af7b9acfa9b0bacb831f7999d0f7afaee8f0",
    "yolox_s": "f55ded7181e1b0c13285c56e7790b8f0e8f8db590fe4edb37f0b7f345c913a30",
    "yolox_m": "60076992b32da82951c90cfa7bd6ab70eba9eda243e08b940a396f60ac2d19b6",
    "yolox_l": "1e6b7fa6240375370b2a8a8eab9066b3cdd43fd1d0bfa8d2027fd3a51def2917",
    "yolox_x": "5652330b6ae860043f091b8f550a60c10e1129f416edfdb65c259be6caf355cf",
}
ADDRESSES = {name: f"{YOLOX_RELEASE}/{name}.pth" for name in DIGESTS}
ADDRESSES |= {f"yolov9_{size}": f"{YOLOV9_RELEASE}/v9-{size}.pt" for size in "tsmc"}

COCO_CLASSES = tuple(
    """person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop
    sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack,
    umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
    skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple,
    sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining
    table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink,
    refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush""".replace("\n   ", "").split(", ")
)
UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # the 91 ids of COCO's paper have gaps
COCO_CATEGORY_IDS = tuple(i for i in range(1, 91) if i not in UNUSED_IDS)

LEAST_SPREAD = 8.0  # between the pixels of 0-255 (a spread of about 60) and those of the legacy preprocessing (about 1)


class PretrainedError(RuntimeError):
    """Weights that cannot be had or used; the message names the file or address and the cure."""


def fetch(model: str, mirror: str | None = None, timeout: float = 10) -> Path:
    """The official COCO weights of `model` as a file, downloaded once into $THAW_CACHE (else ~/.cache/thaw).

    Where its SHA-256 is known, the file is checked against it at every use, also when it was put there by hand. Proxies
    are taken from the environment; `mirror` replaces "https://github.com" in the address; `timeout` in seconds holds for
    the connection and for every read. Raises PretrainedError with the cure.
    """
    if model not in ADDRESSES:
        raise PretrainedError(f"there are no official weights for model={model}; give weights=FILE or weights=none")
    address = f"{(mirror or HOST).rstrip('/')}/{ADDRESSES[model]}"
    path = Path(os.environ.get("THAW_CACHE") or Path.home() / ".cache" / "thaw") / f"{model}.pth"
    by_hand = f"Fetch {address} by hand and put it to {path}, or give weights=FILE, weights=none or a mirror, weights=https://HOST"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(address, path, timeout, DIGESTS.get(model))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PretrainedError(f"the weights of {model} could not be fetched ({error}). {by_hand}") from error
    elif model in DIGESTS and _digest(path) != DIGESTS[model]:
        raise PretrainedError(f"{path} is not the official file: its SHA-256 differs. Delete it. {by_hand}")
    return path


def _download(address: str, path: Path, timeout: float, digest: str | None) -> None:
    """Downloads to a temporary file beside `path`, which gets its name when length and SHA-256 (None: unknown) are right."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    opener = urllib.request.build_opener()  # takes the proxies from the environment as it is now
    try:
        with opener.open(address, timeout=timeout) as answer, open(temporary, "wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name) as bar:
                while block := answer.read(1 << 16):
                    bar.update(file.write(block))
        if size and temporary.stat().st_size != size:
            raise OSError(f"the connection was cut after {temporary.stat().st_size} of {size} bytes")
        if digest and _digest(temporary) != digest:
            raise OSError("what came is not the official file: its SHA-256 differs")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _digest(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: str | Path, model: str) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """A weights file -> tensors under the names of our `model`, and the classes that its rows stand for.

    Takes a checkpoint of ours, the official layouts (`{"model": {...}}`, `{"state_dict": {...}}` of a training, a bare
    state dict), with official names or ours; where the file does not name its classes, 80 rows are COCO's and others
    unknown (None). Raises PretrainedError for other files, and for weights that want the preprocessing of YOLOX release 0.1.0.
    """
    ours = {"yolox": names.of_yolox, "yolov9": names.of_yolov9}.get(model.partition("_")[0])
    if ours is None:
        raise PretrainedError(f"weights={path}: names of official weights are not known for model={model}")
    contents = _load(path)
    parts = contents if isinstance(contents, dict) else {}
    state = parts.get("model", parts.get("state_dict", parts))
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise PretrainedError(f'weights={path} holds no weights: expected {{"model": state dict}} or a state dict')
    state = {ours(str(name)): value for name, value in state.items() if isinstance(value, Tensor)}
    state.pop(None, None)  # what our model does without
    if parts.get("classes"):
        return state, tuple(parts["classes"])
    spread = input_spread(state)
    if spread is not None and spread < LEAST_SPREAD:
        raise PretrainedError(
            f"weights={path} were trained on pixels with a spread of {spread:.1f}, not on 0-255: they want the legacy "
            f"preprocessing of YOLOX release 0.1.0 and find nothing here. Use those of release 0.1.1rc0 (weights=coco)"
        )
    rows = state.get("head.class_predictors.0.bias", ())
    return state, COCO_CLASSES if len(rows) == len(COCO_CLASSES) else None


def _load(path: str | Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise PretrainedError(f"weights={path}: there is no such file") from None
    except pickle.UnpicklingError as error:
        raise PretrainedError(
            f"weights={path} is no PyTorch file, or holds Python objects, which could run code when loaded. Where you "
            f'trust it, keep its tensors only: torch.save({{"model": torch.load(F, weights_only=False)["model"]}}, F); '
            f'of a training of YOLOv9 ["state_dict"]'
        ) from error
    except Exception as error:  # bytes that are no weights can raise anything
        why = str(error).partition("\n")[0]
        raise PretrainedError(f"weights={path} is damaged or no PyTorch file ({why})") from error


def input_spread(state: Mapping[str, Tensor]) -> float | None:
    """The standard deviation of the pixels that a YOLOX stem was trained on, from its weights and batch norm alone.

    In natural pictures the correlation of two pixels falls as exp(-distance / 20) and that of two colours is about .9.
    With that covariance S of the stem's inputs for a spread of 1, filter w has the variance w'Sw before its batch norm,
    whose running variance is that for the true spread. None: no stem of YOLOX, or one whose batch norm never ran.
    """
    weight, variance = state.get("backbone.stem.conv.weight"), state.get("backbone.stem.bn.running_var")
    if weight is None or variance is None or weight.shape[1:] != (12, 3, 3) or bool((variance == 1).all()):
        return None
    phase, colour, row, column = torch.meshgrid(*(torch.arange(n) for n in (4, 3, 3, 3)), indexing="ij")
    y, x = 2 * row + phase % 2, 2 * column + phase // 2  # channels are 4 phases of 3 colours, see Backbone.forward
    places = torch.stack([y, x], -1).reshape(-1, 2).double()
    same = colour.reshape(-1, 1) == colour.reshape(1, -1)
    covariance = torch.exp(-torch.cdist(places, places) / 20) * torch.where(same, 1.0, 0.9)
    filters = weight.double().flatten(1)
    expected = ((filters @ covariance) * filters).sum(1)
    return float((variance.double() / expected.clamp(min=1e-30)).median().sqrt())


def shared_classes(from_names: Sequence[str], to_names: Sequence[str]) -> dict[int, int]:
    """Index in `to_names` -> index in `from_names`, for names that both have; case, - and _ do not matter."""

    def key(name: str) -> str:
        return name.casefold().replace("_", " ").replace("-", " ").strip()

    known = {key(name): i for i, name in reversed(list(enumerate(from_names)))}
    return {i: known[key(name)] for i, name in enumerate(to_names) if key(name) in known}


def adapt_classes(
    state: Mapping[str, Tensor], from_names: Sequence[str] | None, to_names: Sequence[str], model: nn.Module
) -> dict[str, Any]:
    """`state` with the rows of its class predictors put where `model`, which finds `to_names`, has the same classes.

    Classes that only `to_names` has keep the fresh rows of `model`. Without `from_names` the rows stay as they are:
    they fit only a model with as many classes.
    """
    if from_names is None:
        return dict(state)
    pairs = shared_classes(from_names, to_names)
    adapted, own = dict(state), model.state_dict()
    for name, rows in state.items():
        if ".class_predictors." in name and name in own and rows.shape[1:] == own[name].shape[1:]:
            adapted[name] = own[name].detach().cpu().clone()
            for to, source in pairs.items():
                adapted[name][to] = rows[source]
    return adapted
