"""The tables and the chart of the report of an evaluation: classes, precision-recall curves, confusion matrix."""

from collections.abc import Sequence

import numpy as np

from report import page
from report.intervals import Interval
from utils.metrics import Curve

COLUMNS = ("boxes", "AP", "AP50", "threshold", "precision", "recall", "f1", "correct", "false", "missed")
LIVE = COLUMNS[3:]  # the slider changes them
FEW = 13  # rows of a confusion matrix with large cells
NAMED = 10  # curves with a button; of more classes the best and the worst
WIDTH, HEIGHT, LEFT, BOTTOM, EDGE = 720, 380, 56, 42, 10  # of the chart
CHART = {"left": LEFT, "top": EDGE, "across": WIDTH - LEFT - EDGE, "down": HEIGHT - BOTTOM - EDGE}  # its axes


def class_table(per_class: dict[str, dict], intervals: dict[str, Interval], most: int) -> str:
    """The metrics of the first `most` classes; the last columns change with the threshold."""
    heads = "".join(
        f'<th scope="col"{" class=live" * (name in LIVE)}><button type="button" data-sort="{place}">{name}</button>'
        for place, name in enumerate(COLUMNS, 1)
    )
    rows = []
    for label, (name, row) in enumerate(list(per_class.items())[:most]):
        cells = f'<td data-column="boxes">{row["boxes"]:,}'
        for column in ("AP", "AP50"):
            between = _between(intervals[name]) if column == "AP" and row["boxes"] else ""
            cells += f'<td data-column="{column}">{number(row[column])}{between}'
        for column in LIVE:
            shown = column in row and (column != "threshold" or row["f1"] > 0)
            cells += f'<td class="live" data-column="{column}">{number(row[column]) if shown else "–"}'
        button = f'<button type="button" class="pick" aria-pressed="false">{page.dot(label)}{page.text(name)}</button>'
        rows.append(f'<tr data-class="{label}"><th scope="row">{button}{cells}')
    more = len(per_class) - len(rows)
    note = f'<p class="faint">and {more:,} more classes, which are in metrics.json</p>' if more > 0 else ""
    return (
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Classes"><table id="classes"><thead><tr>'
        f'<th scope="col"><button type="button" data-sort="0">class</button>{heads}</thead><tbody>{"".join(rows)}</tbody>'
        f"</table></div>{note}"
    )


def number(value: float) -> str:
    """A metric with four decimals; a dash where there was nothing to measure."""
    return f"{value:.4f}" if value >= 0 else "–"


def _between(interval: Interval) -> str:
    if interval is None:
        return '<small title="too few images with this class for an interval">few images</small>'
    return f"<small>{interval[0]:.3f}–{interval[1]:.3f}</small>"


def curve_chart(curves: dict[str, Curve]) -> str:
    """Precision over recall of each class with boxes as an SVG, with buttons that highlight a class."""
    labels = {name: label for label, name in enumerate(curves)}
    curves = {name: curve for name, curve in curves.items() if curve.boxes}
    areas = {name: curve.average_precision() for name, curve in curves.items()}
    ranking = sorted(areas, key=areas.get, reverse=True)
    named = ranking if len(ranking) <= NAMED else ranking[: NAMED // 2] + ranking[-NAMED // 2 :]
    recalls = np.linspace(0, 1, 101)
    heights = {n: np.append(c.envelope(), 0)[np.searchsorted(c.recall, recalls)] for n, c in curves.items()}
    lines = "".join(
        f'<path class="curve" data-class="{labels[name]}" style="--color:{page.color(labels[name])}" d="{_path(height)}">'
        f"<title>{page.text(name)}</title></path>"
        for name, height in heights.items()
    )
    if heights:
        lines += f'<path class="mean" d="{_path(np.mean(list(heights.values()), 0))}"><title>mean</title></path>'
    chips = "".join(
        f'<button type="button" class="pick" data-class="{labels[name]}" aria-pressed="false">'
        f"{page.dot(labels[name])}{page.text(name)} <b>{areas[name]:.3f}</b></button>"
        for name in named
    )
    many = " many" * (len(ranking) > NAMED)
    few = "" if named == ranking else ", the best and the worst; the table has a button for each class"
    return (
        f'<h3>Precision and recall at IoU .50</h3><div class="curves"><svg class="chart{many}" role="img" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="Precision over recall for each class">{_axes()}{lines}'
        f'<g id="dots"></g></svg><div><p class="chips">{chips}</p>'
        f'<p class="faint">Area under the curve{few}. Thick line: mean of the classes. Dots: the chosen threshold.</p>'
        "</div></div><h3>Classes</h3>"
    )


def _axes() -> str:
    html = ""
    for step in range(6):
        x, y = _place(step / 5, step / 5)
        html += f'<path class="rule" d="M{x} {EDGE}V{HEIGHT - BOTTOM}M{LEFT} {y}H{WIDTH - EDGE}"/>'
        html += f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step / 5:g}</text>'
        html += f'<text x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{step / 5:g}</text>'
    middle = (HEIGHT - BOTTOM + EDGE) / 2
    html += f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">recall</text>'
    return f'{html}<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">precision</text>'


def _place(recall: float, precision: float) -> tuple[float, float]:
    x, y = LEFT + recall * CHART["across"], EDGE + (1 - precision) * CHART["down"]
    return round(x, 1), round(y, 1)


def _path(heights: np.ndarray) -> str:
    """A curve over 101 recalls as the path of an SVG."""
    points = (_place(place / 100, height) for place, height in enumerate(heights.tolist()))
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def confusion_table(matrix: np.ndarray, labels: Sequence[int], names: Sequence[str]) -> str:
    """The confusion matrix of some classes; the last one is the background. A cell with a count is a button."""
    fraction = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    shown = {label: page.text(names[label]) for label in labels}
    heads = "".join(f'<th scope="col"><span>{shown[c]}</span>' for c in labels)
    rows = []
    for r in labels:
        cells = ""
        for c in labels:
            kind = "same" if r == c else "other"
            part = fraction[r, c] ** 0.5  # root: rare errors show
            words = f"true {shown[r]}, predicted {shown[c]}: {matrix[r, c]}, {100 * fraction[r, c]:.1f} % of the row"
            button = f'<button type="button" tabindex="-1" data-cell="{r},{c}" title="{words}">{matrix[r, c]}</button>'
            style = f'class="{kind}" style="--part:{100 * part:.0f}%"'
            cells += f"<td {style}>{button}" if matrix[r, c] else "<td>"
        rows.append(f'<tr><th scope="row" title="{shown[r]}">{shown[r]}{cells}')
    few = " few" * (len(labels) <= FEW)
    return (
        f'<div class="scroll matrix{few}" role="region" aria-label="Confusion matrix"><table id="matrix"><thead><tr>'
        f'<td class="corner">true ↓ predicted →{heads}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    )
