"""Ranks labels by their disagreement with detections of models that did not see them. Pure functions of arrays.

Four kinds, each with one score from 0 to 1 that is comparable within the kind only. As in confident learning (Northcutt et al.
2021), a confidence counts in relation to what is usual: usual[c, k] is the mean confidence with which class k is detected on
labels of class c. A detection matches a label at IoU 0.5, and is explained if it matches a label of the same class; only
others are evidence. s is the confidence of a detection.

- missing: how often such detections have a label, times 0.8^n for n better ones in the same image. A logistic regression over
  all detections learns it from the confidence, the usual confidence of the class, how often its detections have a label, and
  the overlap with labels of other objects. A detection that overlaps a label at IoU 0.3, or is within one by 0.7 of its area,
  is a part of the labeled object, unless a tenth of the labels of its class overlap labels so, as number plates within cars.
- wrong: (s - own) / (1 + 10 * confusion), of a detection of another class k that matches a label of class c, where c has the
  confidence `own`. `confusion`, the geometric mean of usual[c, k] / usual[k, k] and usual[k, c] / usual[c, c], is high for
  classes that models take for each other both ways. It is Bayes' rule if one of eleven such labels is wrong.
- loose: s / (s + usual[c, c]) * (1 - IoU / usual IoU of the class), of the detection that belongs to the label.
- doubled: the IoU of two labels. The one that the detections support less is the suspect.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tools.regression import logistic_regression, logit, probability
from utils.boxes import area, intersection, pairwise_iou

KINDS = ("missing", "wrong", "loose", "doubled")
CONFIDENCE = 0.02  # detections with less are not needed
MATCH = 0.5  # IoU at which a detection and a label mean the same object
LOOSE = 0.2  # smallest IoU of a loose box with its detection
NEAR = 0.3  # IoU at which a label overlaps a detection, so that this is no missing box
WITHIN = 0.7  # fraction of the area of a detection within a label, for the same
USUAL = 0.1  # of the labels of a class: this fraction overlaps a label of another class where that is usual
DOUBLED = 0.7  # IoU of two labels; in dense images, labels of two objects rarely overlap more
EXPECTED = (0.0, 1.0, 0.0, 0.0, -2.0)  # weights of the columns of `features_of` for data with few labels
SURE = 0.05  # the regression learns from detections with at least this confidence
DISCOUNT = 0.8  # of the next missing box in one image
ODDS = 10  # right labels per wrong one, among those on which another class is detected
PRIOR = 5  # labels of the average class that are added to each class, so that a rare one has a stable usual confidence


Labeled = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes [n, 4] xyxy, labels [n], crowd [n] of an image
Detected = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes [m, 4] xyxy, scores [m], labels [m] of an image


class Box(NamedTuple):
    """A labeled box."""

    box: np.ndarray  # [4] xyxy
    label: int


class Suspect(NamedTuple):
    """A label that is probably wrong, or a place where one is probably missing."""

    kind: str
    score: float
    image: int
    row: int  # of the label among the labels of the image; -1: missing
    label: Box | None  # None: missing
    proposal: Box | None  # what the detections propose; None: to remove the label

    def boxes(self) -> list[Box]:
        """Returns the label and the proposal, without what is None."""
        return [box for box in (self.label, self.proposal) if box]


class Pair(NamedTuple):
    """Labels and detections of one image, and how they overlap."""

    boxes: np.ndarray  # [n, 4] xyxy of the labels
    labels: np.ndarray  # [n]
    crowd: np.ndarray  # bool [n]
    detected: np.ndarray  # [m, 4] xyxy
    scores: np.ndarray  # [m]
    classes: np.ndarray  # [m]
    iou: np.ndarray  # [n, m]
    same: np.ndarray  # bool [n, m] of one class


def rank(truth: Sequence[Labeled], detections: Sequence[Detected], num_classes: int) -> list[Suspect]:
    """Returns all suspects in all images, those with the highest score first."""
    pairs = [compare(*both) for both in zip(truth, detections, strict=True)]
    usual, usual_iou = usual_values(pairs, num_classes)
    loose = [loose_boxes(pair, usual.diagonal(), usual_iou) for pair in pairs]
    free = [unlabeled(*both) for both in zip(pairs, loose, strict=True)]
    probabilities = labeled_probabilities(pairs, free, usual.diagonal())
    usually = usual_overlaps(pairs, num_classes)
    suspects = []
    for image, pair in enumerate(pairs):
        alone = free[image][~covered(pair, usually)[free[image]]]
        found = loose[image] + missing_boxes(pair, alone, probabilities[image])
        found += wrong_classes(pair, usual) + doubled_boxes(pair)
        suspects += [
            suspect._replace(image=image) for suspect in found if suspect.row < 0 or not pair.crowd[suspect.row]
        ]
    return sorted(suspects, key=lambda suspect: -suspect.score)


def compare(truth: Labeled, detections: Detected) -> Pair:
    """Returns the labels and the detections of an image with their IoU."""
    overlap = pairwise_iou(truth[0], detections[0].astype(float))
    return Pair(*truth, *detections, overlap, truth[1][:, None] == detections[2])


def found_fraction(truth: Sequence[Labeled], detections: Sequence[Detected]) -> float:
    """Returns the fraction of the labels, without crowd regions, that a detection of their class explains."""
    pairs = [compare(*both) for both in zip(truth, detections, strict=True)]
    found = [np.any(pair.same & (pair.iou >= MATCH), axis=1)[~pair.crowd] for pair in pairs]
    return sum(matched.sum() for matched in found) / max(sum(map(len, found)), 1)


def usual_values(pairs: list[Pair], num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns usual [C, C], and for each class the median IoU [C] of its labels with their detections."""
    sums, counts = np.zeros((num_classes, num_classes)), np.zeros(num_classes)
    overlaps: list[list[float]] = [[] for _ in range(num_classes)]
    for pair in pairs:
        matched = (pair.iou >= MATCH) & ~pair.crowd[:, None]
        own = np.where(matched & pair.same, pair.scores, 0).max(1, initial=0)
        np.add.at(sums, (pair.labels, pair.labels), own)
        np.add.at(counts, pair.labels[~pair.crowd], 1)
        n, d = np.nonzero(matched & ~explained(pair))
        np.add.at(sums, (pair.labels[n], pair.classes[d]), pair.scores[d])
        for row in np.flatnonzero(own):
            overlaps[pair.labels[row]].append(pair.iou[row][pair.same[row]].max())
    sums[np.diag_indices(num_classes)] += PRIOR * sums.trace() / max(counts.sum(), 1)
    usual = np.maximum(sums / (counts + PRIOR)[:, None], 1e-6)
    return usual, np.array([np.median(values) if values else 0 for values in overlaps])


def explained(pair: Pair) -> np.ndarray:
    """Returns which detections match a label of the same class, bool [m]."""
    return np.any(pair.same & (pair.iou >= MATCH), axis=0)


def unlabeled(pair: Pair, loose: list[Suspect]) -> np.ndarray:
    """Returns the indices of the detections without a label, best first: not on any label, not of a loose box, not in
    the middle of a crowd region, and one for each place."""
    centers = (pair.detected[:, :2] + pair.detected[:, 2:]) / 2
    regions = pair.boxes[pair.crowd][:, None]
    in_crowd = ((regions[..., :2] <= centers) & (centers <= regions[..., 2:])).all(-1).any(0)
    free = (pair.iou.max(0, initial=0) < MATCH) & ~in_crowd
    taken, found = [suspect.proposal.box for suspect in loose if suspect.proposal], []
    for d in np.argsort(-pair.scores, kind="stable"):
        box = pair.detected[d]
        if free[d] and (not taken or pairwise_iou(np.array(taken), box[None]).max() < MATCH):
            taken.append(box)  # of the classes that are detected at one place, the most confident one
            found.append(d)
    return np.array(found, int)


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns which boxes [n, 4] overlap which others [m, 4] much, or are within them, bool [n, m]."""
    common = area(intersection(boxes[:, None], others[None]))
    within = common >= WITHIN * np.maximum(area(boxes), 1e-9)[:, None]
    return within | (pairwise_iou(boxes, others) >= NEAR)


def usual_overlaps(pairs: list[Pair], num_classes: int) -> np.ndarray:
    """Returns of which classes the labels usually overlap labels of which other class, or the same one, bool [C, C]."""
    counts, sums = np.zeros(num_classes), np.zeros((num_classes, num_classes))
    for pair in pairs:
        boxes, labels = pair.boxes[~pair.crowd], pair.labels[~pair.crowd]
        doubled = pairwise_iou(boxes, boxes) >= DOUBLED  # each box with itself, too
        n, other = np.nonzero(overlaps(boxes, boxes) & ~doubled)
        places = np.unique(np.stack([n, labels[other]]), axis=1)  # a label counts once for a class
        np.add.at(sums, (labels[places[0]], places[1]), 1)
        np.add.at(counts, labels, 1)
    return sums >= USUAL * np.maximum(counts, 1)[:, None]


def covered(pair: Pair, usually: np.ndarray) -> np.ndarray:
    """Returns which detections overlap a label as labels of their class usually do not, bool [m]."""
    unusual = ~usually[pair.classes[:, None], pair.labels] & ~pair.crowd
    return (overlaps(pair.detected.astype(float), pair.boxes) & unusual).any(1)


def labeled(pair: Pair) -> np.ndarray:
    """Returns the indices of the detections that explain a label: for each label, the most confident one."""
    if not pair.iou.size:
        return np.zeros(0, int)
    own = np.where(pair.same & (pair.iou >= MATCH) & ~pair.crowd[:, None], pair.scores, 0)
    return np.unique(own.argmax(1)[own.max(1) > 0])


def labeled_probabilities(pairs: list[Pair], free: list[np.ndarray], average: np.ndarray) -> list[np.ndarray]:
    """Returns for each image and each of its detections the probability that such a detection has a label."""
    explaining = [labeled(pair) for pair in pairs]
    counts = np.zeros((2, len(average)))  # confidences of the detections without and with a label, by class
    for row, groups in enumerate((free, explaining)):
        for pair, chosen in zip(pairs, groups, strict=True):
            np.add.at(counts[row], pair.classes[chosen], pair.scores[chosen])
    mean = counts.sum(1, keepdims=True) / max(counts.sum(), 1e-6)
    odds = np.log(np.maximum(counts + PRIOR * mean, 1e-6))
    features = [features_of(pair, average, odds[1] - odds[0]) for pair in pairs]
    x, y = [np.zeros((0, len(EXPECTED)))], [np.zeros(0)]
    for has_label, groups in enumerate((free, explaining)):
        for pair, of_pair, chosen in zip(pairs, features, groups, strict=True):
            sure = chosen[pair.scores[chosen] >= SURE]
            x.append(of_pair[sure])
            y.append(np.full(len(sure), float(has_label)))
    weights = logistic_regression(np.concatenate(x), np.concatenate(y), EXPECTED)
    return [probability(row @ weights) for row in features]


def features_of(pair: Pair, average: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """Returns for each detection [m, 5]: 1, log-odds of its confidence, of the usual one of its class and of the class having a
    label, and overlap."""
    overlaps = np.sort(np.concatenate([np.zeros((2, len(pair.scores))), pair.iou]), 0)[-2:]
    other = np.where(overlaps[1] >= MATCH, overlaps[0], overlaps[1])  # IoU with a label of another object
    columns = logit(pair.scores), logit(average[pair.classes]), odds[pair.classes], other
    return np.stack([np.ones(len(other)), *columns], 1)


def missing_boxes(pair: Pair, free: np.ndarray, chance: np.ndarray) -> list[Suspect]:
    """Detections without a label, of which each next one in the image counts less."""
    ranked = free[np.argsort(-chance[free], kind="stable")]
    scores = chance[ranked] * DISCOUNT ** np.arange(len(ranked))
    boxes = [Box(pair.detected[d], int(pair.classes[d])) for d in ranked]
    return [Suspect("missing", float(s), 0, -1, None, box) for s, box in zip(scores, boxes, strict=True)]


def wrong_classes(pair: Pair, usual: np.ndarray) -> list[Suspect]:
    """Labels that match a detection of another class, which no label explains."""
    matched = pair.iou >= MATCH
    own = np.where(matched & pair.same, pair.scores, 0).max(1, initial=0)
    relative = usual / usual.diagonal()
    confusion = np.sqrt(relative * relative.T)[pair.labels[:, None], pair.classes]
    score = np.where(matched & ~explained(pair), pair.scores - own[:, None], 0) / (1 + ODDS * confusion)
    found = []
    for n in np.flatnonzero(score.max(1, initial=0) > 0):
        d = score[n].argmax()
        label = Box(pair.boxes[n], int(pair.labels[n]))
        found.append(Suspect("wrong", float(score[n, d]), 0, int(n), label, Box(label.box, int(pair.classes[d]))))
    return found


def loose_boxes(pair: Pair, average: np.ndarray, usual_iou: np.ndarray) -> list[Suspect]:
    """Labels whose own detection has a lower IoU than usual. A detection belongs to the label that it overlaps most."""
    if not pair.iou.size:
        return []
    certainty = pair.scores / (pair.scores + average[pair.classes])
    iou = np.where(pair.same, pair.iou, 0)
    belongs = (iou >= LOOSE) & (iou == iou.max(0))
    found = []
    for n in np.flatnonzero(belongs.any(1)):
        d = np.where(belongs[n], certainty * iou[n], 0).argmax()
        label = Box(pair.boxes[n], int(pair.labels[n]))
        score = certainty[d] * (1 - iou[n, d] / max(usual_iou[label.label], LOOSE))
        if score > 0:
            found.append(Suspect("loose", float(score), 0, int(n), label, Box(pair.detected[d], label.label)))
    return found


def doubled_boxes(pair: Pair) -> list[Suspect]:
    """Labels that repeat another one: of each pair, the label with less support (confidence * IoU of a detection)."""
    support = np.where(pair.same, pair.scores * pair.iou, 0).max(1, initial=0)
    iou = np.triu(pairwise_iou(pair.boxes, pair.boxes), 1)
    best: dict[int, float] = {}
    for a, b in np.argwhere((iou >= DOUBLED) & ~pair.crowd & ~pair.crowd[:, None]):
        weaker = a if support[a] < support[b] else b
        n = int(weaker)
        best[n] = max(best.get(n, 0), float(iou[a, b]))
    return [Suspect("doubled", s, 0, n, Box(pair.boxes[n], int(pair.labels[n])), None) for n, s in best.items()]
