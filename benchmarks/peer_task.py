"""Gives a data set and a length to another trainer: label files, images and a task for benchmarks/peers.py."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_process import run, usage_cells
from datasets.scan import clipped_boxes
from datasets.store import Annotations
from deploy.label_files import yolo_text

PEERS_SCRIPT = Path(__file__).with_name("peers.py")


def write_task(folder: Path, peer: str, train_data: Annotations, val_data: Annotations, constants: dict) -> dict:
    """Writes the data as YOLO label files and task.json for benchmarks/peers.py, and returns the task."""
    task = {
        "peer": peer,
        "data": write_data(folder, train_data, val_data),
        "folder": str(folder),
        "weights": constants["weights"],
        "epochs": constants["epochs"],
        "imgsz": constants["image_size"][0],
        "seed": constants["seed"],
        "options": constants.get("options", {}),
        "images": [val_data.path(i) for i in range(len(val_data))],
        "train_images": len(train_data),
        "result": str(folder / "result.json"),
    }
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    return task


def write_data(folder: Path, train_data: Annotations, val_data: Annotations) -> str:
    """Writes the data as YOLO label files, and returns the path of their data.yaml."""
    write_yolo(folder, "train", train_data)
    write_yolo(folder, "val", val_data)
    names = "".join(f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(train_data.classes))
    text = f"path: {folder}\ntrain: images/train\nval: images/val\nnc: {len(train_data.classes)}\nnames:\n{names}"
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    return str(folder / "data.yaml")


def write_yolo(folder: Path, split: str, data: Annotations) -> None:
    """Writes label files, and links to the images, named by the number of the image. Crowd regions are left out."""
    images, labels = (folder / kind / split for kind in ("images", "labels"))
    boxes = clipped_boxes(data)
    for made in (images, labels):
        made.mkdir(parents=True)
    for index in range(len(data)):
        rows = np.arange(data.starts[index], data.starts[index + 1])
        rows = rows[~data.crowd[rows]]
        height, width = data.sizes[index].tolist()
        text = yolo_text(boxes[rows], data.labels[rows].tolist(), width, height)
        (labels / f"{index:06}.txt").write_text(text, encoding="utf-8")
        path = Path(data.path(index)).absolute()
        (images / f"{index:06}{path.suffix}").symlink_to(path)


def peer_row(
    python: str, kind: str, peer: str, model: str, data: tuple, constants: dict, batch: int, workers: int, end: float
) -> dict:
    """Trains `model` of another trainer, and returns the row that benchmarks/peers.py prints. `kind`: epochs or account."""
    with tempfile.TemporaryDirectory() as folder:
        write_task(Path(folder), peer, *data, constants)
        command = [python, str(PEERS_SCRIPT), kind, f"{folder}/task.json", model, str(batch), str(workers)]
        return json.loads(run(command, end).splitlines()[-1])


def run_peer(python: str, folder: Path, task: dict) -> dict[str, Any]:
    """Runs the task and returns what its process used. Raises RuntimeError with its last output if it fails."""
    environment = {**os.environ, "YOLO_OFFLINE": "1", "YOLO_VERBOSE": "false"}
    command = [python, str(PEERS_SCRIPT), "train", str(folder / "task.json")]
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not Path(task["result"]).exists():
        end = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip()[-250:]
        raise RuntimeError(f"{task['peer']} ended with exit code {process.returncode}: {end}")
    return usage_cells(usage)
