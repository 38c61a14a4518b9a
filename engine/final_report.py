"""The evaluation of best.pt at the end of a run: the table of classes, and report.html with the mistakes."""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from datasets.loader import Loader
from engine.evaluation import MAX_DETECTIONS, evaluate
from engine.run_folder import log_text
from engine.state import State
from metrics.coco import EVALUATOR
from nets import DetectionModel
from report.analysis import unlabeled_classes, unlabeled_note, write_report, write_results
from utils import checkpoint, outputs
from utils.processes import Ranks
from utils.remote import is_address
from utils.remote_cache import shown
from utils.text import aligned, amount, in_points, metric

MAX_IMAGES = 2000  # of the validation data; a report on more of them is left to evaluate.py
MAX_ROWS = 20  # of the table of classes
# The defaults of evaluate.py.
LIMITS: dict[str, Any] = {"confidence": 0.001, "nms_iou": 0.65, "max_detections": MAX_DETECTIONS}
CONFIDENCE = 0.3  # as in evaluate.py: min score in the error analysis
COLUMNS = {"AP50-95": "AP", "AP50": "AP50", "precision": "precision", "recall": "recall", "threshold": "threshold"}


def evaluate_best(folder: Path, model: DetectionModel, loader: Loader, ranks: Ranks) -> list[str]:
    """Evaluates best.pt on all ranks, and writes FOLDER/evaluation on rank 0, as evaluate.py does.

    `model` gets the weights of best.pt. Returns lines to print: the table of classes and where the results are. For many images
    there is one line with the command.
    """
    data, path = loader.dataset.annotations, folder / "best.pt"
    if not ranks.on_main(path.exists):
        return [f"report      none: {path} is missing"]
    if len(data) > MAX_IMAGES:
        val = ranks.on_main(lambda: checkpoint.read(path, on_disk=True)["config"]["val"])
        words = f"checkpoint={quote(str(path))}"
        if is_address(val):  # which evaluate.py does not take from a checkpoint
            words += f" data={quote(val)}"
        return [f"report      python evaluate.py {words}   # not done here: {amount(len(data), 'validation image')}"]
    about = {}
    if ranks.is_main:
        contents = checkpoint.load(path)
        model.load_state_dict(contents["model"])
        about = checkpoint.about(contents) | {"data": shown(contents["config"]["val"])}  # of val=.2 the list of images
    ranks.broadcast_model(model)
    metrics = evaluate(model, loader, ranks, **LIMITS)
    if not ranks.is_main:
        return []
    detections = metrics.pop("detections")
    lines = class_table(metrics["per_class"], dict(zip(data.classes, data.images_per_class().tolist(), strict=True)))
    lines += old_and_new(metrics["per_class"], model.first_class)
    settings = {"checkpoint": shown(str(path)), "data": data.source, "images": len(data), **about}
    settings |= {"image_size": loader.batch_sampler.image_size, **LIMITS}
    if unlabeled := unlabeled_classes(data, model.added_counts):
        settings["unlabeled"] = unlabeled
    results = metrics | {"evaluator": EVALUATOR, "settings": settings}
    try:
        there = folder / "evaluation"
        outputs.open_evaluation(there)
        write_results(there, data, detections, results)
        write_report(there, data, detections, results, CONFIDENCE)
        if unlabeled:
            lines.append(f"unlabeled   {unlabeled_note(unlabeled)}")
        lines.append(f"report      {there / 'report.html'}")
    except OSError as error:
        lines.append(f"report      none: {error}; make room, and resume the run, which writes it")
    return lines


def is_complete(folder: Path, state: State, report: bool) -> bool:
    """Returns whether log.csv, best.pt and, if there should be one, the `report` belong to the last.pt of a finished run.

    A run that was stopped after its last save lacks some of them, or has those of an earlier end."""
    try:
        has_log = (folder / "log.csv").read_bytes() == log_text(state.rows)
        if state.best_epoch is None or not has_log:
            return has_log
        best = checkpoint.read(folder / "best.pt", on_disk=True)
        if not report or best["epoch"] != state.best_epoch:
            return best["epoch"] == state.best_epoch
        settings = json.loads((folder / "evaluation" / "metrics.json").read_bytes())["settings"]
        return checkpoint.about(best).items() <= settings.items() and (folder / "evaluation" / "report.html").exists()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # missing or damaged
        return False


def old_and_new(per_class: Mapping[str, Mapping[str, Any]], first_class: int) -> list[str]:
    """Returns one line with the mAP of a model's old classes and one with the mAP of its newest, which begin at `first_class`.

    None if all classes are trained. Old classes without boxes in the validation images have no mAP.
    """
    if not first_class:
        return []
    rows = list(per_class.values())
    lines = []
    for name, part, note in (
        ("old", rows[:first_class], "as before this run: they are frozen"),
        ("new", rows[first_class:], "the newest"),
    ):
        maps = [row["AP"] for row in part if row["boxes"]]
        value = "no boxes in the validation images, so no mAP"
        if maps:
            value = f"mAP50-95 {in_points(sum(maps) / len(maps))} of {amount(len(maps), 'class')} ({note})"
        lines.append(f"{name} classes  {value}")
    return [*lines, ""]


def class_table(per_class: Mapping[str, Mapping[str, Any]], images: Mapping[str, int]) -> list[str]:
    """Returns a table of the metrics of each class with boxes, or of the classes with the highest and lowest AP if it is long."""
    names = sorted((name for name, row in per_class.items() if row["boxes"]), key=lambda name: -per_class[name]["AP"])
    if not names:
        return []
    rest, half = len(names) - MAX_ROWS, MAX_ROWS // 2
    rows: list[tuple] = [("class", "images", "boxes", *COLUMNS)]
    for name in names if rest <= 0 else [*names[:half], *names[-half:]]:
        cells = [metric(column, per_class[name][column]) for column in COLUMNS.values()]
        rows.append((name, images.get(name, 0), per_class[name]["boxes"], *cells))
    lines = aligned(rows, ("class",))
    if rest > 0:
        lines.insert(1 + half, f"... {amount(rest, 'class')} with an AP in between: in report.html")
    return [*lines, "precision and recall at IoU 0.5 and the threshold with the highest F1", ""]
