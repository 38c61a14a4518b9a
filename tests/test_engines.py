"""The files of docs/engines.md run, and a run goes on with another number of workers: Kubernetes, Slurm, Ray Train and clouds.

Everything happens on this computer. A node is a torchrun, or a node of Ray, in a folder with a train.py that has a small model
and steps of 0.2 s, so that kills hit the middle of an epoch. Stand-ins for `torchrun` and for the programs of Slurm start one
process per node and give the training the constants of the test.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pages
import pytest
import yaml
from painted import drawn
from small import log_of, only_run
from test_nodes import LONG, Node
from toys import free_ports

import train
from utils.config import override

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found under /proc"),
]

PAGE = pages.text_of(pages.ROOT / "docs/engines.md")
# At a learning rate of 0, so that rounding does not grow. The validation loss depends on all steps through the batch norms.
RATES = {"learning_rate": 0, "min_learning_rate": 0}
WORDS = {
    **{"model": "tiny_n", "weights": "none", "image_size": 64, "batch_size": 6, "no_aug_epochs": 0, "device": "cpu"},
    **{"workers": 0, "report": "false", "save_minutes": 0.005, "timeout_minutes": 0.33, **RATES},
}
ENDLESS = {**WORDS, "epochs": 1000}  # the test ends it
TRAIN = """
import sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
sys.modules.pop("train", None)  # where this file is imported as train, the real one takes its place
import tiny, train
from engine.optimizer import Updater

step = Updater.backward

def slow_step(*arguments):
    time.sleep(0.2)
    step(*arguments)

Updater.backward = slow_step
if __name__ == "__main__":
    train.run_script(lambda: train.main(train.from_command_line(sys.argv[1:])), stopped="stopped", memory_advice="")
"""
TORCHRUN = """#!{python}
import json, os, re, sys

at, constants = sys.argv.index("train.py"), json.loads(os.environ["TEST_CONSTANTS"])
options = [re.sub("^--nproc_per_node=.*", "--nproc_per_node=1", word) for word in sys.argv[1:at]]
kept = [word for word in sys.argv[at + 1 :] if word.partition("=")[0] not in constants]
words = kept + [f"{{name}}={{value}}" for name, value in constants.items()]
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *options, "train.py", *words])
"""
SLURM = {
    "srun": 'echo $$ > step.pid\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"',
    "scancel": 'kill -TERM "$(cat step.pid)"',
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$2" > requeued; fi',
}


def file_of(language: str, name: str) -> str:
    """A file of the page, by its name or another text in its first two lines."""
    (found,) = (block for block in pages.code(PAGE, language) if name in "".join(block.splitlines()[:2]))
    return found


@pytest.fixture(scope="module")
def constants(tmp_path_factory) -> dict:
    """Constants that name generated images."""
    folder = drawn(tmp_path_factory.mktemp("images"), {"train": range(24), "val": range(24, 30)})
    return {"train": folder / "train.txt", "val": folder / "val.txt"}


def folder_of_user(folder: Path) -> Path:
    """Makes the working folder of a node."""
    programs = {"torchrun": TORCHRUN.format(python=sys.executable)}
    programs |= {name: f"#!/bin/bash\n{text}\n" for name, text in SLURM.items()}
    (folder / "bin").mkdir(parents=True)
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(stat.S_IRWXU)
    (folder / "train.py").write_text(TRAIN.format(root=str(pages.ROOT)))
    return folder


class Machine(Node):
    """A command in the working folder of a node, and its processes."""

    def __init__(self, folder: Path, command, words: dict, env=()):
        self.folder, self.command, self.starts, self.words = folder_of_user(folder), command, 0, words
        self.env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TEST_CONSTANTS": json.dumps(words, default=str)}
        self.env |= {"PET_LOCAL_ADDR": "127.0.0.1", **dict(env)}

    @property
    def run(self) -> Path:
        """The only run folder."""
        return only_run(self.words["output"])


@pytest.fixture
def machine():
    """`machine(folder, command, words, env)` -> a started Machine. At the end all are killed."""
    made = []

    def make(*arguments):
        made.append(Machine(*arguments))
        return made[-1].start()

    yield make
    for one in made:
        one.kill()


def container(job: dict) -> dict:
    """The container of the workers of a PyTorchJob."""
    (found,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return found


def pytorchjob_env(job: dict, port: int, rank: int) -> dict[str, str]:
    """The environment that the operator of PyTorchJob makes from `elasticPolicy`, for a pod; times are shorter."""
    policy = job["spec"]["elasticPolicy"]
    short = {"last_call_timeout": 3, "keep_alive_interval": 1, "keep_alive_max_attempt": 5, "is_host": int(rank == 0)}
    conf = {entry["key"]: entry["value"] for entry in policy["rdzvConf"]} | short
    return {entry["name"]: entry["value"] for entry in container(job)["env"]} | {
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
        "PET_RDZV_ID": policy["rdzvId"],
        "PET_RDZV_CONF": ",".join(f"{key}={value}" for key, value in conf.items()),
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_NPROC_PER_NODE": "1",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }


def wait_for_workers(output: Path, workers: int, process: subprocess.Popen, log) -> None:
    """Waits until so many workers have trained a whole epoch and a part of the next one. `log()` says what `process` did."""
    end, begun = time.monotonic() + 2 * LONG, None
    while True:
        with contextlib.suppress(StopIteration, OSError, ValueError, KeyError):
            if json.loads(next(output.glob("*/environment.json")).read_text())["processes"] == workers:
                rows = len(log_of(only_run(output)))
                begun = rows if begun is None else begun
                if rows >= begun + 2:
                    return
        going = process.poll() is None and time.monotonic() < end
        assert going, f"{workers} workers did not train two epochs:\n{log()}"
        time.sleep(0.05)


def assert_like_one_process(output: Path, constants: dict, folder: Path) -> None:
    """The losses of the run in `output`, which three numbers of workers trained, are those of a single process."""
    starts = json.loads((only_run(output) / "environment.json").read_text())
    processes = [start["processes"] for start in (*starts["earlier_starts"], starts)]
    assert [count for n, count in enumerate(processes) if count not in processes[n + 1 :]] == [4, 2, 3], processes
    rows = log_of(only_run(output))

    class Enough(Exception):
        pass

    def on_row(row, _):
        if row["epoch"] == len(rows):
            raise Enough

    words = [f"{name}={value}" for name, value in {**ENDLESS, **constants, "output": folder / "one"}.items()]
    with pytest.raises(Enough), contextlib.redirect_stdout(io.StringIO()):
        train.main(override(train.Config(), words), on_row=on_row)
    assert len(rows) >= 6
    assert_same_losses(rows, log_of(only_run(folder / "one")))


def assert_same_losses(rows: list, alone: list) -> None:
    """Two logs have the same epochs and losses."""
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in alone]
    for ours, theirs in zip(rows, alone, strict=True):
        for column in ("loss", "val_loss"):
            assert float(ours[column]) == pytest.approx(float(theirs[column]), rel=3e-7), (column, ours["epoch"])


def test_a_pytorchjob_goes_on_with_two_and_then_three_of_its_four_nodes(machine, constants, tmp_path):
    job, port, output = yaml.safe_load(file_of("yaml", "pytorchjob.yaml")), free_ports(1)[0], tmp_path / "runs"
    words = {**ENDLESS, **constants, "output": output}
    nodes = [
        machine(tmp_path / str(rank), container(job)["command"], words, pytorchjob_env(job, port, rank))
        for rank in range(4)
    ]

    first = nodes[0].process, nodes[0].tail
    wait_for_workers(output, 4, *first)
    for node in nodes[2:]:
        node.kill()
    wait_for_workers(output, 2, *first)
    nodes[2].start()
    wait_for_workers(output, 3, *first)
    for node in nodes:
        node.kill()
    assert_like_one_process(output, constants, tmp_path)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster of Ray with four nodes of one core, and a head without cores, on this computer."""
    pytest.importorskip("ray", reason="Ray is no requirement")
    variables = {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    variables["RAY_worker_niceness"] = "0"  # with 15, workers get next to no time while other tests run
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False)
        for _ in range(4):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        session = cluster.head_node.get_session_dir_path()
        cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)


def test_a_training_of_ray_goes_on_with_two_and_then_three_of_its_four_workers(cluster, constants, tmp_path):
    folder, output = folder_of_user(tmp_path / "user"), tmp_path / "runs"
    script = file_of("python", "ray_train.py").replace("monitor_interval_s=60", "monitor_interval_s=2")
    (folder / "ray_train.py").write_text(script)
    words = [f"{name}={value}" for name, value in {**ENDLESS, **constants, "output": output}.items()]
    log = folder / "log.txt"
    with open(log, "wb") as file:
        env = {**os.environ, "RAY_ADDRESS": cluster.address}
        driver = subprocess.Popen(
            [sys.executable, "ray_train.py", *words], cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
        )

    ray = driver, lambda: log.read_text(errors="replace")[-6000:]
    try:
        wait_for_workers(output, 4, *ray)
        for node in list(cluster.worker_nodes)[:2]:
            cluster.remove_node(node, allow_graceful=False)
        wait_for_workers(output, 2, *ray)
        cluster.add_node(num_cpus=1)
        wait_for_workers(output, 3, *ray)
    finally:
        driver.kill()
        driver.wait()
    assert_like_one_process(output, constants, tmp_path)


def test_the_nodes_of_a_trainjob_find_each_other(machine, constants, tmp_path):
    spec, port = yaml.safe_load(file_of("yaml", "trainjob.yaml"))["spec"]["trainer"], free_ports(1)[0]
    env = {"PET_NNODES": str(spec["numNodes"]), "PET_NPROC_PER_NODE": "1"}
    env |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    words = {**WORDS, **constants, "output": tmp_path / "runs", "epochs": 1}
    nodes = [
        machine(tmp_path / str(rank), spec["command"], words, {**env, "PET_NODE_RANK": str(rank)})
        for rank in range(spec["numNodes"])
    ]
    for node in nodes:
        node.end(0)
    assert json.loads((only_run(tmp_path / "runs") / "environment.json").read_text())["processes"] == 2
    assert len(log_of(only_run(tmp_path / "runs"))) == 1


def test_a_job_of_slurm_is_requeued_before_its_time_limit_and_resumes(machine, constants, tmp_path):
    words = {**WORDS, **constants, "output": tmp_path / "runs", "epochs": 3}
    env = {"SLURM_JOB_ID": "71", "SLURM_JOB_NODELIST": "node", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    job = machine(tmp_path / "user", ["true"], words, env)
    (job.folder / ".venv/bin").mkdir(parents=True)
    (job.folder / ".venv/bin/activate").touch()
    (job.folder / "job.sh").write_text(file_of("bash", "#SBATCH"))
    job.command = ["bash", "job.sh"]
    job.end(0)
    job.start().wait_for_the_middle()
    job.process.send_signal(signal.SIGUSR1)  # as --signal=B:USR1@300 does
    job.end()
    assert (job.folder / "requeued").read_text().strip() == "71" and "stopped in epoch" in job.out, job.tail()
    job.start().end(0)
    assert "resuming" in job.out, job.tail()
    undisturbed = [f"{name}={value}" for name, value in {**words, "output": tmp_path / "one"}.items()]
    with contextlib.redirect_stdout(io.StringIO()):
        train.main(override(train.Config(), undisturbed))
    assert_same_losses(log_of(job.run), log_of(only_run(tmp_path / "one")))


def test_the_command_of_skypilot_trains(machine, constants, tmp_path):
    task = yaml.safe_load(file_of("yaml", "sky.yaml"))
    words = {**WORDS, **constants, "output": tmp_path / "runs", "epochs": 1}
    env = {"SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_NODES": str(task["num_nodes"])}
    command = ["bash", "-c", task["run"].replace(":29500", f":{free_ports(1)[0]}")]
    machine(tmp_path / "user", command, words, {**env, "SKYPILOT_NUM_GPUS_PER_NODE": "8"}).end(0)
    assert len(log_of(only_run(tmp_path / "runs"))) == 1


def test_the_command_of_sagemaker_trains_and_leaves_the_model_where_it_is_uploaded(machine, constants, tmp_path):
    (tmp_path / "model").mkdir()
    script = file_of("bash", "sagemaker.sh").replace("/opt/ml/", f"{tmp_path}/")
    command = ["bash", "-c", script]
    machine(tmp_path / "user", command, {**WORDS, **constants, "epochs": 1}, {"SM_NUM_GPUS": "8"}).end(0)
    (run,) = (tmp_path / "checkpoints").glob("mine-*")
    assert (tmp_path / "model/best.pt").read_bytes() == (run / "best.pt").read_bytes()
