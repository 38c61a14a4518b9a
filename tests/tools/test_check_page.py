"""The page of the data check in a real browser: no error, no request, the numbers of the report, names as plain text."""

import re
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from browser import Browser, words_of

from tools.check import check, main, text_of
from tools.check_page import html_page

HOSTILE = ["<script>throw 1</script>", "\"'&amp;<img src=x onerror=throw(1)>", "x" * 200, "猫"]
FILE = "<b>&\"' onload=alert(1) <img src=http://127.0.0.1:1/a.png>"


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, str]:
    """Images with hostile names and classes, copies, and each kind of problem."""
    random = np.random.default_rng(0)
    for i in range(6):
        image = cv2.resize(
            random.integers(0, 255, (20, 26, 3)).astype(np.uint8), (320, 240), interpolation=cv2.INTER_CUBIC
        )
        cv2.imencode(".png", image)[1].tofile(tmp_path / f"{i}.png")
        if i == 5:
            name = f"{FILE.replace('/', '∕')}.jpg"
            cv2.imencode(".jpg", image)[1].tofile(tmp_path / name)
    shutil.copy(tmp_path / "0.png", tmp_path / "same.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:500])
    (tmp_path / "classes.txt").write_text("\n".join([*HOSTILE, "Ace", "a ce"]), encoding="utf-8")
    lines = [
        "0.png 0,0,320,240,0 10,10,20,20,1 10,10,20,20,1",
        "1.png 10,10,50,50,2 0,100,300,104,3",
        "2.png -9,10,50,50,4 5,5,6,6,1,1",
        "same.png 9,9,30,30,1",
        "cut.png 9,9,30,30,1",
        "5.png",
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "val.txt").write_text(f"{name} 9,9,40,40,0\n3.png 1,1,9,9,1\n2.png 1,1,9,9,1\n", encoding="utf-8")
    return str(tmp_path / "train.txt"), str(tmp_path / "val.txt")


def numbers_of(report: dict[str, Any]) -> list[str]:
    """What the page must show of a report: number and words."""
    found = []
    for part in (report["train"], report["val"]):
        found += [
            f"{part['images']:,} images",
            f"{part['boxes']:,} boxes",
            f"{part['backgrounds']:,} images without boxes",
        ]
        found += [f"{len(part['unreadable']):,} images that cannot be read", f"{part['crowd']:,} crowd regions"]
        found += [part["advice"], f"median {part['median_side']:g} px", *part["notes"], *part["unreadable"]]
        found += [place for places in part["suspicious"].values() for place in places]
    for count, images, side in zip(part["classes"].values(), part["class_images"], part["class_sides"], strict=True):
        found.append(f"{count} {images} {side:g}" if count else f"{count} {images} –")
    return [" ".join(text.split()) for text in found + report["warnings"] + report["errors"]]


def test_the_page_shows_the_report_in_a_browser(
    data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = tmp_path / "检查.html"
    with pytest.raises(SystemExit, match="^1$"):
        main([data[0], f"val={data[1]}", f"page={page}"])
    report = check(*data)[0]
    assert capsys.readouterr().out.strip() == f"{text_of(report, str(page))}\n\npage: {page}".strip()
    with Browser(page, tmp_path) as browser:
        document = browser.run("document.documentElement.outerHTML")
        assert browser.problems == []
    words = words_of(document)
    for expected in numbers_of(report):
        assert expected in words, expected
    for text in (*HOSTILE, FILE.partition("/")[0]):
        assert text in words, text
    tags = set(re.findall(r"<([a-z0-9]+)", document))
    assert not tags & {"script", "img", "iframe", "link", "object", "b onload"}
    assert set(re.findall(r'(?:href|src)="([^#"]{0,16})', document)) == {"", "data:image/jpeg;"}  # "": #s0
    assert "url(" not in document and "@import" not in document  # nothing to fetch


def test_every_copy_and_problem_has_its_image(data: tuple[str, str]) -> None:
    report, parts = check(*data)
    page = html_page(report, parts)
    assert [[Path(path).name for path in group] for group in report["train"]["copies"]] == [["0.png", "same.png"]]
    (leak,) = report["leaks"]
    named = [{split: [Path(path).name for path in paths] for split, paths in group.items()} for group in leak["groups"]]
    assert [group["train"] for group in named] == [["2.png"], ["5.png"]]  # an equal image, and a copy as JPEG
    sections = dict(re.findall(r"<h2>(.*?)</h2>(.*?)</section>", page, re.S))
    assert sections["Copies"].count("<svg") == 2 + 2 + 2
    assert sections["Problems"].count("<svg") == 1 + 1 + 1 + 1  # covering, thin, twice, outside
    assert any("a ce" in warning for warning in report["warnings"]) and "a ce" in page
    assert len(page) < 2**20


def test_a_page_of_images_with_many_boxes_stays_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (500, 500, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "a.jpg"), noise)
    boxes = " ".join(f"{i % 400},{i // 400},{i % 400 + 9},{i // 400 + 9},{i % 3000}" for i in range(5000))
    (tmp_path / "a.txt").write_text(f"a.jpg {boxes}\n" * 20)
    page = html_page(*check(str(tmp_path / "a.txt")))
    assert len(page) < 4 * 2**20 and "2,800 more" in page and "4,500 boxes are not drawn" in page
