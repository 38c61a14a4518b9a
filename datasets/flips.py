"""Classes whose objects become another class in a horizontal flip: left and right, and characters such as b and d."""

import re
from collections.abc import Sequence

OPPOSITES = {"left": "right", "l": "r", "lt": "rt", "lhs": "rhs", "左": "右"}
OPPOSITES |= {right: left for left, right in OPPOSITES.items()}
SIDES = ("left", "right", "左", "右")  # words that are clear without their opposite
CHARACTERS = (("b", "d"), ("p", "q"), ("6", "9"))
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+|[^\w\s-]")


def flip_sensitive_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the first two classes that a flip turns into each other, or a class that has a side; () for none.

    A name is split into words at blanks, signs, digits and capitals ("TurnLeft", "hand_l"). Two classes become each other if
    they differ only by opposite words in English or Chinese. A class with the word "left" has a side without its opposite, too.
    """
    words = {name: tuple(word.lower() for word in _WORDS.findall(name)) or (name,) for name in classes}
    by_words = {split: name for name, split in reversed(words.items())}
    by_text = {name.lower(): name for name in reversed(classes)}
    for name, split in words.items():
        flipped = tuple(OPPOSITES.get(word, word) for word in split)
        if flipped != split and flipped in by_words:
            return name, by_words[flipped]
        for side in SIDES:  # no border between the words: lefthand, righthand
            text = name.lower().replace(side, OPPOSITES[side])
            if text != name.lower() and text in by_text:
                return name, by_text[text]
    for name, split in words.items():
        if any(word in SIDES for word in split):
            return (name,)
    return _characters(classes)


def flip_reason(classes: Sequence[str]) -> str:
    """Returns why images of these classes should not be flipped; "" if nothing speaks against it."""
    names = flip_sensitive_classes(classes)
    named = " and ".join(map(repr, names))
    if names in CHARACTERS:
        return f"a horizontal flip may make characters such as {named} another class, or none"
    return f"a horizontal flip makes another class of {named}" if names else ""


def default_flip(classes: Sequence[str]) -> float:
    """Returns the default of flip=, the probability that a training image is flipped: 0 for classes with a side."""
    return 0.0 if flip_sensitive_classes(classes) else 0.5


def _characters(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns two classes that are single characters and mirror images, which shows that the classes are text."""
    if set(classes) == set(map(str, range(len(classes)))) and len(classes) != 10:
        return ()  # numbers of classes without names; ten of them may be digits
    for pair in CHARACTERS:
        if set(pair) <= set(classes):
            return pair
    return ()
