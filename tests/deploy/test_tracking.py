"""deploy/tracking.py: objects keep their numbers, weak detections only continue tracks, and no detection is mixed up."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refused import refused

from deploy.result import Result
from deploy.tracking import NEW, Tracker
from utils.config import ConfigError

NAMES = ("red", "blue")


def result(boxes, scores, labels) -> Result:
    order = np.argsort(-np.array(scores), kind="stable")
    names = tuple(NAMES[labels[i]] for i in order)
    image = np.full((200, 400, 3), 114, np.uint8)
    boxes, scores = np.array(boxes, np.float32).reshape(-1, 4)[order], np.array(scores, np.float32)[order]
    return Result(boxes, scores, np.array(labels, np.int64)[order], names, pixels=image)


def moving(step, first=0.9, second=0.8):
    """Two objects that pass each other, the second one below."""
    x = 10 + 8 * step
    return result([[x, 10, x + 60, 70], [300 - x, 110, 360 - x, 170]], [first, second], [0, 1])


class Stub:
    """A stand-in for the packages, which returns the detections in another order, as they may."""

    class Detections:
        def __init__(self, xyxy, confidence, data):
            self.xyxy, self.confidence, self.data = xyxy, confidence, data

        def __len__(self):
            return len(self.xyxy)

    class ByteTrackTracker:
        def __init__(self, frame_rate, **limits):
            self.limits = limits

        def update(self, found):
            order = np.arange(len(found))[::-1]
            strong = found.confidence[order] >= self.limits["track_activation_threshold"]
            strong |= found.xyxy[order, 0] >= 100  # here are the objects that have a track already
            one = Stub.Detections(found.xyxy[order], found.confidence[order], {"row": found.data["row"][order]})
            one.tracker_id = np.where(strong, found.xyxy[order, 0].astype(int), -1)  # the left side is the number
            return one


@pytest.fixture
def stub(monkeypatch):
    for name in ("supervision", "trackers"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**vars(Stub)))


def test_each_detection_gets_the_number_of_its_own_box(stub):
    tracked = Tracker(25, 0.3).update(result([[5, 0, 9, 9], [7, 0, 9, 9], [3, 0, 9, 9]], [0.4, 0.9, 0.5], [0, 1, 1]))
    assert tracked.tracks.tolist() == (tracked.boxes[:, 0].astype(int) + 1).tolist() == [8, 4, 6]
    assert tracked.names == ("blue", "blue", "red")


@pytest.mark.parametrize("confidence, kept", [(0.5, [0.9, 0.5]), (torch.tensor([0.5, 0.95]), [0.5])])
def test_weak_detections_without_a_track_are_left_out_by_the_threshold_of_their_class(stub, confidence, kept):
    boxes = [[5, 0, 9, 9]] * 3 + [[105, 0, 109, 9]]
    tracked = Tracker(25, confidence).update(result(boxes, [0.4, 0.9, 0.5, 0.2], [0, 1, 0, 1]))
    assert tracked.scores.tolist() == np.float32([*kept, 0.2]).tolist() and tracked.tracks[-1] == 106


def test_without_the_package_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackers", None)
    with refused(ConfigError, "track=true", "pip install trackers"):
        Tracker(25, 0.3)


def test_objects_keep_their_numbers_and_a_weak_detection_continues_a_track():
    pytest.importorskip("trackers", reason="pip install trackers")
    tracker = Tracker(25, 0.5)
    frames = [tracker.update(moving(step, second=0.2 if step == 6 else 0.8)) for step in range(12)]
    assert frames[0].tracks.tolist() == [NEW, NEW]
    for frame in frames[2:]:
        assert len(frame) == 2 and len(set(frame.tracks.tolist())) == 2 and min(frame.tracks) > 0
        assert dict(zip(frame.names, frame.tracks, strict=True)) == dict(
            zip(frames[2].names, frames[2].tracks, strict=True)
        )
    weak = tracker.update(result([[350, 10, 390, 50]], [0.2], [0]))
    assert len(weak) == 0 and weak.tracks.tolist() == []  # it begins no track


def test_the_number_is_drawn_and_chooses_the_color_and_is_in_rows_and_parts(stub):
    tracked = Tracker(25, 0.3).update(result([[40, 60, 90, 99], [200, 60, 250, 99]], [0.9, 0.8], [0, 0]))
    assert [row["track"] for row in tracked.rows()] == [41, 201] and tracked[1].tracks.tolist() == [201]
    drawn, plain = tracked.draw(), tracked.image
    first, second = drawn[80, 40], drawn[80, 200]
    assert not np.array_equal(first, second) and not np.array_equal(first, plain[80, 40])
