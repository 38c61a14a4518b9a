"""Measures where the time of an evaluation goes: data, network, loss, decoding + NMS, COCO results, metrics.

    python -m benchmarks.evaluate data=FOLDER                YOLOX-nano at 416
    python -m benchmarks.evaluate rounds=1 json=FILE         one round; the numbers also as JSON

Cases: `trained` has the given weights, as in evaluate.py; `with loss` adds the loss, as in train.py; `untrained` has random
weights, whose scores are all below the confidence; `confident` has random weights with biases of 0, whose scores are all above
it. The cases take turns; the table shows medians over the rounds. On a CPU the seconds are CPU time of one thread. On a GPU
they are wall time with a synchronization after every part, so there is no overlap, unlike in a real evaluation.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

import nets
from benchmarks.table import machine
from datasets.dataset import DetectionDataset
from datasets.formats.finish import ReadOptions, prepare
from datasets.formats.read import read
from datasets.loader import ValSampler, build_loader
from deploy import load
from engine import evaluation
from utils import metrics
from utils.config import override
from utils.processes import Ranks

PARTS = ("data", "network", "loss", "decoding + NMS", "COCO results", "metrics")
CASES = ("trained", "with loss", "untrained", "confident")


@dataclass(frozen=True)
class Config:
    data: str = "data/coco_val2017"  # a folder with instances_*.json and images/
    weights: str = "coco"  # a file; coco: download the official one
    model: str = "yolox_nano"
    size: int = 416  # of the network's input
    batch_size: int = 16
    rounds: int = 3
    device: str = "cpu"
    json: str | None = None  # a file for the numbers


class Clock:
    """The seconds of each part. What is neither data nor timed counts as COCO results."""

    def __init__(self, device: torch.device):
        self.device, self.seconds = device, Counter()
        self.start = self.now()

    def now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def timed(self, part: str, call: Callable) -> Callable:
        """Wraps a function so that its time counts for the part."""

        def wrapped(*arguments, **named):
            start = self.now()
            result = call(*arguments, **named)
            self.seconds[part] += self.now() - start
            return result

        return wrapped

    def batches(self, loader) -> Iterator:
        """Yields the batches of a loader; waiting for them counts as data."""
        next_batch = self.timed("data", iter(loader).__next__)
        for _ in range(len(loader)):
            yield next_batch()

    def parts(self) -> list[float]:
        """The seconds of each part, in the order of PARTS."""
        self.seconds["COCO results"] = self.now() - self.start - sum(self.seconds.values())
        return [self.seconds[part] for part in PARTS]


class Timed:
    """A model or loader for `evaluate` whose calls are timed."""

    def __init__(self, clock: Clock, model=None, loader=None):
        self.clock, self.model, self.loader = clock, model, loader
        if model is None:
            self.dataset = loader.dataset
        else:
            self.detections = clock.timed("decoding + NMS", model.detections)
            self.eval = model.eval

    def __call__(self, images):
        return self.clock.timed("network", self.model)(images)

    def __iter__(self):
        return self.clock.batches(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def models(cfg: Config) -> dict[str, torch.nn.Module]:
    """Builds the model of each case."""
    trained = load.load(cfg.weights, cfg.model).model
    torch.manual_seed(0)
    untrained, confident = nets.build(cfg.model, trained.num_classes), nets.build(cfg.model, trained.num_classes)
    for predictor in (*confident.head.class_predictors, *confident.head.objectness_predictors):
        torch.nn.init.zeros_(predictor.bias)  # scores of 0.25
    cases = zip(CASES, (trained, trained, untrained, confident), strict=True)
    return {name: model.to(cfg.device, memory_format=torch.channels_last) for name, model in cases}


def one_evaluation(model, loader, device: torch.device, with_loss: bool) -> tuple[list[float], dict]:
    """Times one evaluation and returns the seconds of each part, and the metrics."""
    clock = Clock(device)
    criterion = clock.timed("loss", nets.criterion(model, torch.ones_like)) if with_loss else None
    with patch.object(evaluation, "coco_metrics", clock.timed("metrics", metrics.coco_metrics)):
        result = evaluation.evaluate(Timed(clock, model), Timed(clock, loader=loader), Ranks(device=device), criterion)
    return clock.parts(), result


def measure(cfg: Config) -> dict[str, dict]:
    """Measures each case and returns the median seconds of each part, the number of detections and AP."""
    source, device = next(Path(cfg.data).glob("instances_*.json")), torch.device(cfg.device)
    data, _ = prepare(read(str(source), "val", ReadOptions(image_root=f"{cfg.data}/images")))
    sampler, cases = ValSampler(len(data), cfg.batch_size, (cfg.size, cfg.size)), models(cfg)
    loader = build_loader(DetectionDataset(data, "corner"), sampler, 0, device.type == "cuda")
    rounds, results = {name: [] for name in cases}, {}
    for _ in range(cfg.rounds):
        for name, model in cases.items():
            seconds, result = one_evaluation(model, loader, device, name == "with loss")
            rounds[name].append(seconds)
            results[name] = {"AP": result["AP"], "detections": len(result["detections"])}
    return {
        name: {"seconds": [statistics.median(part) for part in zip(*rounds[name], strict=True)], **results[name]}
        for name in cases
    }


def main(cfg: Config) -> None:
    """Prints the table of all cases."""
    torch.set_num_threads(1)
    cases = measure(cfg)
    print(f"{cfg.model} at {cfg.size}, batches of {cfg.batch_size}, {machine()}, {metrics.BACKEND.name}\n")
    names = (*PARTS, "total", "neither data nor network", "detections", "AP")
    print("| seconds | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for name, case in cases.items():
        parts = case["seconds"]
        cells = [f"{seconds:.2f}" for seconds in (*parts, sum(parts))] + [f"{sum(parts[2:]) / sum(parts):.1%}"]
        print(f"| {name} | " + " | ".join([*cells, f"{case['detections']:,}", f"{case['AP']:.4f}"]) + " |")
    whole = {name: sum(case["seconds"]) for name, case in cases.items()}
    for name in ("untrained", "confident"):
        print(f"\nThe {name} model takes {whole[name] / whole['trained']:.2f} times as long as the trained one.")
    if cfg.json:
        contents = {"parts": PARTS, "cases": cases, "machine": machine(), "evaluator": metrics.BACKEND.name}
        Path(cfg.json).write_text(json.dumps(contents, indent=2))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
