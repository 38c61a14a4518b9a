"""Runs on several nodes: one that dies and comes back, a cut cable, nodes that were started differently, failing and slow ranks.

A node is a torchrun with its own folder, images and cache, and a common output, all on this computer. Steps take 0.2 s each,
most of it asleep, so that kills hit the middle of an epoch. Needs Linux: processes of a node are found under /proc.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from painted import drawn
from small import assert_same_run
from toys import free_ports

from datasets.loader import ValSampler
from utils import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found under /proc"),
]

ROOT = Path(__file__).parents[1]
TRAINING = {
    **{"train": "images/train.txt", "val": "images/val.txt", "weights": "none", "image_size": "64,64"},
    **{"model": "tiny_n", "epochs": 3, "freeze_epochs": 1, "batch_size": 3, "freeze_batch_size": 4},
    **{"no_aug_epochs": 1, "workers": 0, "device": "cpu", "name": "small", "output": "output"},
    **{"save_minutes": 0.005, "timeout_minutes": 0.33, "report": "false"},
}
IMAGES = {"train": range(18), "val": range(18, 26)}
SILENT = 8  # seconds without a sign of life after which torchrun takes a node for dead
LONG = 600  # seconds after which a process hangs
SCRIPT = """
import os, signal, sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
import tiny, train
from engine import optimizer
from utils import checkpoint

step, save = optimizer.Updater.backward, checkpoint.save

def slow_step(*arguments):
    time.sleep(0.2)
    step(*arguments)

def slow_save(path, contents):
    if {save_seconds} and os.environ["RANK"] == "0" and contents["epoch"] == 1 and str(path).endswith("last.pt"):
        checkpoint.save = save
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a save would be finished for 30 seconds
        print("sleeping", flush=True)
        time.sleep({save_seconds})
        print("awake", flush=True)
    save(path, contents)

optimizer.Updater.backward, checkpoint.save = slow_step, slow_save
train.run_script(lambda: train.main(train.from_command_line(sys.argv[1:])), stopped="stopped", memory_advice="")
"""


class Node:
    """The torchrun of a folder and its processes, which are found by a mark in their environment."""

    def __init__(self, folder, images, command, env, save_seconds=0):
        self.folder, self.command, self.env, self.starts = folder, command, env, 0
        shutil.copytree(images, folder / "images")
        self.write_script(ROOT, save_seconds)

    def write_script(self, root, save_seconds=0):
        """Writes train.py with the small model and slow steps; rank 0 also saves the first epoch slowly."""
        (self.folder / "script.py").write_text(SCRIPT.format(root=str(root), save_seconds=save_seconds))

    def start(self):
        self.starts += 1
        mark = secrets.token_hex(8)
        self.mark = f"TEST_NODE={mark}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "THAW_CACHE": str(self.folder / "cache"), "TEST_NODE": mark}
        env["THAW_PROGRESS"] = "1"
        with open(self._file("out"), "wb") as out, open(self._file("err"), "wb") as err:
            streams = {"stdout": out, "stderr": err, "start_new_session": True}
            self.process = subprocess.Popen(self.command, cwd=self.folder, env={**env, **self.env}, **streams)
        return self

    def _file(self, stream):
        return self.folder / f"{stream}{self.starts}.txt"

    @property
    def out(self):
        """Standard output since the last start."""
        return self._file("out").read_text(errors="replace")

    @property
    def err(self):
        """Standard error since the last start, one line for each state of a progress bar."""
        return self._file("err").read_text(errors="replace").replace("\r", "\n")

    @property
    def run(self):
        """The only run folder of the node."""
        (output,) = [word.removeprefix("output=") for word in self.command if word.startswith("output=")]
        (folder,) = (self.folder / output).iterdir()
        return folder

    def processes(self):
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def kill(self):
        """Kills all processes of the node, as a power failure does."""
        while found := self.processes() if self.starts else []:
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.02)
        if self.starts:
            self.process.wait()

    def wait_for(self, pattern, seconds=LONG, ended=False):
        """Waits until the node has printed the pattern; `ended`: torchrun may end before."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.out + self.err):
            running = ended or self.process.poll() is None
            assert running and time.monotonic() < end, f"no {pattern!r} in\n{self.tail()}"
            time.sleep(0.02)

    def wait_for_the_middle(self):
        """Waits until the run was saved within an epoch after the first."""
        self.wait_for("run folder")
        end, seen = time.monotonic() + LONG, None
        while True:
            with contextlib.suppress(FileNotFoundError):
                if seen != (seen := (self.run / "last.pt").stat().st_mtime_ns):
                    saved = checkpoint.load(self.run / "last.pt")["resume"]
                    if saved["state"]["rows"] and saved["meter"]["batches"]:
                        return
            assert self.process.poll() is None and time.monotonic() < end, self.tail()
            time.sleep(0.02)

    def end(self, status=None):
        """Waits for the end -> the exit status, which must be `status` if that is given."""
        ended = self.process.wait(LONG)
        assert status in (None, ended), f"{ended}\n{self.tail()}"
        return ended

    def tail(self):
        return f"{self.folder.name}\n{self.out[-2000:]}\n{self.err[-6000:]}"

    def lines_of(self, rank):
        """What a local rank has written to standard error, without progress bars; needs --tee."""
        (file,) = (self.folder / "logs").glob(f"*/attempt_0/{rank}/stderr.log")
        lines = file.read_text().replace("\r", "\n").splitlines()
        return [line for line in lines if line.strip() and not re.search(r"\d+%\|", line)]


def torchrun(*flags, **changes):
    words = [f"{name}={value}" for name, value in {**TRAINING, **changes}.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, "script.py", *words]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Annotation files of generated images for training and validation."""
    folder = tmp_path_factory.mktemp("images")
    return drawn(folder, IMAGES)


@contextlib.contextmanager
def nodes(images, base):
    """`make(name, command, environment)` -> a node with its own copy of the images. At the end all are killed."""
    made = []

    def make(name, command, env=(), **options):
        made.append(Node(base / name, images, command, dict(env), **options))
        return made[-1]

    try:
        yield make
    finally:
        for node in made:
            node.kill()


@pytest.fixture
def make(images, tmp_path):
    with nodes(images, tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    """The run folder of two processes that ran without a disturbance."""
    with nodes(images, tmp_path_factory.mktemp("undisturbed")) as make:
        node = make("one", torchrun("--standalone", "--nproc_per_node=2", save_minutes=0)).start()
        node.end(0)
        return node.run


def rendezvous(host, address, port, restarts=3, conf="", **changes):
    """The command of one of two nodes; the node with the lower address has rank 0."""
    conf = f"is_host={int(address == host)},keep_alive_interval={SILENT // 4},keep_alive_max_attempt=4{conf}"
    flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", f"--rdzv_endpoint={host}:{port}"]
    flags += ["--rdzv_id=tests", f"--rdzv_conf={conf}", f"--local_addr={address}", f"--max-restarts={restarts}"]
    return torchrun(*flags, **changes)


@pytest.fixture
def pair(make, tmp_path):
    """`pair(host, guest)` -> two nodes with these addresses on the loopback device; the host keeps the rendezvous."""

    def make_pair(host="127.0.0.1", guest="127.0.0.2", different=None, **changes):
        port, changes = free_ports(1)[0], {"output": tmp_path / "common", **changes}
        commands = [rendezvous(host, host, port, **changes)]
        commands += [rendezvous(host, guest, port, **{**changes, **(different or {})})]
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return [make(name, command, env) for name, command in zip(("host", "guest"), commands, strict=True)]

    return make_pair


def assert_resumed_in_the_middle(main):
    """The last start of rank 0 resumed within an epoch, not at its beginning or end."""
    found = re.findall(r"resuming \S+ after epoch (\d) and (\d+) batches", main.out)
    assert found and all(0 < int(epoch) < 3 and int(batches) > 0 for epoch, batches in found), main.tail()


@pytest.mark.parametrize("dies", ["rank 0", "both"])
def test_a_node_that_dies_and_comes_back_leaves_no_trace(pair, undisturbed, dies):
    if dies == "both":
        host, guest = main, _ = pair()
    else:  # a node that dies must not be the host of the rendezvous, unless all are started again
        host, guest = _, main = pair("127.0.0.2", "127.0.0.1")
    host.start(), guest.start()
    main.wait_for_the_middle()
    dead = [host, guest] if dies == "both" else [guest]
    for node in dead:
        node.kill()
    for node in dead:
        node.start()
    host.end(0), guest.end(0)
    assert_resumed_in_the_middle(main)
    assert_same_run(main.run, undisturbed)  # the only run folder
    if dies == "both":
        starts = json.loads((main.run / "environment.json").read_text())["earlier_starts"]
        assert len(starts) == 1  # only one of the two nodes wrote there each time


def test_nodes_without_a_common_disk_are_refused(pair):
    host, guest = pair(restarts=0, output="output", timeout_minutes=10)
    host.start(), guest.start()
    assert host.end() != 0 and guest.end() != 0
    assert f"{guest.folder}/output" in guest.err and "output=s3://" in guest.err, guest.tail()
    for node in (host, guest):
        assert not list(node.folder.glob("output/*"))


class Cable:
    """Two network namespaces, connected by a pair of virtual Ethernet devices with an address each."""

    ends = {"host": "10.211.7.1", "guest": "10.211.7.2"}

    def __init__(self):
        self.word = secrets.token_hex(3)

    def name(self, end):
        """The name of a namespace and of the device in it."""
        return f"th{end[0]}{self.word}"

    def connect(self):
        host, guest = map(self.name, self.ends)
        for end in (host, guest):
            ip("netns", "add", end)
        ip("link", "add", host, "netns", host, "type", "veth", "peer", "name", guest, "netns", guest)
        for end, address in self.ends.items():
            space = ("-n", self.name(end))
            ip(*space, "address", "add", f"{address}/24", "dev", self.name(end))
            ip(*space, "link", "set", "lo", "up")
        self.link("up")

    def link(self, state):
        """Cuts the cable ("down"), which resets no connection, or repairs it ("up")."""
        for end in self.ends:
            ip("-n", self.name(end), "link", "set", self.name(end), state)

    def remove(self):
        for end in self.ends:
            subprocess.run(["ip", "netns", "delete", self.name(end)], capture_output=True)


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def cable():
    if not shutil.which("ip"):
        pytest.skip("there is no command ip")
    cable = Cable()
    try:
        try:
            cable.connect()
        except OSError as error:
            pytest.skip(f"there are no network namespaces: {error}")
        yield cable
    finally:
        cable.remove()


def test_after_a_cut_cable_ranks_time_out_and_resume_when_it_is_repaired(cable, make, undisturbed, tmp_path):
    port, made = free_ports(1)[0], []
    for end, address in cable.ends.items():
        command = rendezvous(cable.ends["host"], address, port, conf=",read_timeout=600", output=tmp_path / "common")
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": cable.name(end)}
        made.append(make(end, ["ip", "netns", "exec", cable.name(end), *command], env).start())
    host, guest = made
    host.wait_for_the_middle()
    cable.link("down")
    cut = time.monotonic()
    for node in made:
        node.wait_for("longer than timeout_minutes", 60)
    assert 15 < time.monotonic() - cut < 40  # the time-out of 20 seconds
    cable.link("up")
    host.end(0), guest.end(0)
    assert_resumed_in_the_middle(host)
    assert_same_run(host.run, undisturbed)


def change_a_box(node):
    file = node.folder / "images/train.txt"
    first = re.search(r"\d+(?=,\d+,\d+,\d+,\d+)", file.read_text())
    file.write_text(file.read_text().replace(first[0], str(int(first[0]) + 1), 1))


def change_the_code(node):
    root = node.folder / "thaw"
    for name in ("datasets", "deploy", "engine", "metrics", "nets", "report", "utils", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(ROOT / "train.py", root)
    with open(root / "utils/boxes.py", "a") as file:
        file.write("\n# changed\n")
    node.write_script(root)


def test_nodes_that_were_started_differently_report_the_differences(pair):
    host, guest = pair(restarts=0, different={"batch_size": 4}, timeout_minutes=10)
    change_a_box(guest)
    change_the_code(guest)
    begin = time.monotonic()
    host.start(), guest.start()
    for node in (host, guest):
        assert node.end() != 0
        message = node.err.partition("were started differently")[2]
        for name in ("batch_size: 4 on rank 1", "training data:", "code:"):
            assert name in message, node.tail()
        for name in ("validation data:", "learning_rate:"):
            assert name not in message
        assert not list((node.folder.parent / "common").iterdir())
    assert time.monotonic() - begin < 500  # starting four processes; no rank waits for the time-out


def test_a_failing_rank_reports_the_cause_and_ends_all_within_seconds(make):
    flags = ["--standalone", "--nproc_per_node=2", "--max-restarts=0", "--log-dir=logs", "--tee=3"]
    node = make("one", torchrun(*flags, timeout_minutes=10, save_minutes=0)).start()
    node.wait_for(r"epoch 1/3: .*?[1-3]/5 \[")  # before the first evaluation, which keeps the images in memory
    (*_, index) = ValSampler(len(IMAGES["val"]), 3, (64, 64), 1, 2).indices
    lost = node.folder / f"images/{IMAGES['val'][index]}.png"
    before = [len(node.lines_of(rank)) for rank in (0, 1)]  # warnings of torch
    lost.unlink()
    node.wait_for(rf"rank 1: .*{lost.name}", ended=True)
    begin = time.monotonic()
    assert node.end() != 0
    assert time.monotonic() - begin < 120 and "did not end in time" not in node.err
    summary = node.err.partition("Root Cause")[2]
    assert re.search(r"rank +: 1", summary), node.tail()
    assert [len(node.lines_of(rank)) - before[rank] for rank in (0, 1)] in ([0, 1], [1, 1]), node.tail()


def test_ranks_wait_no_longer_than_the_time_out_and_name_it(make):
    flags = ["--standalone", "--nproc_per_node=2", "--max-restarts=0", "--log-dir=logs", "--tee=3"]
    node = make("one", torchrun(*flags, timeout_minutes=0.33), save_seconds=120).start()
    node.wait_for("sleeping")
    begin, before = time.monotonic(), [len(node.lines_of(rank)) for rank in (0, 1)]
    assert node.end() != 0
    assert 16 < time.monotonic() - begin < 100 and "awake" not in node.out
    (line,) = node.lines_of(1)[before[1] :]
    assert "timeout_minutes" in line and len(node.lines_of(0)[before[0] :]) <= 1, node.tail()
