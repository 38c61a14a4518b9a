"""Where the time of an evaluation goes: data, network, loss, decoding + NMS, entries, figures.

    python -m benchmarks.evaluate                            YOLOX-nano at 416 on 326 pictures of COCO
    python -m benchmarks.evaluate rounds=1 json=FILE         and so on

`trained`: the given weights, as evaluate.py runs them; `with loss`: the same as train.py does; `untrained`: random weights, whose
scores all are below the confidence; `sure`: the same with biases of 0, whose scores all are above it. They take turns, round by
round; medians are told. On a CPU seconds of one thread's processor time; on a GPU of the clock, where every part is awaited, so
that the overlap that an evaluation has otherwise is not there.
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
from datasets.formats import read
from datasets.images import prepare
from datasets.loader import ValSampler, build_loader
from utils import detector, metrics
from utils import evaluate as evaluation
from utils.config import override
from utils.distributed import Ranks

PARTS = ("data", "network", "loss", "decoding + NMS", "entries", "figures")
CASES = ("trained", "with loss", "untrained", "sure")


@dataclass(frozen=True)
class Config:
    data: str = "../shared/data/coco_val326"  # a folder with instances_*.json and images/
    weights: str = "../shared/weights/yolox_nano.pth"
    model: str = "yolox_nano"
    size: int = 416  # of the network's input
    batch_size: int = 16
    rounds: int = 3
    device: str = "cpu"
    json: str | None = None  # a file for the figures


class Clock:
    """Seconds of each part. What is neither data nor watched counts as entries."""

    def __init__(self, device: torch.device):
        self.device, self.seconds = device, Counter()
        self.start = self.now()

    def now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def watch(self, part: str, call: Callable) -> Callable:
        """`call`, whose time counts for the part."""

        def timed(*arguments, **named):
            start = self.now()
            answer = call(*arguments, **named)
            self.seconds[part] += self.now() - start
            return answer

        return timed

    def batches(self, loader) -> Iterator:
        """The batches of a loader; waiting for them counts as data."""
        following = self.watch("data", iter(loader).__next__)
        for _ in range(len(loader)):
            yield following()

    def parts(self) -> list[float]:
        self.seconds["entries"] = self.now() - self.start - sum(self.seconds.values())
        return [self.seconds[part] for part in PARTS]


class Watched:
    """A model or loader as `evaluate` sees it, on a clock."""

    def __init__(self, clock: Clock, model=None, loader=None):
        self.clock, self.model, self.loader = clock, model, loader
        if model is None:
            self.dataset = loader.dataset
        else:
            self.detections = clock.watch("decoding + NMS", model.detections)
            self.eval = model.eval

    def __call__(self, images):
        return self.clock.watch("network", self.model)(images)

    def __iter__(self):
        return self.clock.batches(self.loader)


def models(cfg: Config) -> dict[str, torch.nn.Module]:
    """The models by the name of their case."""
    trained = detector.load(cfg.weights, cfg.model).model
    torch.manual_seed(0)
    untrained, sure = nets.build(cfg.model, trained.num_classes), nets.build(cfg.model, trained.num_classes)
    for predictor in (*sure.head.class_predictors, *sure.head.objectness_predictors):
        torch.nn.init.zeros_(predictor.bias)  # scores of .25
    found = dict(zip(CASES, (trained, trained, untrained, sure), strict=True))
    return {name: m.to(cfg.device, memory_format=torch.channels_last) for name, m in found.items()}


def one_evaluation(model, loader, device: torch.device, with_loss: bool) -> tuple[list[float], dict]:
    """Seconds of each part, and the figures."""
    clock = Clock(device)
    criterion = clock.watch("loss", nets.criterion(model, torch.ones_like)) if with_loss else None
    with patch.object(evaluation, "coco_figures", clock.watch("figures", metrics.coco_figures)):
        figures = evaluation.evaluate(
            Watched(clock, model), Watched(clock, loader=loader), Ranks(device=device), criterion
        )
    return clock.parts(), figures


def measure(cfg: Config) -> dict[str, dict]:
    """For each case the median seconds of each part, the number of detections and AP."""
    source, device = next(Path(cfg.data).glob("instances_*.json")), torch.device(cfg.device)
    data, _ = prepare(read(str(source), "val", image_root=f"{cfg.data}/images"))
    sampler, cases = ValSampler(len(data), cfg.batch_size, (cfg.size, cfg.size)), models(cfg)
    loader = build_loader(DetectionDataset(data, "corner"), sampler, 0, device.type == "cuda")
    rounds, told = {name: [] for name in cases}, {}
    for _ in range(cfg.rounds):
        for name, model in cases.items():
            seconds, figures = one_evaluation(model, loader, device, name == "with loss")
            rounds[name].append(seconds)
            told[name] = {"AP": figures["AP"], "detections": len(figures["detections"])}
    return {
        name: {"seconds": [statistics.median(part) for part in zip(*rounds[name], strict=True)], **told[name]}
        for name in cases
    }


def main(cfg: Config) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    cases = measure(cfg)
    print(f"{cfg.model} at {cfg.size}, batches of {cfg.batch_size}, {machine()}, {metrics.BACKEND.name}\n")
    names = (*PARTS, "all", "without data and network", "detections", "AP")
    print("| seconds | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for name, case in cases.items():
        parts = case["seconds"]
        cells = [f"{seconds:.2f}" for seconds in (*parts, sum(parts))] + [f"{sum(parts[2:]) / sum(parts):.1%}"]
        print(f"| {name} | " + " | ".join([*cells, f"{case['detections']:,}", f"{case['AP']:.4f}"]) + " |")
    whole = {name: sum(case["seconds"]) for name, case in cases.items()}
    for name in ("untrained", "sure"):
        print(f"\n{name}: {whole[name] / whole['trained']:.2f} times the seconds of the trained one")
    if cfg.json:
        figures = {"parts": PARTS, "cases": cases, "machine": machine(), "evaluator": metrics.BACKEND.name}
        Path(cfg.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
