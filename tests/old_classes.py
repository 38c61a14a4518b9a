"""Compares a model with one that classes were added to: weights, outputs of the old heads and detections, by bits."""

from pathlib import Path

import torch

from deploy.detector import Detector
from utils import checkpoint


@torch.inference_mode()
def differences(before: Path, after: Path, images: Path, device: str = "cpu") -> list[str]:
    """Returns the names of the weights, and of the images (*.png), in which an old class differs in a bit."""
    new = Detector(after, device=device, confidence=0.01)
    old = Detector(before, image_size=new.image_size, device=device, confidence=0.01)
    assert new.classes[: len(old.classes)] == old.classes and len(new.classes) > len(old.classes)
    weights = [checkpoint.load(path)["model"] for path in (before, after)]
    found = [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])]
    for path in sorted(images.glob("*.png")):
        inputs, transforms = old.prepare([old.read(str(path))])
        outputs = [detector.network(inputs) for detector in (old, new)]
        heads = [d.model.decode_heads(o, new.image_size) for d, o in zip((old, new), outputs, strict=True)]
        pairs = [pair for both in zip(*heads, strict=False) for pair in zip(*both, strict=True)]
        (one,), (other,) = old.select(outputs[0], transforms), new.select(outputs[1], transforms)
        other = other[other.labels < len(old.classes)]
        same = [torch.equal(x, y) for x, y in pairs]
        same += [one.boxes.tobytes() == other.boxes.tobytes(), one.scores.tobytes() == other.scores.tobytes()]
        if not all(same):
            found.append(path.name)
    return found
