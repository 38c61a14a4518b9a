"""Speed of prediction on a CPU compared with Ultralytics: JPEG files, decoded images, and a video.

    python -m benchmarks.predict data=FOLDER peers=PYTHON    JPEG files; the Python of an environment with ultralytics
    python -m benchmarks.predict "contenders=thaw yolox_s,compiled yolox_s,onnxruntime yolox_s" frames=0

Without `peers` only Thaw is measured. A contender is one of KINDS and a model. Its weights are random, and its batch norms
are adapted to the images. All contenders take turns, round by round, on the same images with the same number of threads. The
confidence threshold of each lets `candidates` boxes per image through to NMS. GFLOPs count the convolutions for a
square input, counted by PyTorch.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import peers  # needs nothing of this project

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Config:
    data: str = "data/coco_val2017/images"  # a folder of JPEG files
    contenders: tuple[str, ...] = (
        *("thaw yolox_nano", "network yolox_nano", "thaw yolox_s", "network yolox_s"),
        *("ultralytics yolo11n", "ultralytics yolov8s"),
    )
    sizes: tuple[int, ...] = (416, 640)
    batches: tuple[int, ...] = (1, 8)
    sources: tuple[str, ...] = ("files", "arrays")
    threads: int = 2
    images: int = 8
    candidates: int = 50  # boxes per image before NMS
    rounds: int = 3
    frames: int = 100  # of a video of 1280 x 720, for predict.py with YOLOX-nano at 416; 0: no video
    peers: str = ""  # the Python of an environment with ultralytics
    json: str = ""  # a file for the measurements
    kind: str = ""  # internal: the kind of contender that this process measures


Predict = Callable[[list], int]  # images or their paths -> number of detections


def adapt_batch_norms(model, images) -> None:
    """Sets the batch norms to the statistics of `images`, so that the outputs of random weights vary."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    model.eval()


def threshold(scores, candidates: int) -> float:
    """The score that `candidates` anchor points per image reach on average. Scores [B, A]."""
    return float(scores.flatten().sort(descending=True).values[candidates * len(scores)])


def detector(cfg: Config, model: str, batch: int, images, exported: bool = False):
    """Builds a Detector with random weights; also returns its network before fusing. `exported`: it runs in onnxruntime."""
    import torch

    import export
    import nets
    from deploy.detector import Detector
    from deploy.load import load
    from utils import checkpoint

    size, network = images.shape[-1], nets.build(model, 80)
    adapt_batch_norms(network, images)
    with torch.no_grad():
        confidence = threshold(network.decode(network(images), (size, size))[1], cfg.candidates)
    contents = {"config": {"model": model, "image_size": (size, size)}, "classes": [str(i) for i in range(80)]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.pt"
        checkpoint.save(path, contents | {"epoch": 1, "step": 1, "metrics": {}, "model": network.state_dict()})
        if exported:
            loaded, file = load(path), path.with_suffix(".onnx")
            about = export.description(export.Config(), loaded)
            export.write(file, loaded.model.fuse(), about, batch_size=batch, uint8_input=True)
            path = file
        return Detector(path, device="cpu", confidence=confidence, batch_size=batch), network


def thaw(cfg: Config, model: str, batch: int, images, compiled=False, **kind) -> tuple[Predict, object]:
    """Thaw's Detector: returns its function, and the network whose FLOPs are counted.

    `images`: float [8, 3, size, size] BGR, 0-255, to adapt the batch norms.
    """
    detect, network = detector(cfg, model, batch, images, **kind)
    if compiled:
        detect.model.compile()
    return lambda source: sum(len(one.boxes) for one in detect(source)), network


def network_alone(cfg: Config, model: str, batch: int, images) -> tuple[Predict, object]:
    """The network of the Detector without reading, letterbox and NMS: the upper limit of `thaw`."""
    detect, network = detector(cfg, model, batch, images)
    inputs, _ = detect.prepare([images[0].permute(1, 2, 0).byte().numpy()] * batch)

    def predict(source: list) -> int:
        for _ in range(0, len(source), batch):
            detect.network(inputs)
        return 0

    return predict, network


def ultralytics(cfg: Config, model: str, batch: int, images, rect: bool = False) -> tuple[Predict, object]:
    """Ultralytics. `rect`: its default, inputs that are not square if all images of a batch have the same size."""
    import torch

    yolo, images = peers.ultralytics_model(model), images.flip(1) / 255
    adapt_batch_norms(yolo.model, images)
    with torch.no_grad():
        confidence = threshold(yolo.model(images)[0][:, 4:].amax(1), cfg.candidates)
    return peers.ultralytics_predictor(yolo, images.shape[-1], confidence, batch, rect), yolo.model


def whole_video(cfg: Config, how: str, batch: int, images) -> tuple[Predict, object]:
    """A video predicted and written by predict.py. `how`: "threads" (reading and writing in threads) or "sequential"."""
    from deploy import predictor, video
    from deploy.writer import Results

    detect, network = detector(cfg, "yolox_nano", batch, images)

    def predict_frames(source: list) -> int:
        video.AHEAD = predictor.BEHIND = 8 if how == "threads" else 0
        with tempfile.TemporaryDirectory() as folder:
            results = Results(lambda: Path(folder), detect.classes, range(80))
            source = str(Path(cfg.data, "video/frames.mp4"))
            frames = predictor.Predictor(detect, results, show=False, save=True)
            frames.predict_video("frames.mp4", source, "frames.mp4")
            return results.counts.total()

    return predict_frames, network


KINDS = {
    "thaw": thaw,
    "network": network_alone,
    "compiled": lambda *args: thaw(*args, compiled=True),
    "onnxruntime": lambda *args: thaw(*args, exported=True),
    "ultralytics": ultralytics,
    "rect": lambda *args: ultralytics(*args, rect=True),
    "video": whole_video,
}
PEERS = ("ultralytics", "rect")


def serve(cfg: Config) -> None:
    """Answers every line [model, size, batch, source] with the seconds for all images, the detections and the GFLOPs."""
    import cv2
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    out, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    names, contenders = sorted(map(str, Path(cfg.data).glob("*.jpg"))), {}
    images = [cv2.imread(name) for name in names]
    print(version("ultralytics") if cfg.kind in PEERS else version("torch"), file=out, flush=True)
    for line in sys.stdin:
        *key, source = json.loads(line)
        model, size, batch = key
        first = str(key) not in contenders
        if first:
            torch.manual_seed(0)
            some = torch.stack([torch.from_numpy(cv2.resize(image, (size, size))) for image in images[:8]])
            predict, network = KINDS[cfg.kind](cfg, model, batch, some.permute(0, 3, 1, 2).float())
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                network(torch.zeros(1, 3, size, size))
            contenders[str(key)] = predict, counter.get_total_flops() / 1e9
        predict, count = contenders[str(key)]
        if first:
            predict(images[: max(batch, 2)])
        torch.set_num_threads(cfg.threads)  # Ultralytics uses one thread less than there are cores
        cv2.setNumThreads(0)
        begin, cpu = time.perf_counter(), time.process_time()
        detections = predict(names if source == "files" else images)
        seconds = {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
        print(json.dumps(seconds | {"detections": detections, "gflops": count}), file=out, flush=True)


class Server:
    """A process that measures all contenders of one kind."""

    def __init__(self, cfg: Config, folder: Path, kind: str):
        words = [f"{name}={','.join(map(str, getattr(cfg, name)))}" for name in ("sizes", "batches")]
        words += [f"data={folder}", f"threads={cfg.threads}", f"candidates={cfg.candidates}", f"kind={kind}"]
        python = cfg.peers if kind in PEERS else sys.executable
        env = {**os.environ, "OMP_NUM_THREADS": str(cfg.threads), "GOMP_SPINCOUNT": "10000"}
        env |= {"YOLO_VERBOSE": "false", "YOLO_OFFLINE": "1"}
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": open(folder.parent / f"{kind}.log", "w"),
        }
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.predict", *words], env=env, cwd=ROOT, text=True, **pipes
        )
        self._log, self.version = folder.parent / f"{kind}.log", self._process.stdout.readline().strip()

    def ask(self, *what) -> dict:
        print(json.dumps(what), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{what}: no answer:\n{self._log.read_text()[-2000:]}")
        return json.loads(answer)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def lay_out(cfg: Config, folder: Path) -> None:
    """Links the images into the folder and writes video/frames.mp4, in which each of them moves for ten frames."""
    import cv2
    import numpy as np

    from deploy.video import open_writer

    paths = sorted(Path(cfg.data).glob("*.jpg"))[: cfg.images]
    for path in paths:
        (folder / path.name).symlink_to(path.resolve())
    if cfg.frames:
        (folder / "video").mkdir()
        writer = open_writer(folder / "video/frames.mp4", 25, (720, 1280))
        for i in range(cfg.frames):
            image = cv2.resize(cv2.imread(str(paths[i // 10 % len(paths)])), (1280, 720))
            writer.write(np.roll(image, 5 * (i % 10), (0, 1)))
        writer.release()


def measure(cfg: Config, folder: Path) -> dict:
    """Measures all contenders: "rounds" by (size, batch, source) and contender, and "versions" by kind."""
    images = folder / "images"
    images.mkdir()
    lay_out(cfg, images)
    contenders = [c for c in cfg.contenders if cfg.peers or c.split()[0] not in PEERS]
    races = [((s, b, source), contenders) for s in cfg.sizes for b in cfg.batches for source in cfg.sources]
    if cfg.frames:
        races.append(((416, 8, "video"), ["video threads", "video sequential"]))
    servers = {kind: Server(cfg, images, kind) for kind in dict.fromkeys(c.split()[0] for _, r in races for c in r)}
    rounds = {what: {contender: [] for contender in race} for what, race in races}
    for _ in range(cfg.rounds):
        for what, race in rounds.items():
            for contender, answers in race.items():
                kind, model = contender.split()
                answers.append(servers[kind].ask(model, *what))
    for server in servers.values():
        server.end()
    return {"rounds": rounds, "versions": {kind: server.version for kind, server in servers.items()}}


def tables(cfg: Config, measured: dict) -> str:
    """Formats the medians of the rounds as Markdown tables."""
    lines = []
    for (size, batch, source), race in measured["rounds"].items():
        count = cfg.frames if source == "video" else cfg.images
        others = [c for c in race if c.split()[0] in PEERS]
        title = f"{source} at {size}, batch {batch}"
        head = [title, "images per second", "ms", "CPU ms", "GFLOPs", "ms per GFLOP", "detections"]
        head += [f"ms per GFLOP / that of {peer.split()[1]}" for peer in others]
        lines += ["", f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
        walls = {c: [1000 * one["wall"] / count / one["gflops"] for one in answers] for c, answers in race.items()}
        for contender, answers in race.items():
            wall, cpu = (statistics.median(1000 * one[clock] / count for one in answers) for clock in ("wall", "cpu"))
            row = [contender, f"{1000 / wall:.1f}", f"{wall:.1f}", f"{cpu:.1f}", f"{answers[0]['gflops']:.2f}"]
            row += [f"{statistics.median(walls[contender]):.2f}", f"{answers[0]['detections'] / count:.0f}"]
            ratios = [[a / b for a, b in zip(walls[contender], walls[peer], strict=True)] for peer in others]
            row += [f"{statistics.median(ratio):.2f}" for ratio in ratios]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main(cfg: Config) -> None:
    """Measures and prints the tables."""
    if cfg.kind:
        serve(cfg)
        return
    if not cfg.peers:
        print("Ultralytics is skipped; give peers=PYTHON of an environment with ultralytics", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        measured = measure(cfg, Path(name))
    from benchmarks.table import machine

    words = [word for word in sys.argv[1:] if not word.startswith(("peers=", "json="))]
    about = [
        f"{machine()}, {cfg.threads} threads for the network and none for OpenCV",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    about += [f"{kind} {number}" for kind, number in measured["versions"].items() if kind in PEERS]
    about += [time.strftime("%Y-%m-%d"), f"`{' '.join(['python -m benchmarks.predict', *words])}`"]
    print(f"{', '.join(about)}\n{tables(cfg, measured)}")
    if cfg.json:
        rounds = {" ".join(map(str, what)): race for what, race in measured["rounds"].items()}
        Path(cfg.json).write_text(json.dumps({**measured, "rounds": rounds, "about": about}, indent=1))


if __name__ == "__main__":
    from utils.config import override

    main(override(Config(), sys.argv[1:]))
