"""Download of official weights, once, with checks of their digests."""

import hashlib
import http.client
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from nets import pretrained
from nets.pretrained import OfficialFile, PretrainedError
from utils.checkpoint import atomic_write
from utils.config import cache_folder, make_cache_folder


def fetch(
    model: str,
    official: OfficialFile | None,
    mirror: str | None = None,
    timeout: float = 10,
    verify: Callable[[Path], object] | None = None,
) -> Path:
    """Downloads the official COCO weights of `model` once, into the cache folder, and returns the file.

    The SHA-256 is checked at every use, so a file put into the folder by hand is checked too. If it is not known, `verify`
    checks the file at its first use, and its digest is pinned (see `pin`). `mirror` replaces "https://github.com" in the address. Proxies are taken from the environment. `timeout`: seconds for the connection and for
    every read. Raises PretrainedError.
    """
    if official is None:
        raise PretrainedError(f"there are no official weights for model={model}; give weights=FILE or weights=none")
    address = f"{(mirror or pretrained.HOST).rstrip('/')}/{official.path}"
    path = cache_folder() / f"{model}.pth"
    hint = f"Download {address} by hand to {path}, or give weights=FILE, weights=none or a mirror, weights=https://HOST"
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
    """Checks a file of unknown digest at its first use, prints its digest and keeps it; later uses compare it.

    The digest lies next to the file, in NAME.sha256. Raises PretrainedError if the file has changed since."""
    pinned, digest = path.with_suffix(".pth.sha256"), _digest(path)
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
    print(f"{path}: SHA-256 {digest}, pinned in {pinned.name}: compare it with that of another source")
    with atomic_write(pinned) as file:
        file.write(f"{digest}\n".encode())


def _download(address: str, path: Path, timeout: float, sha256: str | None) -> None:
    """Downloads a file atomically and checks its length and its SHA-256 (None: unknown). Raises OSError."""
    opener = urllib.request.build_opener()  # unlike urlopen, it reads the proxies from the environment at every call
    with opener.open(address, timeout=timeout) as response, atomic_write(path) as file:
        size, received = int(response.headers.get("Content-Length") or 0), 0
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name) as bar:
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
