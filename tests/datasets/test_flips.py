"""datasets/flips.py: classes that a horizontal flip turns into each other are found, and others are not."""

import pytest

from datasets.flips import default_flip, flip_sensitive_classes
from nets.pretrained import COCO_CLASSES


@pytest.mark.parametrize(
    "classes",
    [
        ("Left", "Right"),
        ("hand_l", "hand_r"),
        ("TurnLeft", "TurnRight"),
        ("lefthand", "righthand"),
        ("HandL", "HandR"),
        ("向左", "向右"),
        ("b", "d"),
        ("6", "9"),
    ],
)
def test_mirror_images_are_found(classes):
    assert flip_sensitive_classes(("dog", *classes, "cat")) == classes


def test_a_class_may_have_a_side_without_its_opposite():
    assert flip_sensitive_classes(("stop", "left_arrow")) == ("left_arrow",)


@pytest.mark.parametrize(
    "classes",
    [
        COCO_CLASSES,
        ("RBC", "WBC", "Platelets"),
        ("bright", "copyright", "leftover"),
        ("flat", "frat"),
        ("airport", "port"),
        ("Leaf Rust", "leaf rust", "leaf_rust", "LEAF"),  # they differ in case and signs only
        tuple(map(str, range(20))),  # numbers of classes without names
        (),
    ],
)
def test_other_classes_are_not(classes):
    assert flip_sensitive_classes(classes) == ()


def test_images_of_such_classes_are_not_mirrored_by_default():
    assert (default_flip(("Left", "Right")), default_flip(("cat", "dog"))) == (0, 0.5)
