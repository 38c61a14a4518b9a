"""Where the time of a prediction goes."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch

WARM_UP = 2  # batches before measuring: memory and algorithms are chosen in the first
PICTURES, SECONDS = 200, 10.0  # what ends the measurement, whichever comes first


def measure(detector, images: Iterator[np.ndarray]) -> dict[str, float]:
    """Milliseconds an image of each part. `images`: uint8 [H, W, 3] BGR, decoded when they are asked for.

    Raises ValueError where there are not enough of them.
    """
    seconds, done = dict.fromkeys(("decoding", "preprocessing", "network", "post-processing"), 0.0), 0
    begin = time.perf_counter()
    for number in itertools.count():
        marks = [time.perf_counter()]
        block = list(itertools.islice(images, detector.batch_size))
        if not block or done >= PICTURES or (done and marks[0] - begin > SECONDS):
            break
        marks.append(time.perf_counter())
        batch, frames = detector.prepare(block)
        marks.append(settled(detector.device))
        predictions = detector.network(batch)
        marks.append(settled(detector.device))
        detector.select(predictions, frames)
        marks.append(settled(detector.device))
        if number >= WARM_UP:
            done += len(block)
            for part, start, end in zip(seconds, marks, marks[1:], strict=False):
                seconds[part] += end - start
    if done and predictions is batch:  # the network of an exported file runs with its NMS
        seconds["network and NMS"] = seconds.pop("network") + seconds.pop("post-processing")
    if not done:
        raise ValueError(f"speed=true needs more than {WARM_UP * detector.batch_size} frames; lower batch_size")
    return {part: 1000 * value / done for part, value in seconds.items()}


def settled(device: torch.device) -> float:
    """The time when the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def table(milliseconds: dict[str, float], batch_size: int) -> str:
    """Images a second of each part and of all."""
    rows = milliseconds | {"all": sum(milliseconds.values())}
    lines = [f"{'':16}{'ms an image':>12}{'images a second':>18}"]
    lines += [f"{part:16}{value:12.2f}{1000 / value:18.1f}" for part, value in rows.items()]
    lines.append(f"{batch_size} images at a time, the parts one after another, without drawing or writing")
    return "\n".join(lines)
