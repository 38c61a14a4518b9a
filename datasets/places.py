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
        roots = [os.path.join(os.path.abspath(image_root), place) for place in inside] if image_root else []
        self._wanted = Counter(short for name in set(names) for short in _short_names(name))
        self._roots = [root for root in roots + inside + above if os.path.isdir(os.path.join(self.folder, root))]
        self._default = os.path.abspath(image_root) if image_root else ""

    def find(self, name: str) -> str:
        """Returns the path of an image relative to the folder of the annotation file.

        A name of another computer, or of a server, counts by its last part, where only one image has it."""
        name = name.replace("\\", "/")
        for root in self._roots:
            if os.path.exists(os.path.join(self.folder, root, name)):
                return os.path.join(root, name)
        for short in _short_names(name):
            found = self._by_base.get(short, ())
            if len(found) == 1 and self._wanted[short] == 1:
                return found[0]
        return os.path.join(self._default, name)

    @cached_property
    def _by_base(self) -> dict[str, list[str]]:
        """Paths of all images in the folders by their last part. The folder above the file is not searched as a whole."""
        index: dict[str, dict[str, str]] = {}
        for root in self._roots:
            if root != "../":
                for name in images_under(os.path.join(self.folder, root)):
                    path = os.path.join(root, name)
                    index.setdefault(os.path.basename(name), {})[os.path.realpath(os.path.join(self.folder, path))] = (
                        path
                    )
        return {base: list(paths.values()) for base, paths in index.items()}


def _short_names(name: str) -> dict[str, None]:
    """Returns the last part of a path or URL, as written and without what Label Studio puts before it."""
    name = name.replace("\\", "/")
    base = unquote(name.partition("?d=")[2] or name).rpartition("/")[2]
    return dict.fromkeys([base, _UPLOAD.sub("", base)])
