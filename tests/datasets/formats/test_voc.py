"""VOC folders: which image belongs to an XML file, and what is reported about the others."""

from pathlib import Path

import pytest
from files import boxes, paint, text
from refused import mentions, refused

from datasets.errors import DataError
from datasets.formats.read import read
from datasets.store import Annotations


def xml(path: Path, image: str, x2: int = 9) -> Path:
    """An XML file with one box, from 1, 2 to x2, 8, of `image`."""
    box = f"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>{x2}</xmax><ymax>8</ymax></bndbox>"
    node = f"<filename>{image}</filename><object><name>cat</name>{box}</object>"
    return text(path, f"<annotation>{node}</annotation>")


def x2_of(found: Annotations, top: Path) -> dict[str, list[float]]:
    """{image: right sides of its boxes}."""
    return {Path(path).relative_to(top).as_posix(): [box[2] for box in corners] for path, corners, *_ in boxes(found)}


def test_images_of_one_name_are_paired_by_the_folders_of_their_names(tmp_path: Path) -> None:
    for folder, x2 in (("a", 3), ("b", 5)):
        xml(tmp_path / "xml" / folder / "0.xml", "0.png", x2), paint(tmp_path / "img" / folder / "0.png")
    assert x2_of(read(str(tmp_path), "train"), tmp_path) == {"img/a/0.png": [3], "img/b/0.png": [5]}


def test_images_that_fit_an_xml_file_equally_well_are_an_error(tmp_path: Path) -> None:
    """The box of b went to the image of a."""
    for folder, x2 in (("a", 3), ("b", 5)):
        xml(tmp_path / f"xml_{folder}" / "0.xml", "0.png", x2), paint(tmp_path / f"img_{folder}" / "0.png")
    with refused(DataError, "xml_b/0.xml", "img_a/0.png", "img_b/0.png"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize("place", ["", "JPEGImages"])
def test_the_xml_file_names_the_suffix_of_its_image(tmp_path: Path, place: str) -> None:
    """One of 0.png and 0.jpg was lost without a word."""
    images = [paint(tmp_path / place / name) for name in ("0.jpg", "0.png")]
    for name, other in ("0.jpg", "0.png"), ("0.png", "0.jpg"):
        xml(tmp_path / place / "0.xml", name)
        found = read(str(tmp_path), "train")
        assert [Path(found.path(i)).name for i in range(len(found))] == [name]
        assert any(mentions(note, other) for note in found.notes)
    xml(tmp_path / place / "0.xml", "0.bmp")
    with refused(DataError, "0.xml", *images, "suffix"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize("flags", ["1 -1 0", " 1  -1  0", "-0 1 1"])
def test_flags_of_lists_do_not_make_their_images_left_out(tmp_path: Path, flags: str) -> None:
    lines = []
    for name, flag in zip("012", flags.split(), strict=True):
        xml(tmp_path / "Annotations" / f"{name}.xml", f"{name}.jpg"), paint(tmp_path / "JPEGImages" / f"{name}.jpg")
        lines.append(f"{name}  {flag}\n")
    text(tmp_path / "ImageSets" / "Main" / "train.txt", "".join(lines))
    found = read(str(tmp_path), "train")
    assert len(found) == 3 and not found.notes


def test_cvat_next_to_voc_is_an_error_that_names_both(tmp_path: Path) -> None:
    xml(tmp_path / "voc" / "b.xml", "b.jpg"), paint(tmp_path / "voc" / "b.jpg")
    cvat = '<annotations><image id="0" name="a.jpg" width="40" height="20"/></annotations>'
    path = text(tmp_path / "all.xml", cvat)
    assert any(mentions(note, "voc/b.xml") for note in read(str(tmp_path), "train").notes)
    xml(tmp_path / "voc" / "c.xml", "c.jpg"), paint(tmp_path / "voc" / "c.jpg")
    with refused(DataError, path.name, "CVAT", "VOC", "voc/b.xml"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("tag", "word", "crowd"), [("difficult", "True", 1), ("Difficult", "1", 1), ("difficult", "Unspecified", 0)]
)
def test_difficult_is_read_in_the_words_of_several_tools(tmp_path: Path, tag: str, word: str, crowd: int) -> None:
    path = xml(tmp_path / "0.xml", paint(tmp_path / "0.png").name)
    path.write_text(path.read_text().replace("<object>", f"<object><{tag}>{word}</{tag}>"))
    assert read(str(tmp_path), "train").crowd.tolist() == [crowd]
    path.write_text(path.read_text().replace(word, "many"))
    with refused(DataError, "0.xml", "many"):
        read(str(tmp_path), "train")


def test_boxes_that_are_not_those_of_voc_are_no_background(tmp_path: Path) -> None:
    for name in "01":
        xml(tmp_path / f"{name}.xml", paint(tmp_path / f"{name}.png").name)
    path = tmp_path / "1.xml"
    path.write_text(path.read_text().replace("object>", "item>").replace("bndbox>", "bbox>"))
    with refused(DataError, "1.xml", "item"):
        read(str(tmp_path), "train")
