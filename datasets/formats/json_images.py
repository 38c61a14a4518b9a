"""The names of the images in JSON and JSON Lines of any format, found without parsing the file."""

import json
import re

from datasets.errors import open_file
from datasets.formats.image_paths import short_names
from utils.images import IMAGE_SUFFIXES

# The first one whose values are images counts.
KEYS = ("file_name", "filename", "imagefilename", "source-ref", "path", "image", "img", "name", "coco_url")


def names(path: str) -> set[str]:
    """Returns the values of the first key in a file whose values are names of images."""
    with open_file(path) as file:
        contents = file.read()
    for key in KEYS:
        found = set()
        for value in set(re.findall(rb'"%s"\s*:\s*("(?:[^"\\]|\\.)*")' % key.encode(), contents)):
            try:
                name = json.loads(value)
            except ValueError:
                continue
            if any(short.lower().endswith(IMAGE_SUFFIXES) for short in short_names(name)):
                found.add(name)
        if found:
            return found
    return set()
