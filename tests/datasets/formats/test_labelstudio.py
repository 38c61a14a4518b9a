"""Label Studio: JSON and JSON-MIN."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.read import read

SIZE = {"original_width": 40, "original_height": 20}
RECTANGLE = {"x": 10.0, "y": 20.0, "width": 25, "height": 30, "rotation": 0}  # 4, 4, 14, 10 in pixels


def result(label: str | None = "cat", kind: str = "rectanglelabels", id_: str = "a", **changes: Any) -> dict:
    value = RECTANGLE | changes | ({kind: [label]} if label else {})
    return {
        "id": id_,
        "type": kind,
        "from_name": "label",
        "to_name": "image",
        "image_rotation": 0,
        "value": value,
    } | SIZE


def task(image: str, *results: Any, **changes: Any) -> dict:
    work = {"id": 1, "was_cancelled": False, "completed_by": 3, "result": list(results)}
    return {"id": 7, "data": {"text": "any", "image": image}, "annotations": [work], "predictions": []} | changes


def test_tasks_become_images_with_boxes(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "3f2a9c1d-a.png"), paint(tmp_path / "b.png")
    shapes = [
        result(),
        result("dog", "polygonlabels", points=[[0, 0], [50, 10], [25, 100]]),
        result("dog", "ellipselabels", x=50, y=50, radiusX=10, radiusY=10),
        result("tip", "keypointlabels", "k", height=None),
        {"type": "choices", "value": {"choices": ["good"]}},
    ]
    path = text(tmp_path / "x.json", [task("/data/upload/1/3f2a9c1d-a.png", *shapes), task("b.png")])
    found = read(str(path), "train")
    assert boxes(found) == [
        (
            str(tmp_path / "images" / "3f2a9c1d-a.png"),
            [[4, 4, 14, 10], [0, 0, 20, 20], [16, 8, 24, 12]],
            ["cat", "dog", "dog"],
            [False] * 3,
        ),
        (str(tmp_path / "b.png"), [], [], []),
    ]
    assert found.sizes.tolist() == [[20, 40], [0, 0]] and found.where(0) == f"{path}: task 7"
    assert "objects without a box, left out: 2" in found.notes[0] and "task 7, result 5" in found.notes[0]


def test_a_rotated_rectangle_becomes_its_bounding_box(tmp_path: Path) -> None:
    path = text(tmp_path / "x.json", [task("a.png", result(rotation=90), result(rotation=45))])
    first, second = read(str(path), "train").boxes
    assert np.allclose(first, [4 - 6, 4, 4, 4 + 10])  # around its upper left corner, clockwise
    side = 0.5**0.5
    assert np.allclose(second, [4 - 6 * side, 4, 4 + 10 * side, 4 + 16 * side])


def test_the_label_may_be_an_entry_of_its_own(tmp_path: Path) -> None:
    entries = [result(None, "rectangle", "r1"), result("cat", "labels", "r1")]
    found = read(str(text(tmp_path / "x.json", [task("a.png", *entries)])), "train")
    assert found.boxes.tolist() == [[4, 4, 14, 10]] and found.classes == ("cat",)


def test_answers_about_an_object_and_missing_sizes_are_understood(tmp_path: Path) -> None:
    """Programs that write tasks leave out the sizes of the images; they are read from the images."""
    paint(tmp_path / "a.png")
    bare = {key: value for key, value in result().items() if not key.startswith("original")}
    answer = {"id": "a", "type": "choices", "value": RECTANGLE | {"choices": ["clear"]}}
    relation = {"type": "relation", "from_id": "a", "to_id": "b"}
    found = read(str(text(tmp_path / "x.json", [task("a.png", bare, answer, relation)])), "train")
    assert found.boxes.tolist() == [[4, 4, 14, 10]] and found.sizes.tolist() == [[20, 40]]
    assert "result 3: '' (relation)" in found.notes[0]


def test_unlabeled_tasks_are_an_error(tmp_path: Path) -> None:
    rows = [{"data": {"image": "a.png"}, "predictions": [{"result": [result()]}]}] * 2
    with refused(DataError, "x.json", "2 tasks"):
        read(str(text(tmp_path / "x.json", rows)), "train")


def test_tasks_that_cannot_be_read_are_not_called_unlabeled(tmp_path: Path) -> None:
    rows = [{"data": {"image": "a.png"}, "annotations": [{"result": [result()], "was_cancelled": "perhaps"}]}]
    with refused(DataError, "x.json: task 1: annotations[0].was_cancelled", '"perhaps"'):
        read(str(text(tmp_path / "x.json", rows)), "train")


def test_json_min_is_read(tmp_path: Path) -> None:
    region = RECTANGLE | SIZE | {"rectanglelabels": ["cat"]}
    rows = [{"image": "/data/upload/a.png", "id": 1, "label": [region], "annotator": 1}, {"image": "b.png", "id": 2}]
    found = read(str(text(tmp_path / "x.json", rows)), "train")
    assert [row[1:3] for row in boxes(found)] == [([[4, 4, 14, 10]], ["cat"]), ([], [])]
    rows[0]["id"] = [region | {"x": 50.0}]  # no control, but an entry of the task
    found = read(str(text(tmp_path / "x.json", rows)), "train")
    assert [row[1] for row in boxes(found)] == [[[4, 4, 14, 10]], []]


def test_of_several_annotations_of_a_task_in_json_min_the_first_counts(tmp_path: Path) -> None:
    """JSON-MIN has a row for each annotation; the boxes of two people for one object are not two objects."""
    row = {"image": "a.png", "id": 1, "label": [RECTANGLE | SIZE | {"rectanglelabels": ["cat"]}], "annotator": 1}
    second = row | {"label": [RECTANGLE | SIZE | {"rectanglelabels": ["dog"], "x": 12.0}], "annotator": 2}
    other = row | {"image": "b.png"}  # of another project, with the same id
    found = read(str(text(tmp_path / "x.json", [row, second, other])), "train")
    assert [row[1:3] for row in boxes(found)] == [([[4, 4, 14, 10]], ["cat"]), ([[4, 4, 14, 10]], ["cat"])]
    assert any("several annotations" in note and ": 1, for example" in note for note in found.notes)


def test_open_and_cancelled_tasks_are_left_out_and_the_ground_truth_counts(tmp_path: Path) -> None:
    works = [{"result": [result("cat")]}, {"result": [result("dog")], "ground_truth": True}]
    rows = [task("a.png", annotations=works), task("b.png", annotations=[])]
    rows.append(task("c.png", annotations=[{"result": [], "was_cancelled": True}]))
    found = read(str(text(tmp_path / "x.json", rows)), "train")
    assert len(found) == 1 and found.classes == ("dog",)
    assert "tasks without a submitted annotation, left out: 2" in found.notes[0]
    assert "tasks with several annotations, of which one counts: 1" in found.notes[1]


def test_all_mistakes_are_reported_in_one_pass(tmp_path: Path) -> None:
    no_size = {"type": "rectanglelabels", "value": RECTANGLE | {"rectanglelabels": ["cat"]}}
    turned = result() | {"image_rotation": 90}
    wrong = [result(None, id_="z"), turned, result(width="wide"), {"value": 5}, result("a\nb")]
    rows = [task("a.png", *wrong), task("b.png", data={"text": "no image"}), 5, task("gone.png", no_size, id=8)]
    paint(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "x.json", rows)), "train")
    for words in (
        "problems: 9",
        "gone.png: there is no such file",
        "task 7, result 1: the object has no label",
        "task 8, result 1: the size of the image is not known",
        "task 7, result 2: the image is rotated in Label Studio",
        'task 7: result[2].value.width (id "a") is "wide"',
        "task 7: result[3].value is 5",
        "class name 'a\\nb' has a control character",
        "task 7: there is no image",
        "[2] is 5: expected `object`",
    ):
        assert words in str(caught.value)


def _drawn(name: str, key: str = "rectanglelabels", **fields: object) -> dict:
    value = {"x": 10, "y": 10, "width": 20, "height": 30, "rotation": 0, key: [name]}
    return {"id": "a", "type": key, "original_width": 40, "original_height": 20, "value": value, **fields}


@pytest.mark.parametrize(
    ("data", "results"),
    [
        ({"image1": "a.png", "image2": "b.png"}, [_drawn("cat", to_name="img1"), _drawn("cat", to_name="img2")]),
        ({"image": "a.png", "other": "b.png"}, [_drawn("cat", to_name="img1"), _drawn("cat", to_name="img2")]),
        ({"image": "a.png"}, [_drawn("cat", item_index=0), _drawn("cat", item_index=1)]),
        ({"image": "a.png"}, [_drawn("cat", item_index=1)]),
        ({"one": "a.png", "two": "b.png"}, [_drawn("cat", to_name="img2")]),
    ],
)
def test_tasks_of_several_images_are_refused(tmp_path: Path, data: dict, results: list) -> None:
    """All boxes went to the first image, in percents of its size."""
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    path = text(tmp_path / "export.json", [{"id": 7, "data": data, "annotations": [{"result": results}]}])
    with refused(DataError, path, "task 7"):
        read(str(path), "train")


def test_a_second_label_control_of_an_object_is_no_second_object(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    results = [_drawn("cat"), _drawn("occluded", "labels"), _drawn("dog", id="b")]
    path = text(tmp_path / "export.json", [{"data": {"image": "a.png"}, "annotations": [{"result": results}]}])
    found = read(str(path), "train")
    assert [row[2] for row in boxes(found)] == [["cat", "dog"]]
