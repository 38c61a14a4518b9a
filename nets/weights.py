"""Weights files: reading them, and downloading the official ones with a check of their SHA-256."""

import hashlib
import http.client
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from tqdm import tqdm

from nets import pretrained
from nets.pretrained import COCO_CLASSES, OfficialFile, PretrainedError
from utils import checkpoint
from utils.file_checks import CheckpointError, class_names
from utils.files import atomic_write, cache_folder, make_cache_folder

OTHERS = {  # option that asks for official weights -> what else it may be
    "weights": "weights=FILE, weights=none or a mirror of the COCO weights, weights=https://HOST",
    "checkpoint": "checkpoint=FILE",
}


def fetch(
    model: str,
    official: OfficialFile | None,
    mirror: str | None = None,
    timeout: float = 10,
    verify: Callable[[Path], object] | None = None,
    option: str = "weights",
) -> Path:
    """Downloads the official COCO weights of `model` once, into the cache folder, and returns the file.

    The SHA-256 is checked at every use, so a file put into the folder by hand is checked too. If it is not known, `verify`
    checks the file at its first use, and its digest is pinned (see `pin`). `mirror` replaces the host of the
    address. Proxies are taken from the environment. `timeout`: seconds for the connection and for every read. `option`: the key
    of OTHERS that messages name. Raises PretrainedError.
    """
    if official is None:
        raise PretrainedError(f"there are no official weights for model={model}; give {OTHERS[option]}")
    address = f"{(mirror or official.host or pretrained.HOST).rstrip('/')}/{official.path}"
    suffix = checkpoint.PADDLE if official.path.endswith(checkpoint.PADDLE) else ".pth"
    path = cache_folder() / f"{model}{suffix}"
    hint = f"Download {address} by hand to {path}, or give {OTHERS[option]}"
    if not path.exists():
        try:
            make_cache_folder()
            _download(address, path, timeout, official.sha256)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PretrainedError(f"the weights of {model} could not be downloaded ({error}). {hint}") from error
    elif official.sha256 and _digest(path) != official.sha256:
        raise PretrainedError(f"{path} is not the official file: its SHA-256 differs. Delete it. {hint}")
    if not official.sha256:
        pin(path, verify, hint)
    return path


def pin(path: Path, verify: Callable[[Path], object] | None, hint: str) -> None:
    """Checks a file without a known SHA-256 at its first use, prints the SHA-256 and keeps it; later uses compare it.

    It is kept next to the file, as in NAME.pth.sha256. Raises PretrainedError if the file has changed since."""
    pinned, digest = path.with_name(f"{path.name}.sha256"), _digest(path)
    if pinned.exists():
        if pinned.read_text(encoding="utf-8", errors="replace").strip() != digest:
            fix = f"If you have replaced it on purpose, delete {pinned}; otherwise delete both. {hint}"
            raise PretrainedError(f"{path} has changed since its first use: its SHA-256 differs from {pinned}. {fix}")
        return
    if verify is not None:
        try:
            verify(path)
        except ValueError as error:
            raise PretrainedError(f"{path} is not the official file ({error}). Delete it. {hint}") from error
    print(f"{path}: SHA-256 {digest}, pinned in {pinned.name}: compare it with the SHA-256 of another source")
    with atomic_write(pinned) as file:
        file.write(f"{digest}\n".encode())


def _download(address: str, path: Path, timeout: float, sha256: str | None) -> None:
    """Downloads a file atomically and checks its length and its SHA-256 (None: unknown). Raises OSError."""
    opener = urllib.request.build_opener()  # unlike urlopen, it reads the proxies from the environment at every call
    with opener.open(address, timeout=timeout) as response, atomic_write(path) as file:
        size, received = int(response.headers.get("Content-Length") or 0), 0
        print(f"downloading {path.name} from {address}")
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name, leave=False, disable=None) as bar:
            while block := response.read(1 << 16):
                received += file.write(block)
                bar.update(len(block))
        file.flush()
        if size and received != size:
            raise OSError(f"the connection was cut after {received} of {size} bytes")
        if sha256 and _digest(file.name) != sha256:
            raise OSError("the downloaded file is not the official one: its SHA-256 differs")


def _digest(path: str | Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Weights(NamedTuple):
    """The contents of a weights file."""

    state: dict[str, Tensor]  # with our tensor names
    classes: tuple[str, ...] | None  # names of its classes; None: unknown
    official: bool  # weights of the authors with COCO's classes, not a checkpoint of this program
    model: str | None = None  # of a checkpoint of this program


def read(path: str | Path, rename: Callable[[str], str | None]) -> Weights:
    """Reads a weights file.

    Accepts our own checkpoints and the official layouts: `{"model": {...}}`, `{"state_dict": {...}}`, or a bare
    state dict, all of them also as a `.pdparams` file of PaddlePaddle. `rename`: official tensor name -> ours; our own names stay
    unchanged. If a file does not name its classes, 80 classes are COCO's. Raises PretrainedError for
    damaged files and for files without weights.
    """
    try:
        contents = checkpoint.read(path)
    except CheckpointError as error:
        raise PretrainedError(f"weights={path}: {error}") from error
    parts = contents if isinstance(contents, dict) else {}
    state = parts.get("model", parts.get("state_dict", parts))
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise PretrainedError(
            f'weights={path} holds no weights: expected {{"model": state dict}} or a state dict: use another'
        )
    state = {rename(str(name)): value for name, value in state.items() if isinstance(value, Tensor)}
    state.pop(None, None)  # tensors that our model does not have
    if names := parts.get("classes"):
        if must := class_names(names):
            raise PretrainedError(f"weights={path}: classes must be {must}: use another copy")
        config = parts.get("config")
        model = config.get("model") if isinstance(config, dict) else None
        return Weights(state, tuple(names), official=False, model=model)
    is_coco = class_rows(state) == len(COCO_CLASSES)
    return Weights(state, COCO_CLASSES if is_coco else None, official=is_coco)


def class_rows(state: Mapping[str, Tensor]) -> int:
    """Returns the number of classes that a state dict predicts; 0 if it has no class predictors."""
    bias = state.get("head.class_predictors.0.bias")
    return 0 if bias is None or bias.ndim != 1 else len(bias)
