"""report/html_report.py: the page shows the numbers of metrics.json, any names, and stays small; it works in a browser."""

import html
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from browser import Browser

import evaluate
from metrics.coco import COCO_METRICS, coco_metrics
from metrics.comparison import Analysis, analyze_errors
from report import html_report as evaluation_report

HOSTILE = ["<script>throw 1</script>", "</script><img src=x onerror=throw(1)>", "\"'&amp;", "x" * 200, "猫", "a\u2028b"]
FILE = "<b>&\"' onload=alert(1)"
MATCHED = ("precision", "recall", "f1")


def random_data(folder: Path, images: int = 14, classes=tuple(HOSTILE), seed: int = 0):
    """Images with random boxes and detections of them that are moved, of other classes, or missing -> data, detections."""
    rng, lines, found = np.random.default_rng(seed), [], []
    for number in range(1, images + 1):
        name = f"{FILE}{number}.jpg"
        image = cv2.resize(rng.integers(0, 255, (6, 8, 3)).astype(np.uint8), (320, 240))
        cv2.imencode(".jpg", image)[1].tofile(folder / name)
        boxes = np.concatenate([rng.integers(0, 130, (4, 2)), rng.integers(30, 100, (4, 2))], 1)
        labels = rng.integers(0, len(classes) - 1, 4)  # the last class has no box
        rows = zip((boxes + [0, 0, 0, 0]).tolist(), labels.tolist(), strict=True)
        lines.append(" ".join([name, *(f"{x},{y},{x + w},{y + h},{c}" for (x, y, w, h), c in rows)]))
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
            for _ in range(rng.integers(0, 3)):
                moved = (np.array(box) + rng.normal(0, 12, 4)).clip(5).tolist()
                label = label if rng.random() < 0.7 else int(rng.integers(len(classes)))
                entry = {"image_id": number, "category_id": label, "bbox": moved, "score": float(rng.random())}
                found.append(entry)
    (folder / "val.txt").write_text("\n".join(lines), encoding="utf-8")
    data, _ = evaluate.open_data(str(folder / "val.txt"), "val", tuple(classes), {})
    return data, found


def written(folder: Path, data, found) -> tuple[Path, dict, Analysis]:
    """Writes a report as evaluate.py does -> its path, the contents of metrics.json, the analysis."""
    limits = {"confidence": 0.001, "nms_iou": 0.65, "max_detections": 300}
    settings = {"checkpoint": f"runs/{HOSTILE[0]}/best.pt", "data": data.source, "image_size": (64, 96), **limits}
    metrics = coco_metrics(data.coco(), found) | {"evaluator": "a <b> 1.0", "settings": settings}
    analysis = analyze_errors(data.coco(), found, 0.3)
    evaluate.write_results(folder, data, found, metrics)
    evaluation_report.write(folder / "report.html", data, metrics, analysis)
    return folder / "report.html", json.loads((folder / "metrics.json").read_text(encoding="utf-8")), analysis


def contents_of(page: Path) -> dict:
    """What the script of the page reads."""
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"), re.S
    )
    return json.loads(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return written(folder, *random_data(folder))


def test_the_page_has_the_numbers_of_the_metrics_and_asks_no_network(made):
    page, metrics, _ = made
    text = page.read_text(encoding="utf-8")
    shown = dict(re.findall(r'data-metric="(\w+)"><dt>\w+</dt><dd>([^<]+)', text))
    assert shown == {name: f"{100 * metrics[name]:.2f}" if metrics[name] >= 0 else "-" for name in COCO_METRICS}
    rows = re.findall(r'<tr data-class="\d+">(.*?)(?=<tr|</tbody)', text, re.S)
    for row, (name, values) in zip(rows, metrics["per_class"].items(), strict=True):
        cells = dict(re.findall(r'data-column="(\w+)">([^<]+)', row))
        assert name.replace("\u2028", "\ufffd") in html.unescape(row) and int(cells["boxes"]) == values["boxes"]
        for column in ("AP", "AP50"):
            assert cells[column] == (f"{100 * values[column]:.2f}" if values["boxes"] else "-"), (name, column)
        for column in MATCHED:
            assert cells[column] == (f"{values[column]:.4f}" if values["boxes"] else "-"), (name, column)
        assert cells["threshold"] == (f"{values['threshold']:.4f}" if values["f1"] > 0 else "-")
    outside = text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert (
        "//" not in re.sub(r'"data:image[^"]*|[+/\w]{60,}', "", outside).partition("<script>")[0]
        and "@import" not in text
        and "url(" not in text
    )
    assert "default-src 'none'" in text and text.count("<script") == 2 and "<img" not in text


def test_the_slider_has_precision_and_recall_of_every_threshold(made):
    page, metrics, analysis = made
    counts = contents_of(page)["counts"]
    for one, curve, row in zip(counts, analysis.curves.values(), metrics["per_class"].values(), strict=True):
        for percent in (0, 1, 30, 57, 100):
            above = curve.scores >= percent / 100
            found = int(curve.found[above][-1]) if above.any() else 0
            assert one["found"][percent] == found
            correct = round(float(curve.precision[above][-1]) * found) if found else 0
            assert one["correct"][percent] == correct
        if row["f1"] > 0:  # the last numbers: its own threshold
            assert one["correct"][101] / one["found"][101] == row["precision"]
            assert one["correct"][101] / one["boxes"] == row["recall"]


def test_the_page_in_a_browser(made, tmp_path):
    """Clicks, slides and types as a user does; compares what is shown with metrics.json and with the confusion matrix."""
    page, metrics, analysis = made
    counts = contents_of(page)["counts"]
    with Browser(page, tmp_path) as browser:
        check_thresholds(browser, metrics, counts)
        check_cells(browser, analysis)
        check_mistakes(browser)
        check_menu(browser, analysis)
        check_keyboard(browser)
        for dark, width in ((True, 1280), (False, 375)):
            browser.dark(dark)
            browser.resize(width, 800)
            assert browser.run("document.documentElement.scrollWidth") <= width
        background = "getComputedStyle(document.body).backgroundColor"
        light = browser.run(background)
        browser.dark()
        assert browser.run(background) != light
        assert "<script>throw 1</script>" in " ".join(browser.texts("#classes th"))
        assert browser.run("document.querySelectorAll('img, iframe, b[onload], script').length") == 2  # its own scripts
        assert browser.problems == []


def column(browser, name):
    return browser.texts(f'#classes td[data-column="{name}"]')


def check_thresholds(browser, metrics, counts):
    """At first each class has its own threshold; then the slider has one for all."""
    for name in MATCHED:
        rows = metrics["per_class"].values()
        assert column(browser, name) == [f"{row[name]:.4f}" if row["boxes"] else "-" for row in rows]
    browser.click("#slider")
    percent = int(browser.run("document.getElementById('slider').value"))
    browser.press("ArrowRight", 3)
    percent += 3
    assert browser.texts("#chosen") == [f"{percent / 100:.2f}"]
    correct, found = (sum(one[key][percent] for one in counts) for key in ("correct", "found"))
    assert browser.texts("#all-correct, #all-false") == [str(correct), str(found - correct)]
    assert browser.texts("#all-precision") == [f"{correct / found:.4f}"]
    assert column(browser, "false") == [str(one["found"][percent] - one["correct"][percent]) for one in counts]
    assert column(browser, "missed") == [str(one["boxes"] - one["correct"][percent]) for one in counts]
    browser.click("#own")
    assert browser.texts("#chosen") == ["per class"]
    browser.click('[data-sort="2"]')
    first = [cell[:6] for cell in column(browser, "AP")]
    assert first[:-1] == sorted(first[:-1], reverse=True) and first[-1] == "-"
    browser.click("#classes .pick")
    assert browser.run("document.querySelectorAll('.curve.picked').length") == 1


def check_cells(browser, analysis):
    """The matrix has its counts; a cell opens its images, an image opens large."""
    shown = browser.run(
        "[...document.querySelectorAll('#matrix button')].map(b => [b.dataset.cell, Number(b.textContent)])"
    )
    matrix = analysis.matrix
    assert dict(shown) == {f"{r},{c}": int(matrix[r, c]) for r, c in np.argwhere(matrix).tolist()}
    background = len(matrix) - 1
    cell, count = next(one for one in shown if one[0].endswith(f",{background}") and one[1] > 1)
    browser.click(f'#matrix [data-cell="{cell}"]')
    assert browser.texts("#behind h3")[0].endswith(f"no detection: {count}")
    assert browser.run("document.querySelectorAll('#behind figure').length") == min(count, 12)
    assert browser.run("document.querySelectorAll('#behind figure svg image').length") == 2 * min(count, 12)
    assert browser.run("document.querySelectorAll('#behind figure .mark.missed').length") == min(count, 12)
    browser.click("#behind .pair")
    assert browser.run("document.getElementById('viewer').open")
    browser.press("ArrowRight")
    assert browser.texts("#large .file")[0].startswith(f"2 of {min(count, 12)}: {FILE}")
    browser.press("Escape")
    assert not browser.run("document.getElementById('viewer').open")


def check_mistakes(browser):
    for kind in ("background", "wrong class", "loose", "double", "missed"):
        browser.click(f'.kinds [value="{kind}"]')
        (count,) = browser.texts(f'.kinds [value="{kind}"] ~ span b')
        figures = browser.run("document.querySelectorAll('#mistakes figure').length")
        assert (figures > 0) == (int(count) > 0) and figures <= min(int(count), 12)
    assert browser.run("!document.querySelector('#mistakes .mark.false')")


def check_menu(browser, analysis):
    """The menu stays above the row of the background, which has its own background; two sections name their threshold."""
    browser.run("document.querySelector('#matrix tbody tr:last-child th').scrollIntoView({block: 'start'})")
    row = "document.querySelector('#matrix tbody tr:last-child th').getBoundingClientRect()"
    nav = "document.querySelector('nav').getBoundingClientRect()"
    assert browser.run(f"{row}.top < {nav}.bottom && {row}.bottom > {nav}.top")
    assert browser.run(f"document.elementFromPoint({row}.left + 5, {nav}.bottom - 5).closest('nav') !== null")
    at = [title for title in browser.texts("h2") if f"at {analysis.confidence:.2f}" in title]
    assert [title.split()[0] for title in at] == ["Confusion", "Mistakes"]


def check_keyboard(browser):
    """Tab reaches every control; arrows move in the matrix, Enter opens a cell."""
    active = "(e => e.id || e.name || (e.dataset.cell && e.closest('#matrix') ? 'matrix' : e.className))(document.activeElement)"
    browser.run("document.activeElement.blur(), scrollTo(0, 0)")
    reached = []
    for _ in range(90):
        browser.press("Tab")
        reached.append(browser.run(active))
    assert {"slider", "own", "jump", "pick", "matrix", "kind", "pair"} <= set(reached)
    assert reached.count("matrix") == 1
    browser.run("document.querySelector('#matrix button[tabindex=\"0\"]').focus()")
    first = browser.run("document.activeElement.dataset.cell")
    browser.press("ArrowRight")
    second = browser.run("document.activeElement.dataset.cell")
    assert second.partition(",")[0] == first.partition(",")[0] and second != first
    browser.press("Enter")
    assert browser.run("document.activeElement.id") == "behind"
    assert browser.run("document.querySelector('#matrix [aria-current]').dataset.cell") == second


def test_large_and_damaged_images_and_many_classes_leave_the_page_small(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_report, "LIMIT", 300_000)
    names = [f"class {number}" for number in range(500)]
    data, found = random_data(tmp_path, 8, names)
    noise = np.random.default_rng(0).integers(0, 255, (1500, 2000, 3)).astype(np.uint8)
    (tmp_path / f"{FILE}1.jpg").write_bytes(cv2.imencode(".jpg", noise)[1].tobytes())
    (tmp_path / f"{FILE}2.jpg").unlink()
    page, metrics, analysis = written(tmp_path, data, found)
    contents, text = contents_of(page), page.read_text(encoding="utf-8")
    assert sum(len(image["uri"]) for image in contents["images"]) < 400_000
    (gone,) = (image for image in contents["images"] if image["name"] == f"{FILE}2.jpg")
    assert gone["problem"] and gone["uri"] == ""
    assert len(contents["counts"]) == evaluation_report.MAX_ROWS + 1 and "200 more" in text
    assert sum(one["boxes"] for one in contents["counts"]) == sum(row["boxes"] for row in metrics["per_class"].values())
    assert text.count('<tr><th scope="row"') <= evaluation_report.MAX_MATRIX + 1
    assert page.stat().st_size < 3_000_000


def test_nothing_to_find_and_nothing_found_are_shown(tmp_path):
    data, found = random_data(tmp_path, 3, ["a", "b"])
    page, metrics, _ = written(tmp_path, data, [])
    assert metrics["AP"] == 0 and contents_of(page)["kinds"]["missed"]["count"] == 12
    page, metrics, _ = written(tmp_path, data.keep_boxes(np.zeros(12, bool)), found)
    assert metrics["AP"] == -1 and sum(one["boxes"] for one in contents_of(page)["counts"]) == 0
