"""Several machines: one that dies and comes back, a cut cable, machines that were not started alike, a rank that fails.

A machine is a torchrun with a folder, pictures, a cache and mostly an output of its own. Needs Linux: what belongs to a
machine is found under /proc.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from painted import drawn
from small import log_of, same, untimed

from datasets.loader import ValSampler
from utils import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found under /proc"),
]

ROOT = Path(__file__).parents[1]
TRAINING = {
    **{"train": "pictures/train.txt", "val": "pictures/val.txt", "weights": "none", "image_size": "64,64"},
    **{"epochs": "3", "freeze_epochs": "1", "batch_size": "3", "freeze_batch_size": "4", "plain_epochs": "1"},
    **{"workers": "0", "device": "cpu", "learning_rate": "0.01", "name": "small", "output": "output"},
    **{"save_minutes": "0.01", "timeout_minutes": "0.33"},
}
PICTURES = {"train": range(18), "val": range(18, 26)}
GONE = 8  # seconds without a sign of life after which torchrun takes a machine for dead
LONG = 180  # seconds: whoever takes longer hangs


class Machine:
    """What runs in a folder: a torchrun and the processes that it starts, which are found by a word in their environment."""

    def __init__(self, folder, command, **env):
        self.folder, self.command, self.env, self.starts = folder, command, env, 0

    def start(self):
        self.starts += 1
        self.mark = f"MACHINE={secrets.token_hex(8)}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "THAW_CACHE": str(self.folder / "cache"), **self.env}
        env["MACHINE"] = self.mark.partition("=")[2]
        with open(self._file("out"), "wb") as out, open(self._file("err"), "wb") as err:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=env, stdout=out, stderr=err, start_new_session=True
            )
        return self

    def _file(self, stream):
        return self.folder / f"{stream}{self.starts}.txt"

    @property
    def out(self):
        """What was printed since the last start."""
        return self._file("out").read_text(errors="replace")

    @property
    def err(self):
        """The same of the stream of errors, a line for each state of a progress bar."""
        return self._file("err").read_text(errors="replace").replace("\r", "\n")

    @property
    def run(self):
        """Its only run folder."""
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
        """The power fails."""
        while found := self.processes():
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()

    def wait_for(self, pattern, seconds=LONG, ended=False):
        """Waits until it has printed that. `ended`: also after torchrun has."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.out + self.err):
            running = ended or self.process.poll() is None
            assert running and time.monotonic() < end, f"no {pattern!r} in\n{self.tail()}"
            time.sleep(0.02)

    def wait_for_the_middle(self):
        """Waits until it has saved within an epoch after the first."""
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
        """Waits for its end -> its exit status, which must be `status` where that is given."""
        try:
            ended = self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            ended = "hangs"
        assert ended != "hangs" and status in (None, ended), f"{ended}\n{self.tail()}"
        return ended

    def tail(self):
        return f"{self.folder.name}\n{self.out[-2000:]}\n{self.err[-6000:]}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Eighteen drawn pictures for training and eight for validation, as annotation files."""
    return drawn(tmp_path_factory.mktemp("drawn"), PICTURES)


def torchrun(*flags, script=ROOT / "train.py", **changes):
    words = [f"{name}={value}" for name, value in {**TRAINING, **changes}.items()]
    return [sys.executable, "-m", "torch.distributed.run", *flags, str(script), *words]


@contextlib.contextmanager
def power(pictures, base):
    """`plug(name, command, **environment)` -> a machine with its own copy of the pictures. At the end all are off."""
    machines = []

    def plug(name, command, **env):
        shutil.copytree(pictures, base / name / "pictures")
        machines.append(Machine(base / name, command, **env))
        return machines[-1]

    try:
        yield plug
    finally:
        for machine in machines:
            if machine.starts:
                machine.kill()


@pytest.fixture
def plug(pictures, tmp_path):
    with power(pictures, tmp_path) as plug:
        yield plug


@pytest.fixture(scope="module")
def undisturbed(pictures, tmp_path_factory):
    """The run folder of two processes that nobody disturbed."""
    with power(pictures, tmp_path_factory.mktemp("undisturbed")) as plug:
        one = plug("one", torchrun("--standalone", "--nproc_per_node=2", save_minutes=0)).start()
        one.end(0)
        return one.run


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def rendezvous(host, address, port, restarts=3, conf="", **changes):
    """The command of one of two machines; the machine with the lower address has rank 0."""
    conf = f"is_host={int(address == host)},keep_alive_interval={GONE // 4},keep_alive_max_attempt=4{conf}"
    flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", f"--rdzv_endpoint={host}:{port}"]
    flags += ["--rdzv_id=tests", f"--rdzv_conf={conf}", f"--local_addr={address}", f"--max-restarts={restarts}"]
    return torchrun(*flags, **changes)


@pytest.fixture
def pair(plug):
    """`pair(host, guest, ...)` -> two machines on the loopback of this one; `host` and `guest` are their addresses."""

    def make(host="127.0.0.1", guest="127.0.0.2", different=None, **changes):
        port = free_port()
        commands = [rendezvous(host, host, port, **changes)]
        commands += [rendezvous(host, guest, port, **{**changes, **(different or {})})]
        return [
            plug(name, command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
            for name, command in zip(("host", "guest"), commands, strict=True)
        ]

    return make


def trained(path):
    """What a checkpoint holds, without the times that training took, and the constants: folders differ."""
    return untimed({name: part for name, part in checkpoint.load(path).items() if name != "config"})


def assert_undisturbed(folder, undisturbed, log=True):
    for name in ("last.pt", "best.pt"):
        assert same(trained(folder / name), trained(undisturbed / name)), folder / name
    if log:
        rows = log_of(folder)
        assert rows == log_of(undisturbed) and [row["epoch"] for row in rows] == list("123")


def assert_went_on_in_the_middle(main):
    """After the restart the machine of rank 0 went on within an epoch, not at the beginning or at an epoch's end."""
    went_on = re.findall(r"going on in \S+ after epoch (\d), (\d+) batches", main.out)
    assert went_on and all(0 < int(epoch) < 3 and int(batches) > 0 for epoch, batches in went_on), main.tail()


def assert_both_keep(main, other, undisturbed):
    """Both machines have the checkpoints of the run left alone, in folders of one name, and only that of rank 0 a log."""
    assert_undisturbed(main.run, undisturbed)
    assert_undisturbed(other.run, undisturbed, log=False)
    assert main.run.name == other.run.name and not (other.run / "log.csv").exists()


@pytest.mark.parametrize("who", ["one with its disk", "rank 0 without its disk", "both, which share a disk"])
def test_a_machine_that_dies_and_comes_back_leaves_no_trace(pair, undisturbed, tmp_path, who):
    """Unless both die it is not the one that hosts the rendezvous; where that dies, all get the same line again."""
    if "rank 0" in who:
        host, guest = pair("127.0.0.2", "127.0.0.1")
        main, other = guest, host
    else:
        host, guest = main, other = pair(output=tmp_path / "common" if "share" in who else "output")
    host.start(), guest.start()
    main.wait_for_the_middle()
    dead = [host, guest] if "both" in who else [guest]
    for machine in dead:
        machine.kill()
    if "without" in who:
        shutil.rmtree(guest.folder / "output")
    for machine in dead:
        machine.start()
    host.end(0), guest.end(0)
    assert_went_on_in_the_middle(main)
    if "share" in who:
        assert_undisturbed(main.run, undisturbed)  # the only run folder
        starts = json.loads((main.run / "environment.json").read_text())["earlier_starts"]
        assert len(starts) == 1  # only one of the two has written there each time
    else:
        assert_both_keep(main, other, undisturbed)


class Cable:
    """Two network namespaces, each with one end of a pair of virtual Ethernet devices and an address of its own."""

    ends = {"host": "10.211.7.1", "guest": "10.211.7.2"}

    def __init__(self):
        self.word = secrets.token_hex(3)

    def name(self, end):
        """Of a namespace, and of the device in it."""
        return f"th{end[0]}{self.word}"

    def lay(self):
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
        """ "down" cuts it without a word to anyone; "up" mends it."""
        for end in self.ends:
            ip("-n", self.name(end), "link", "set", self.name(end), state)

    def remove(self):
        for end in self.ends:
            subprocess.run(["ip", "netns", "delete", self.name(end)], capture_output=True)

    def command(self, end, command):
        return ["ip", "netns", "exec", self.name(end), *command]


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def cable():
    if not shutil.which("ip"):
        pytest.skip("no command ip")
    cable = Cable()
    try:
        try:
            cable.lay()
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield cable
    finally:
        cable.remove()


def test_a_cut_cable_ends_the_waiting_and_once_it_is_mended_the_run_goes_on(cable, plug, undisturbed):
    port, machines = free_port(), []
    for end, address in cable.ends.items():
        command = rendezvous(cable.ends["host"], address, port, conf=",read_timeout=600")
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": cable.name(end)}
        machines.append(plug(end, cable.command(end, command), **env).start())
    host, guest = machines
    host.wait_for_the_middle()
    cable.link("down")
    cut = time.monotonic()
    for machine in machines:
        machine.wait_for("longer than timeout_minutes", 60)
    assert 15 < time.monotonic() - cut < 40  # it was the time-out of 20 seconds: no reset reaches anybody
    cable.link("up")
    host.end(0), guest.end(0)
    assert_went_on_in_the_middle(host)
    assert_both_keep(host, guest, undisturbed)


def change_a_box(guest):
    file = guest.folder / "pictures/train.txt"
    first = re.search(r"\d+(?=,\d+,\d+,\d+,\d+)", file.read_text())
    file.write_text(file.read_text().replace(first[0], str(int(first[0]) + 1), 1))


def change_the_code(guest):
    root = guest.folder / "thaw"
    for name in ("datasets", "nets", "utils"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", root)
    (root / "utils/boxes.py").write_text((ROOT / "utils/boxes.py").read_text() + "\n# changed\n")
    guest.command = [word.replace(str(ROOT / "train.py"), str(root / "train.py")) for word in guest.command]


def test_machines_that_were_not_started_alike_say_in_what_they_differ(pair):
    host, guest = pair(restarts=0, different={"batch_size": 4}, timeout_minutes=10)
    change_a_box(guest)
    change_the_code(guest)
    begin = time.monotonic()
    host.start(), guest.start()
    for machine in (host, guest):
        assert machine.end() != 0
        complaint = machine.err.partition("not started alike")[2]
        for name in ("batch_size: 4 on rank 1", "training data:", "code:"):
            assert name in complaint, machine.tail()
        for name in ("validation data:", "learning_rate:"):
            assert name not in complaint
        assert not (machine.folder / "output").exists()
    assert time.monotonic() - begin < 100  # most of it to start python four times; nobody waited for the time-out


def lines_of(machine, rank):
    """What a local rank has written to its stream of errors, without progress bars; --tee put it there."""
    (file,) = (machine.folder / "logs").glob(f"*/attempt_0/{rank}/stderr.log")
    lines = file.read_text().replace("\r", "\n").splitlines()
    return [line for line in lines if line.strip() and not re.search(r"\d+%\|", line)]


def test_a_rank_that_fails_says_why_ends_all_in_seconds_and_is_not_buried(plug):
    flags = ["--standalone", "--nproc_per_node=2", "--max-restarts=0", "--log-dir=logs", "--tee=3"]
    one = plug("one", torchrun(*flags, timeout_minutes=10, save_minutes=0)).start()
    one.wait_for(r"epoch 2/3: .*?[1-3]/6 \[")
    (*_, index) = ValSampler(len(PICTURES["val"]), 3, (64, 64), rank=1, world=2).indices
    lost = one.folder / f"pictures/{PICTURES['val'][index]}.png"
    said = [len(lines_of(one, rank)) for rank in (0, 1)]  # warnings of torch
    lost.unlink()
    message = rf"rank 1: .*{lost.name}"
    one.wait_for(message, ended=True)
    begin = time.monotonic()
    assert one.end() != 0
    assert time.monotonic() - begin < 15
    summary = one.err.partition("Root Cause")[2]
    assert re.search(r"rank +: 1", summary) and lost.name in summary, one.tail()
    assert [len(lines_of(one, rank)) - said[rank] for rank in (0, 1)] in ([0, 1], [1, 1]), one.tail()


def sleepy(folder, seconds):
    """train.py, but rank 0 takes so long to save the first epoch."""
    script = folder / "sleepy.py"
    script.write_text(
        f"""
import os, runpy, sys, time
sys.path.insert(0, {str(ROOT)!r})
from utils import checkpoint
save = checkpoint.save

def slow(path, contents):
    if os.environ["RANK"] == "0" and contents["epoch"] == 1 and str(path).endswith("last.pt"):
        checkpoint.save = save
        print("sleeping", flush=True)
        time.sleep({seconds})
        print("awake", flush=True)
    save(path, contents)

checkpoint.save = slow
runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""
    )
    return script


def test_others_wait_for_a_rank_that_saves_slowly(plug, undisturbed, tmp_path):
    one = plug(
        "one", torchrun("--standalone", "--nproc_per_node=2", script=sleepy(tmp_path, 12), save_minutes=0)
    ).start()
    one.end(0)
    assert "awake" in one.out
    assert_undisturbed(one.run, undisturbed)


def test_others_do_not_wait_longer_than_the_time_out_and_name_it(plug, tmp_path):
    flags = ["--standalone", "--nproc_per_node=2", "--max-restarts=0", "--log-dir=logs", "--tee=3"]
    one = plug("one", torchrun(*flags, script=sleepy(tmp_path, 120))).start()
    one.wait_for("sleeping")
    begin, said = time.monotonic(), [len(lines_of(one, rank)) for rank in (0, 1)]
    assert one.end() != 0
    assert 15 < time.monotonic() - begin < 70 and "awake" not in one.out
    (line,) = lines_of(one, 1)[said[1] :]
    assert "timeout_minutes" in line and len(lines_of(one, 0)[said[0] :]) <= 1, one.tail()
