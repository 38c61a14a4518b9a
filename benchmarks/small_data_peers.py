"""Other trainers in benchmarks.small_data: same images, same epochs, their own defaults, judged by our evaluator."""

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.small_data_run import Job, resident_bytes
from datasets.scan import clipped_boxes
from datasets.sources import read_train_and_val
from datasets.store import Annotations
from deploy.label_files import yolo_text
from utils.metrics import coco_metrics, to_coco

SCRIPT = Path(__file__).with_name("small_data_peer.py")
RUNNING: set[subprocess.Popen] = set()  # the processes of other trainers that have not ended


def measure(python: str, job: Job) -> dict[str, Any]:
    """Trains the peer `job.peer` with the Python of its environment -> the cells of the row, as `train_once`."""
    constants = job.constants
    source, root = (constants["train"], constants["val"], constants["split_seed"]), constants["image_root"]
    train, val = read_train_and_val(*source, None, None, root, "drop", "error", lambda note: None)
    with tempfile.TemporaryDirectory(prefix="small_data_") as name:
        folder = Path(name)
        task = write_task(folder, train, val, job)
        usage = run(python, folder, task)
        result = json.loads(Path(task["result"]).read_text(encoding="utf-8"))
    images = len(train) * constants["epochs"]
    metrics = judge(result, val)
    return {
        **{"images_seen": images, "AP": metrics["AP"], "AP50": metrics["AP50"]},
        **{"minutes": result["minutes"], "images_per_second": images / (60 * result["minutes"])},
        "cpu_minutes": (usage.ru_utime + usage.ru_stime) / 60,
        # On a GPU unknown: the memory of another process.
        "peak_MiB": None if torch.cuda.is_available() else round(resident_bytes(usage) / 2**20),
        **{"curve_minutes": [result["minutes"]], "curve_AP": [metrics["AP"]]},
        **{"torch": f"{result['torch']}, {job.peer} {result['version']}", "batch_size": None},  # its own default
    }


def write_task(folder: Path, train: Annotations, val: Annotations, job: Job) -> dict[str, Any]:
    """Writes the data as YOLO label files and task.json, and returns the task."""
    for part, data in (("train", train), ("val", val)):
        write_yolo(folder, part, data)
    names = "".join(f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(train.classes))
    text = f"path: {folder}\ntrain: images/train\nval: images/val\nnc: {len(train.classes)}\nnames:\n{names}"
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    constants = job.constants
    task = {
        **{"peer": job.peer, "data": str(folder / "data.yaml"), "folder": str(folder)},
        **{"epochs": constants["epochs"], "imgsz": constants["image_size"][0], "seed": constants["seed"]},
        **{"weights": constants["weights"], "images": [val.path(i) for i in range(len(val))]},
        "result": str(folder / "result.json"),
    }
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    return task


def write_yolo(folder: Path, part: str, data: Annotations) -> None:
    """Writes label files, and links to the images, named by the number of the image. Crowd regions are left out."""
    images, labels = (folder / kind / part for kind in ("images", "labels"))
    boxes = clipped_boxes(data)
    for place in (images, labels):
        place.mkdir(parents=True)
    for index in range(len(data)):
        rows = np.arange(data.starts[index], data.starts[index + 1])
        rows = rows[~data.crowd[rows]]
        height, width = data.sizes[index].tolist()
        text = yolo_text(boxes[rows], data.labels[rows].tolist(), width, height)
        (labels / f"{index:06}.txt").write_text(text, encoding="utf-8")
        path = Path(data.path(index)).absolute()
        (images / f"{index:06}{path.suffix}").symlink_to(path)


def run(python: str, folder: Path, task: dict[str, Any]) -> resource.struct_rusage:
    """Runs small_data_peer.py and returns what it used, as os.wait4. Raises RuntimeError with its last output if it fails."""
    environment = {**os.environ, "YOLO_OFFLINE": "1", "YOLO_VERBOSE": "false"}
    command = [python, str(SCRIPT), str(folder / "task.json")]
    with open(folder / "output.txt", "w+", encoding="utf-8", errors="replace") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": folder, "env": environment}
        process = subprocess.Popen(command, **streams)
        RUNNING.add(process)
        _, status, usage = os.wait4(process.pid, 0)
        RUNNING.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not Path(task["result"]).exists():
        end = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip()[-250:]
        raise RuntimeError(f"{task['peer']} ended with exit code {process.returncode}: {end}")
    return usage


def judge(result: dict[str, list], val: Annotations) -> dict[str, Any]:
    """Returns the metrics of detections as small_data_peer.py writes them."""
    boxes, labels = np.array(result["boxes"], np.float64).reshape(-1, 4), np.array(result["labels"], np.int64)
    columns = (boxes, np.array(result["scores"], np.float64), labels, np.array(result["numbers"], np.int64))
    return coco_metrics(val.coco(), to_coco([columns], val))
