"""Steps per second of other trainers on a GPU; the Python of their environment runs this file for benchmarks.gpu.

    PEERS_PYTHON benchmarks/gpu_peers.py ultralytics 640 32 fp16 8

Prints one line of JSON. The steps are as those of benchmarks.gpu: random images and boxes, forward, loss, backward, clipping,
optimizer and EMA. Model and loss are the peer's own; optimizer, clipping and EMA are plain PyTorch. Data loading is not part of
them. Without a GPU the same calls run on the CPU, to see that they fit the installed versions; the page never shows such rows.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

BOXES = 20  # per image
WARM_UP = 3  # steps, also between two looks at the clock, as in gpu_parts.py
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_targets(size: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns images [B, 3, H, W] 0-255, boxes [B, M, 4] (center and size, 0-1) and labels [B, M]."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch_size, 3, size, size), generator=generator).float()
    center, side = (torch.rand(batch_size, BOXES, 2, generator=generator) for _ in range(2))
    boxes = torch.cat([center, 8 / size * (size / 16) ** side], -1)
    labels = torch.randint(0, 80, boxes.shape[:2], generator=generator)
    return images.to(DEVICE), boxes.to(DEVICE), labels.to(DEVICE)


def ultralytics(size: int, batch_size: int):
    """Returns the name, the model and its loss on a fixed batch, of YOLOv9-s of Ultralytics."""
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov9s.yaml", nc=80, verbose=False).to(DEVICE).train()
    model.args = get_cfg()
    images, boxes, labels = random_targets(size, batch_size)
    index = torch.arange(batch_size, device=DEVICE).repeat_interleave(BOXES)
    batch = {"img": images / 255, "cls": labels.view(-1, 1).float(), "bboxes": boxes.view(-1, 4), "batch_idx": index}
    return "yolov9s", model, lambda: model(batch)[0].sum()


def libreyolo(size: int, batch_size: int):
    """Returns the name, the model and its loss on a fixed batch, of YOLOX-s of LibreYOLO."""
    from libreyolo.models.yolox.nn import LibreYOLOXModel

    model = LibreYOLOXModel("s", nb_classes=80).to(DEVICE).train()
    images, boxes, labels = random_targets(size, batch_size)
    targets = torch.cat([labels[..., None].float(), boxes * size], -1)
    return "yolox_s", model, lambda: model(images, targets)["total_loss"]


def measure(peer: str, size: int, batch_size: int, amp: str, seconds: float) -> dict:
    """Trains for `seconds` after a warm-up and returns the cells of a row."""
    torch.backends.cudnn.benchmark = True
    name, model, loss_of = {"ultralytics": ultralytics, "libreyolo": libreyolo}[peer](size, batch_size)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, 0.9, nesterov=True)
    scaler, averaged = torch.amp.GradScaler(DEVICE.type, enabled=amp == "fp16"), copy.deepcopy(model).eval()
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16

    def step() -> None:
        with torch.autocast(DEVICE.type, dtype, enabled=amp != "none"):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            new = model.state_dict()
            for key, value in averaged.state_dict().items():
                if value.is_floating_point():
                    value.lerp_(new[key], 1e-4)

    begin = several(step)
    end, steps = begin, 0
    while not steps or end - begin < seconds:
        end, steps = several(step), steps + WARM_UP
    each = (end - begin) / steps
    return {
        "trainer": f"{peer} {version(peer)}",
        "model": name,
        "amp": amp,
        "ms per step": round(1000 * each, 1),
        "images/s": round(batch_size / each),
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def several(step: Callable[[], None]) -> float:
    """Runs WARM_UP steps, waits for the device and returns the time."""
    for _ in range(WARM_UP):
        step()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))))
