"""Speed of a Detector: milliseconds per image of decoding, preprocessing, network and post-processing."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch

from deploy.detector import Detector
from utils.text import aligned

PARTS = ("decoding", "preprocessing", "network", "post-processing")
WARM_UP = 2  # batches before the measurement: memory and algorithms are chosen in the first ones
IMAGES, SECONDS = 200, 10.0  # the measurement ends at whichever comes first


def measure(detector: Detector, images: Iterator[np.ndarray]) -> dict[str, float]:
    """Measures the milliseconds per image of each part of the prediction, one part after another.

    `images`: uint8 [H, W, 3] BGR, decoded by the iterator. Raises ValueError if there are too few of them.
    """
    if detector.tiles:
        raise ValueError("speed=true measures one pass of the network: leave out tile= and overlap=")
    batches: list[list[float]] = []  # seconds of each part
    begin, size = time.perf_counter(), detector.batch_size
    limit = -(-IMAGES // size) + WARM_UP
    while len(batches) < limit and (len(batches) <= WARM_UP or time.perf_counter() - begin < SECONDS):
        times = [time.perf_counter()]
        batch = list(itertools.islice(images, size))
        if len(batch) < size:
            break
        times.append(time.perf_counter())
        inputs, transforms = detector.prepare(batch)
        times.append(synchronized_time(detector.device))
        predictions = detector.network(inputs)
        times.append(synchronized_time(detector.device))
        detector.select(predictions, transforms)
        times.append(synchronized_time(detector.device))
        batches.append(np.diff(times).tolist())
    if len(batches) <= WARM_UP:
        raise ValueError(f"speed=true needs at least {(WARM_UP + 1) * size} images; lower batch_size=")
    parts = dict(zip(PARTS, 1000 / size * np.mean(batches[WARM_UP:], 0), strict=True))
    if predictions is inputs:  # an ONNX file with NMS runs as a whole
        parts["network and NMS"] = parts.pop("network") + parts.pop("post-processing")
    return parts


def synchronized_time(device: torch.device) -> float:
    """The time in seconds after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def speed_table(milliseconds: dict[str, float], batch_size: int) -> str:
    """Formats milliseconds per image and images per second of each part and of all together."""
    parts = milliseconds | {"all": sum(milliseconds.values())}
    rows = [(part, f"{value:.2f}", f"{1000 / value:.1f}") for part, value in parts.items()]
    lines = aligned([("", "ms per image", "images per second"), *rows], ("",))
    return "\n".join([*lines, f"batches of {batch_size}, one part after another, without drawing and writing"])
