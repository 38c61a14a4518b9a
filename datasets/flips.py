"""Classes whose objects become another class in a mirror: left and right, and characters such as b and d."""

import re
from collections.abc import Sequence

# Words for left and right, each next to its opposite, in lower case: of class names in several languages.
OPPOSITES = (
    ("left", "right"),
    ("l", "r"),
    ("lt", "rt"),
    ("lhs", "rhs"),
    ("port", "starboard"),
    ("links", "rechts"),
    ("gauche", "droite"),
    ("gauche", "droit"),
    ("izquierda", "derecha"),
    ("izquierdo", "derecho"),
    ("esquerda", "direita"),
    ("esquerdo", "direito"),
    ("sinistra", "destra"),
    ("sinistro", "destro"),
    ("лево", "право"),
    ("левый", "правый"),
    ("левая", "правая"),
    ("налево", "направо"),
    ("左", "右"),
    ("왼쪽", "오른쪽"),
    ("sol", "sağ"),
    ("lewo", "prawo"),
    ("lewy", "prawy"),
    ("clockwise", "counterclockwise"),
)
SIDES = ("left", "right", "links", "rechts", "gauche", "droite", "izquierda", "derecha", "左", "右")
CHARACTERS = (("b", "d"), ("p", "q"), ("6", "9"))
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+|[^\w\s-]")


def mirrored_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the first classes that a mirror turns into each other, or a class that it turns into no class; () for none.

    A name is split into words at blanks, signs, digits and capitals ("TurnLeft", "hand_l"). Two classes are mirror images if
    they differ only by opposite words. A class with a plain word such as "left" has a side even without its opposite.
    """
    words = {name: tuple(word.lower() for word in _WORDS.findall(name)) or (name,) for name in classes}
    names = {split: name for name, split in reversed(words.items())}
    whole = {name.lower(): name for name in reversed(classes)}
    for name, split in words.items():
        for one, other in OPPOSITES:
            exchanged, joined = tuple(_exchanged(word, one, other) for word in split), name.lower().replace(one, other)
            pair = names.get(exchanged) if exchanged != split else None
            if not pair and one in SIDES and joined != name.lower():  # no border between the words: lefthand, righthand
                pair = whole.get(joined)
            if pair:
                return name, pair
    for name, split in words.items():
        if any(word in SIDES for word in split):
            return (name,)
    return _characters(classes)


def default_flip(classes: Sequence[str]) -> float:
    """Returns the default of flip=, the probability that a training image is mirrored: 0 for classes with a side."""
    return 0.0 if mirrored_classes(classes) else 0.5


def _exchanged(word: str, one: str, other: str) -> str:
    """Returns a word, or its opposite if it is one of the two words."""
    return {one: other, other: one}.get(word, word)


def _characters(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns two classes that are single characters and mirror images, which shows that the classes are text."""
    if set(classes) == set(map(str, range(len(classes)))) and len(classes) != 10:
        return ()  # numbers of classes without names; ten of them may be digits
    for pair in CHARACTERS:
        if set(pair) <= set(classes):
            return pair
    return ()
