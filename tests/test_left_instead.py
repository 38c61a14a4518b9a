"""What a clone or a download leaves in the place of a file is named, with its fix, wherever files are read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from files import names_in, paint, text, voc, write_noise
from PIL import Image
from refused import refused

from datasets.formats.read import read
from deploy.inputs import files_of
from utils import checkpoint
from utils.images import ImageError, read_image

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = "\n<!DOCTYPE html><html><body>Sign in</body></html>"


def voc_set(folder: Path, content: str) -> None:
    paint(folder / "a.png")
    paint(folder / "b.png")
    text(folder / "a.xml", voc("cat"))
    text(folder / "b.xml", content)


def yolo_set(folder: Path, content: str) -> None:
    paint(folder / "images/a.png")
    text(folder / "labels/a.txt", content)
    text(folder / "classes.txt", "cat")


def coco_set(folder: Path, content: str) -> None:
    paint(folder / "a.png")
    text(folder / "a.json", content)


@pytest.mark.parametrize("content", (POINTER, PAGE), ids=("pointer", "page"))
@pytest.mark.parametrize("write", (voc_set, yolo_set, coco_set))
def test_a_label_file_that_is_a_pointer_or_a_page_names_the_fix(tmp_path: Path, write: Callable, content: str) -> None:
    write(tmp_path, content)
    (name,) = (
        name for name in names_in(tmp_path) if not name.endswith(".png") and name not in ("a.xml", "classes.txt")
    )
    with refused(ValueError, name, "git lfs pull" if content is POINTER else "fetch it again"):
        read(tmp_path, "train")


@pytest.mark.parametrize("content", (POINTER, PAGE), ids=("pointer", "page"))
@pytest.mark.parametrize(
    ("load", "suffix"), ((read_image, ".jpg"), (checkpoint.load, ".pt"), (checkpoint.read, ".pth"))
)
def test_an_image_or_weights_that_are_a_pointer_or_a_page_name_the_fix(
    tmp_path: Path, load: Callable, suffix: str, content: str
) -> None:
    path = text(tmp_path / f"a{suffix}", content)
    with refused(ValueError, path, "git lfs pull" if content is POINTER else "fetch it again"):
        load(str(path))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of Linux and macOS")
def test_weights_without_permission_are_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text(tmp_path / "a.pt", "weights")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)  # the administrator may read all files
    with refused(ValueError, path, "permissions") as caught:
        checkpoint.read(path)
    assert "damaged" not in str(caught.value)


def test_a_link_to_nothing_in_a_folder_is_no_image_that_is_left_out_in_silence(tmp_path: Path) -> None:
    write_noise(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("gone.png")
    (tmp_path / "c.png").symlink_to("c.png")
    images = files_of(str(tmp_path)).images
    assert [Path(image).name for image in images] == ["a.png", "b.png", "c.png"]
    for image in images[1:]:
        with refused(ImageError, image, "correct"):
            read_image(image)


def test_images_that_cannot_be_decoded_print_nothing(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """OpenCV would print a page; the error says it in a line."""
    Image.fromarray(np.zeros((9, 9), np.float32)).save(tmp_path / "a.tif")
    with refused(ImageError, tmp_path / "a.tif", "save it again"):
        read_image(str(tmp_path / "a.tif"))
    assert capfd.readouterr() == ("", "")
