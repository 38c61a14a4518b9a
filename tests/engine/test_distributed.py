"""utils/processes.py and engine/parallel.py: several processes take the steps that one process takes. Gloo on CPUs.

Float64 where gradients are compared, so that rounding cannot hide an error. One pair of processes does all quick checks.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
import tiny  # noqa: F401  registers model="tiny_n", also in spawned processes
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from refused import refused, told
from simulated_gpu import simulated_gpu
from small import TINY_WEIGHTS, log_of, only_run
from torch import nn
from toys import FAMILIES, free_ports

import nets
import train
from datasets.dataset import DetectionDataset
from datasets.formats import read
from datasets.formats.annotation_file import annotation_line
from datasets.loader import TrainSampler, ValSampler, build_loader
from engine import hardware
from engine.epoch import Meter, fit_one_epoch
from engine.evaluation import evaluate
from engine.optimizer import EMA, Updater, build_optimizer
from engine.parallel import convert_sync_batchnorm, wrap
from engine.schedule import Plan, Schedule
from utils import processes
from utils.config import ConfigError
from utils.processes import RankMismatchError, Ranks, RemoteError, choose_device

SIZE = (64, 64)
TRAININGS = (  # by two processes
    {"name": "more", "repeat_rare": 0.9, "val": ".3", "batch_size": 2},
    {"name": "engine", "add_classes": True, "weights": str(TINY_WEIGHTS), "freeze_epochs": 0},
)
CASES = {  # batch size, frozen, and other arguments of `gradients`
    "even shards": (4, False),
    "a frozen backbone": (4, True),
    "an empty shard": (1, False),
    "an empty shard, fixed statistics": (1, False, "tiny_n", SIZE, True),
}
BATCH_SIZES = ((4,), (1,), (1, 3))  # of the epochs of a training


def draw(folder: Path) -> None:
    """Draws seven images of noise with 0 to 3 boxes of two classes, and writes train.txt and val.txt."""
    lines, rng = [], np.random.default_rng(0)
    for i in range(7):
        image, words = rng.integers(20 * i, 100 + 20 * i, (64, 64, 3), np.uint8), [f"{i}.png"]
        for label in range(i % 4):
            x, y = rng.integers(0, 30, 2)
            image[y : y + 25, x : x + 30] = (0, 0, 255) if label % 2 else (255, 0, 0)
            words.append(f"{x},{y},{x + 30},{y + 25},{label % 2}")
        assert cv2.imwrite(str(folder / f"{i}.png"), image)
        lines.append(" ".join(words))
    for part in ("train", "val"):
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")


def network(name="tiny_n", dtype=torch.float64):
    """A model whose batch norms and biases are far from their start, so that all gradients count and it detects objects."""
    torch.manual_seed(0)
    model = FAMILIES[name](num_classes=2) if name in FAMILIES else nets.build(name, 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "predictors" in name and name.endswith("bias"):
                parameter.zero_()
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.to(dtype).train()


def batches(ranks, data, batch_size, size=SIZE):
    """The training batches of this rank."""
    sampler = TrainSampler(len(data), batch_size, size, 0, 0.0, ranks.rank, ranks.world_size)
    return build_loader(data, sampler, 0)


def gradients(ranks, file, batch_size, frozen, name="tiny_n", image_size=SIZE, fixed=False):
    """The loss and the gradients of each of the first two steps, and the batch-norm statistics after them."""
    model = network(name)
    model.freeze_backbone(frozen)
    model.fix_statistics(fixed)
    data = DetectionDataset(read.read(file, "train"), model.letterbox)
    wrapped, criterion = wrap(model, ranks), nets.criterion(model, ranks.normalizer)
    found = []
    for _, batch in zip(range(2), batches(ranks, data, batch_size, image_size), strict=False):
        model.zero_grad()
        loss = criterion(wrapped(batch.images), batch.boxes, batch.labels, batch.size)["total"]
        loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        found[-1]["loss"] = ranks.sum(loss.detach()) / ranks.world_size
    return [*found, {name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()}]


def evaluation(ranks, file):
    """All metrics and detections of a model."""
    model = network(dtype=torch.float32)
    data = DetectionDataset(read.read(file, "val"), model.letterbox)
    sampler = ValSampler(
        len(data), 1, SIZE, ranks.rank, ranks.world_size
    )  # the bits of an image depend on the batch size
    loader = build_loader(data, sampler, 0)
    return evaluate(model, loader, ranks, nets.criterion(model, torch.ones_like))


def statistics_without_sync_bn(ranks, file, *batch_sizes):
    """Running means of the model and its EMA on all ranks after the last of some epochs without SyncBN, and after averages.

    The learning rate is 0, so that the means depend on the images alone. The second result: whether those of the frozen
    backbone have kept their bits.
    """
    model = network(dtype=torch.float32)
    statistics = [b for b in model.backbone.buffers() if b.is_floating_point()]
    for values in statistics:
        values.fill_(0.1)  # not exact: weighted sums of it are rounded
    data = DetectionDataset(read.read(file, "train"), model.letterbox)
    schedule = Schedule(Plan(10, 0, 10, 10, 4, 4), "constant", 0.0, 0.0, 0, 0)
    updater = Updater(model, build_optimizer("adamw", model, 0.01), schedule, EMA(model, 10))
    model.freeze_backbone(True)
    criterion, wrapped = nets.criterion(model, ranks.normalizer), wrap(model, ranks, sync_bn=False)
    found = []
    for batch_size in batch_sizes:
        updater.average_statistics(ranks)
        fit_one_epoch(wrapped, criterion, batches(ranks, data, batch_size), updater, ranks, Meter())
    for _ in range(3):
        pair = [net.get_buffer("neck.0.bn.running_mean").clone() for net in (model, updater.ema.model)]
        found.append(ranks.gather(pair))
        updater.average_statistics(ranks)
    return found, all((values == torch.tensor(0.1)).all() for values in statistics)


def error_of(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def collectives(ranks):
    """What every rank gets from each collective, by name."""

    def fail():
        raise KeyError("own error")

    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, ranks.rank)
    ranks.broadcast_model(model)
    return {
        "any": ranks.any(ranks.rank == 1, False),
        "normalizer": ranks.normalizer(torch.tensor(3.0 * ranks.rank)).item(),
        "on_main": ranks.on_main(lambda: ranks.rank + 5),
        "once_per_node": ranks.once_per_node(lambda: ranks.rank + 5),
        "node_ranks": ranks.node_ranks,
        "weight": model.weight.tolist(),
        "a failure": error_of(ranks.once_per_node, fail),
        "the same facts": error_of(ranks.check_same, {"seed": 0}),
        "different facts": error_of(ranks.check_same, {"seed": 0, "batch_size": 16 + ranks.rank}),
        "more facts": error_of(ranks.check_same, {"seed": 0} | ({"repeat_rare": 1} if ranks.rank else {})),
    }


def training(folder, output, **changes):
    """The constants of a training with a frozen backbone in epoch 1 and fixed batch-norm statistics in epoch 3.

    Its learning rate is 0, so that rounding does not grow."""
    rates = {"learning_rate": 0.0, "min_learning_rate": 0.0, "timeout_minutes": 1}
    sizes = {"image_size": SIZE, "batch_size": 3, "freeze_batch_size": 4, "epochs": 3, "freeze_epochs": 1}
    data = {"train": str(folder / "train.txt"), "val": str(folder / "val.txt"), "no_aug_epochs": 1}
    run = {"model": "tiny_n", "weights": None, "workers": 0, "device": "cpu", "output": str(folder / output)}
    return train.Config(**{**data, **sizes, **rates, **run, **changes})


def rank_of(rank, world_size, ports, folder, work, arguments, configs):
    """A process as torchrun starts it: stores what `work(ranks, *arguments)` returns, then starts again for each training."""
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(ports[0])
    ranks = processes.start("cpu", timeout_minutes=1)
    torch.save(work(ranks, *arguments), folder / f"rank{rank}.pt")
    ranks.stop()
    for port, config in zip(ports[1:], configs, strict=True):
        if config.name == "engine":
            train_as_an_engine_does(rank, world_size, port, config)
        else:
            os.environ["MASTER_PORT"] = str(port)
            train.main(config)


def train_as_an_engine_does(rank, world_size, port, config):
    """Trains in a thread, in a process group that must work before and after, without the environment of torchrun."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(1) as thread:
        thread.submit(train.main, config).result()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(world_size, folder, work, *arguments, configs=()):
    """What `work(ranks, *arguments)` returns on each of several ranks, which then train with each of `configs`."""
    mp.spawn(rank_of, (world_size, free_ports(1 + len(configs)), folder, work, arguments, configs), world_size)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)]


def everything(ranks, file):
    found = {name: gradients(ranks, file, *case) for name, case in CASES.items()}
    found |= {"evaluation": evaluation(ranks, file)}
    found |= {"statistics": {sizes: statistics_without_sync_bn(ranks, file, *sizes) for sizes in BATCH_SIZES}}
    found |= {"collectives": collectives(ranks)} if ranks.world_size > 1 else {}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    draw(folder)
    return folder


@pytest.fixture(scope="module")
def two(folder):
    """The results of each of two processes, which then train."""
    configs = [training(folder, "two", **changes) for changes in TRAININGS]
    return run_ranks(2, folder, everything, str(folder / "train.txt"), configs=configs)


@pytest.fixture(scope="module")
def one(folder):
    """The results of a single process."""
    return everything(Ranks(), str(folder / "train.txt"))


def assert_close(ours, theirs, tolerance=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            scale = max(1.0, float(b[name].abs().max()))
            assert float((a[name] - b[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_batch_norms_of_two_processes_equal_those_of_one(one, two, case):
    assert len(one[case][0]) > 20 and any(g.abs().max() > 0 for g in one[case][0].values())
    assert_close(two[0][case], one[case])
    assert_close(two[1][case], one[case])


def test_sharded_evaluation_equals_that_of_one_process(one, two):
    only_on_rank_0 = {"detections": one["evaluation"]["detections"]}
    assert len(one["evaluation"]["detections"]) > 20
    for rank in two:
        assert rank["evaluation"].pop("val_loss") == pytest.approx(one["evaluation"]["val_loss"], rel=1e-6)
        found = rank["evaluation"] if rank is two[0] else {**rank["evaluation"], **only_on_rank_0}
        assert found == {k: v for k, v in one["evaluation"].items() if k != "val_loss"}
    assert two[1]["evaluation"]["detections"] == []


def test_statistics_without_sync_bn_are_averaged_over_ranks(two):
    (before, after, again), _ = two[0]["statistics"][(4,)]
    assert not torch.equal(before[0][0], before[1][0])
    for model, average in after + again:
        assert torch.equal(model, (before[0][0] + before[1][0]) / 2)
        assert torch.equal(average, model)


@pytest.mark.parametrize("batch_sizes", BATCH_SIZES)
def test_statistics_without_sync_bn_are_those_of_one_process(one, two, batch_sizes):
    """Each rank counts with its images of the epoch: two and one of three, and with one per step the other rank has none."""
    (((expected, _),), *_), _ = one["statistics"][batch_sizes]
    (before, after, again), frozen_bits_stay = two[0]["statistics"][batch_sizes]
    for mean, _ in after + again:
        assert torch.allclose(mean, expected, rtol=1e-3, atol=1e-8)
    if batch_sizes == (1,):  # rank 1 keeps the statistics of the start
        assert torch.equal(after[0][0], before[0][0]) and not torch.allclose(before[1][0], expected, rtol=0.1)
    assert frozen_bits_stay


def test_collectives_give_all_ranks_the_same(two):
    for rank in two:
        found = rank["collectives"]
        assert found["any"] == [True, False] and found["normalizer"] == 1.5
        assert found["on_main"] == found["once_per_node"] == 5 and found["node_ranks"] == (0, 1)
        assert found["weight"] == [[0, 0], [0, 0]]


def test_the_error_of_a_rank_ends_the_others_with_a_remote_error(two):
    assert [rank["collectives"]["a failure"] for rank in two] == ["KeyError: 'own error'", "RemoteError: rank 0 failed"]
    assert issubclass(RemoteError, RuntimeError)


def test_differences_between_ranks_are_named_on_all_ranks(two):
    for rank in two:
        assert rank["collectives"]["the same facts"] is None
        message = rank["collectives"]["different facts"]
        assert message.startswith(f"{RankMismatchError.__name__}: ") and "seed" not in message
        told(message, "batch_size", "17 on rank 1", "16 on rank 0")
        told(rank["collectives"]["more facts"], "repeat_rare", "1 on rank 1")  # rank 0 does not have it


@pytest.mark.parametrize(
    "changes",
    TRAININGS,
    ids=["repeats and a fraction for validation", "added classes in a process group of an engine"],
)
def test_a_training_by_two_processes_logs_what_one_process_logs(folder, two, changes):
    """Only one of the processes writes, also the files of val=.3: both have the same split."""
    train.main(training(folder, "one", **changes))
    runs = [next((folder / name).glob(f"{changes['name']}-*")) for name in ("one", "two")]
    assert len(list((folder / "two").iterdir())) == len(TRAININGS)
    assert sorted(path.name for path in runs[0].glob("*.txt")) == sorted(path.name for path in runs[1].glob("*.txt"))
    for file in runs[0].glob("*.txt"):
        assert file.read_bytes() == (runs[1] / file.name).read_bytes()
    logs = [log_of(run) for run in runs]
    assert len(logs[0]) == 3
    for ours, theirs in zip(*logs, strict=True):
        for column, value in ours.items():
            expected = pytest.approx(float(theirs[column] or "nan"), rel=1e-4, abs=1e-6, nan_ok=True)
            assert float(value or "nan") == expected, column


def test_a_single_process_needs_no_process_group():
    ranks, model = Ranks(), network()
    assert wrap(model, ranks) is model and ranks.gather({"a": 1}) == [{"a": 1}]
    assert float(ranks.normalizer(torch.tensor(0.0))) == 1
    assert ranks.on_main(lambda: 3) == ranks.once_per_node(lambda: 3) == 3 and ranks.any(True, False) == [True, False]
    ranks.check_same({"batch_size": 4})


def test_batch_norms_of_a_single_process_on_a_cpu_are_exact():
    """PyTorch's are not, in large channels-last tensors: they add up all pixels one after the other in float32."""
    torch.manual_seed(0)
    x = (torch.randn(4, 16, 200, 200) + 3).contiguous(memory_format=torch.channels_last)
    plain, ours = nn.BatchNorm2d(16), wrap(nn.BatchNorm2d(16), Ranks())
    exact = nn.BatchNorm2d(16).double()(x.double())
    errors = [float((norm(x) - exact).detach().abs().max()) for norm in (ours, plain)]
    assert errors[0] < 2e-6 and errors[1] > 10 * errors[0]
    assert torch.allclose(ours.running_var, plain.running_var, rtol=1e-3)


def test_gradients_of_exact_batch_norms_are_those_of_pytorch():
    norms = [nn.BatchNorm2d(5).double() for _ in range(2)]
    nn.init.uniform_(norms[0].weight), nn.init.uniform_(norms[0].bias)
    norms[1].load_state_dict(norms[0].state_dict())
    convert_sync_batchnorm(norms[1])
    x, found = torch.randn(3, 5, 40, 56, dtype=torch.float64), []
    for norm in norms:
        leaf = x.clone().requires_grad_()
        y = norm(leaf)
        y.pow(3).sum().backward()
        found.append([y.detach(), leaf.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
    assert type(norms[1]) is not nn.BatchNorm2d and norms[1].num_batches_tracked == 1
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def test_models_with_sync_bn_are_saved_and_evaluated_as_without():
    model, plain = network(), network()
    assert list(convert_sync_batchnorm(model).state_dict()) == list(plain.state_dict())
    assert any(type(m).__name__ == "ExactBatchNorm2d" for m in model.modules())
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(plain.eval()(images).boxes, model.eval()(images).boxes)


@pytest.mark.parametrize("device", ["gpu", "meta", "cpu:1", "cpu:", "cpu:²", "cuda", "cuda:99", "mps", "0,1"])
def test_a_device_that_does_not_exist_is_refused_with_the_fix(device):
    exists = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if exists.get(device):
        pytest.skip(f"{device} exists here")
    with refused(ValueError, f"device={device}", "auto"):
        choose_device(device)


def test_the_name_of_a_device_is_found_in_other_spellings():
    assert choose_device("CPU") == torch.device("cpu")
    with refused(ValueError, "device=gpu", "device=cuda?"):
        choose_device("gpu")


def test_devices_are_chosen_by_local_rank(monkeypatch):
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device(name, local_rank=3) for name in ("auto", "cuda", "cuda:0", "0", 1)] == [
        torch.device("cuda", 1),
        torch.device("cuda", 1),
        torch.device("cuda", 0),
        torch.device("cuda", 0),
        torch.device("cuda", 1),
    ]


def test_idle_gpus_are_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (advice,) = hardware.gpu_advice(["train.py", "train=my data"])
    told(advice, "torchrun --standalone --nproc_per_node=4 train.py 'train=my data'", "device=cuda:all")


@pytest.mark.parametrize(
    "cuda, prefix, fix",
    [
        (None, "/thaw/cpu/.venv", "without --project cpu"),
        (None, "/thaw/.venv", "pip install torch torchvision"),
        ("13.0", "/thaw/.venv", "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu126"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_told_with_the_fix(monkeypatch, cuda, prefix, fix):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(hardware.sys, "prefix", prefix)
    (advice,) = hardware.gpu_advice(["train.py"])
    told(advice, torch.__version__, fix, "docs/install.md")


def test_data_parallel_is_for_one_process_and_not_for_bf16(monkeypatch):
    with refused(ConfigError, "amp=bf16", "device=cuda:all", "amp=fp16"):
        train.main(train.Config(device="cuda:all", amp="bf16"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for device in ("cuda:all", "cuda:1"):  # cuda:1 would put all processes on one GPU
        with refused(ValueError, f"device={device}", "torchrun", "device=auto"):
            processes.start(device)


def test_ranks_that_share_a_gpu_communicate_through_gloo(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for gpus, backend in ((1, "gloo"), (2, "cpu:gloo,cuda:nccl")):
        with simulated_gpu(count=gpus):
            assert processes.backend_of(torch.device("cuda:0")) == backend
    assert processes.backend_of(torch.device("cpu")) == "gloo"


def running_group(monkeypatch, backends, hosts, rank):
    """A process group that an engine has started, with a rank on each of `hosts`."""
    functions = {"is_initialized": lambda: True, "get_backend_config": lambda: backends, "get_rank": lambda: rank}
    functions |= {"get_world_size": lambda: len(hosts), "new_subgroups_by_enumeration": lambda nodes, **_: (None, None)}
    for name, function in functions.items():
        monkeypatch.setattr(dist, name, function)
    monkeypatch.setattr(Ranks, "gather", lambda *_: hosts)


def test_a_rank_of_an_engine_has_the_gpu_of_its_place_on_its_host(monkeypatch):
    running_group(monkeypatch, "cpu:gloo,cuda:nccl", ["a", "a", "b", "b", "b"], rank=3)
    with simulated_gpu(count=3):
        ranks = processes.start()
    assert (ranks.rank, ranks.world_size, ranks.node_ranks) == (3, 5, (2, 3, 4)) and ranks.adopted
    assert ranks.device == torch.device("cuda:1")


@pytest.mark.parametrize("adopted", [True, False])
def test_the_process_group_of_an_engine_outlives_a_training(monkeypatch, adopted):
    left = []
    monkeypatch.setattr(dist, "destroy_process_group", left.append)
    Ranks(world_size=2, node_group="node", adopted=adopted).stop()
    assert left == ["node" if adopted else None]  # None: all groups


@pytest.mark.parametrize(
    ("device", "running", "needed"),
    [
        ("auto", "cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("auto", "cpu:gloo", "cpu:gloo,cuda:nccl"),
        ("cpu", "cuda:nccl", "gloo"),
    ],
)
def test_a_process_group_that_cannot_exchange_what_is_needed_is_refused(monkeypatch, device, running, needed):
    running_group(monkeypatch, running, ["a", "a"], rank=0)
    with simulated_gpu(count=2), refused(ValueError, f"backend={running}", f'TorchConfig(backend="{needed}")'):
        processes.start(device)


def wide_model(ranks, weights):
    """A model whose weights only rank 0 can read."""
    torch.manual_seed(ranks.rank)
    source = weights if ranks.is_main else "missing.pt"
    model, _ = nets.build_pretrained("yolov9_t", ("a", "b"), source, ranks, lambda _: None)
    ranks.broadcast_model(model)
    return model.state_dict()


def real_models(ranks, file, weights):
    """The slow checks: real layers of every family, and weights that only rank 0 can read."""
    size = (128, 128)  # a batch norm needs more than the one value per channel that stride 64 has at 64 pixels
    found = {name: [gradients(ranks, file, count, False, name, size) for count in (4, 1)] for name in FAMILIES}
    return found | {"wide model": wide_model(ranks, weights)}


@pytest.fixture(scope="module")
def wide_weights(folder):
    """A file with weights of more classes, whose class branches have 80 channels instead of 64."""
    torch.save(nets.build("yolov9_t", 40).state_dict(), folder / "wide.pt")
    return str(folder / "wide.pt")


@pytest.fixture(scope="module")
def real_three(folder, wide_weights, tmp_path_factory):
    """The slow checks by three processes."""
    return run_ranks(3, tmp_path_factory.mktemp("three"), real_models, str(folder / "train.txt"), wide_weights)[2]


@pytest.fixture(scope="module")
def real_one(folder, wide_weights):
    """The slow checks by one process."""
    return real_models(Ranks(), str(folder / "train.txt"), wide_weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_three_processes_equal_those_of_one_for_every_family(real_one, real_three, name):
    for ours, alone in zip(real_three[name], real_one[name], strict=True):
        assert_close(ours, alone)


@pytest.mark.slow
def test_the_weights_of_rank_0_decide_the_width_of_the_model_on_all_ranks(real_three, wide_weights):
    given, found = torch.load(wide_weights), real_three["wide model"]
    assert all(torch.equal(value, given[name]) for name, value in found.items() if ".class_predictors." not in name)
    assert found["head.class_predictors.0.weight"].shape == (2, 80, 1, 1)


def nothing(ranks):
    """The work of ranks that only train."""


def one_epoch(shared, folder, name, model, weights, seed):
    """The constants of an epoch on 24 images of BCCD, with a learning rate of 0."""
    file = folder / "train.txt"
    if not file.exists():
        data = read.read(
            str(shared / "data/bccd/BCCD/ImageSets/Main/train.txt"), "train", read.ReadOptions(bad_boxes="drop")
        )
        rows = [slice(data.starts[i], data.starts[i + 1]) for i in range(24)]
        lines = [
            annotation_line(data.path(i), data.boxes[r], data.labels[r], data.crowd[r]) for i, r in enumerate(rows)
        ]
        file.write_text("\n".join(lines))
        (folder / "classes.txt").write_text("\n".join(data.classes))
    data = {"train": str(file), "val": str(file), "output": str(folder / name), "timeout_minutes": 2}
    sizes = {"image_size": (96, 96), "batch_size": 8, "epochs": 1, "freeze_epochs": 0, "workers": 0, "device": "cpu"}
    rates = {"learning_rate": 0.0, "min_learning_rate": 0.0, "seed": seed}
    return train.Config(**data, **sizes, **rates, model=model, weights=weights and str(shared / weights))


# model, weights, seed
EPOCHS = [("yolox_nano", "weights/yolox_nano.pth", 5), ("yolov9_t", None, 1), ("ppyoloe_s", None, 1)]
EPOCHS += [("yolox_nano", None, 0)]


@pytest.mark.slow
def test_an_epoch_on_real_images_logs_the_same_for_one_and_two_processes(shared, tmp_path):
    """SimOTA and TAL choose among anchor points of almost the same cost, so rounding that grows would show."""
    configs = [[one_epoch(shared, tmp_path, f"{n}-{i}", *e) for i, e in enumerate(EPOCHS)] for n in (1, 2)]
    run_ranks(2, tmp_path, nothing, configs=configs[1])
    for config in configs[0]:
        train.main(config)
    for i, epoch in enumerate(EPOCHS):
        (one,), (two,) = (log_of(only_run(tmp_path / f"{n}-{i}")) for n in (1, 2))
        for column in ("loss", "val_loss"):
            assert float(two[column]) == pytest.approx(float(one[column]), rel=1e-5), (epoch, column)
