"""Finding image files by the names that annotations have for them."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from urllib.parse import unquote

from utils.images import images_under

_UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio writes it before the names of uploaded files


class ImageFinder:
    """Finds the images of an annotation file, for which it has the names `names`, in `image_root` or near the file.

    annotations/instances_train2017.json has its images next to it, in images/, ../train2017 or ../images/train2017.
    """

    def __init__(self, source: str, names: Iterable[str], image_root: str | None) -> None:
        self.folder = os.path.dirname(source)
        words = re.split(r"[_.\s-]+", os.path.splitext(os.path.basename(source))[0])
        words = dict.fromkeys(word for part in words for word in (part, part.rstrip("0123456789")) if word)
        inside = ["", "images", *words, *(f"images/{word}" for word in words)]
        above = [f"../{place}" for place in [*inside[2:], "images", ""]]
        groups = [inside + above]
        if image_root:
            groups.insert(0, [os.path.join(os.path.abspath(image_root), place) for place in inside])
        self._groups = [[root for root in group if os.path.isdir(self._join(root) or ".")] for group in groups]
        self._default = os.path.abspath(image_root) if image_root else ""
        self._names = set(names)

    def find(self, name: str) -> str:
        """Returns the path of an image relative to the folder of the annotation file.

        A name of another computer, or of a server, counts by its last part, where only one image has it."""
        name = name.replace("\\", "/")
        for group in self._groups:
            for root in group:
                if os.path.exists(self._join(root, name)):
                    return os.path.join(root, name)
        for images in self._by_base:
            for short in _short_names(name):
                if len(images.get(short, ())) == 1 and self._wanted[short] == 1:  # two images never become one
                    return next(iter(images[short].values()))
        return os.path.join(self._default, name)

    def _join(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    @cached_property
    def _wanted(self) -> Counter[str]:
        return Counter(short for name in self._names for short in _short_names(name))

    @cached_property
    def _by_base(self) -> list[dict[str, dict[str, str]]]:
        """{last part: {real path: path}} of all images, in `image_root` and near the file.

        The folder above the file is not searched as a whole: it may be the home of the user."""
        found = []
        for group in self._groups:
            index: dict[str, dict[str, str]] = {}
            for root in group:
                real = os.path.realpath(self._join(root))
                for name in images_under(real) if root != "../" else ():
                    index.setdefault(os.path.basename(name), {}).setdefault(f"{real}/{name}", os.path.join(root, name))
            found.append(index)
        return found


def _short_names(name: str) -> dict[str, None]:
    """Returns the last part of a path or URL, as written and without what Label Studio puts before it."""
    name = name.replace("\\", "/")
    base = unquote(name.partition("?d=")[2] or name).rpartition("/")[2]
    return dict.fromkeys([base, _UPLOAD.sub("", base)])
