"""Samplers and loaders: an epoch is a function of its number, for any number of workers and ranks."""

import multiprocessing as mp
import re
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from files import read_annotation_file

from datasets import cache, shared_memory
from datasets.dataset import DetectionDataset, epoch_order
from datasets.loader import Loader, TrainSampler, ValSampler, build_loader, init_worker
from datasets.mosaic import Augment
from utils.images import ImageError

AUGMENT = Augment(mosaic=0.5, mixup=0.3, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
SIZE = (64, 96)


def train_sampler(length, batch_size=4, epoch=0, image_size=SIZE, **options):
    sampler = TrainSampler(length, batch_size, image_size, seed=3, **options)
    sampler.epoch = epoch
    return sampler


def keys_of(length, batch_size=4, epoch=0, **options):
    return list(train_sampler(length, batch_size, epoch, **options))


def flat(batches):
    return [key for batch in batches for key in batch]


def dataset_of(file):
    return DetectionDataset(read_annotation_file(str(file)), "corner", AUGMENT)


def assert_same_batches(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))


def batches_of(data, epochs=(0,), workers=0, rank=0, world=1):
    sampler = train_sampler(len(data), 4, rank=rank, world=world)
    loader, found = build_loader(data, sampler, workers), []
    for epoch in epochs:
        sampler.epoch = epoch
        found += list(loader)
    return found


# ---- order


def test_the_order_is_a_function_of_seed_and_epoch():
    assert keys_of(23, epoch=5) == keys_of(23, epoch=5)
    orders = [tuple(epoch_order(23, seed, epoch)) for seed, epoch in ((3, 0), (3, 1), (4, 0))]
    assert len(set(orders)) == 3 and all(sorted(order) == list(range(23)) for order in orders)


@pytest.mark.parametrize("length, batch_size", [(20, 4), (21, 4), (7, 7), (1, 1)])
def test_an_epoch_has_every_image_once_and_the_last_batch_wraps_around(length, batch_size):
    batches = keys_of(length, batch_size)
    keys = flat(batches)
    assert [len(batch) for batch in batches] == [batch_size] * -(-length // batch_size)
    assert sorted(k.index for k in keys[:length]) == list(range(length))
    assert [k.index for k in keys[length:]] == [k.index for k in keys[: len(keys) - length]]
    assert [k.position for k in keys] == list(range(len(keys)))  # repeated images are augmented differently
    assert {k.size for k in keys} == {SIZE} and {k.epoch for k in keys} == {0}


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_larger_than_the_data_set_is_filled(length, accumulate):
    sampler = train_sampler(length, 8, accumulate=accumulate)
    batches = list(sampler)
    assert sampler.samples == len(flat(batches))
    assert len(batches) == len(sampler) and len(sampler) % accumulate == 0
    assert [len(batch) for batch in batches] == [8] * len(sampler)
    counts = np.bincount([k.index for k in flat(batches)], minlength=length)
    assert counts.min() >= 1 and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [4, 7])
def test_the_shards_of_the_ranks_make_up_the_global_batch(world, batch_size):
    whole = keys_of(21, batch_size, epoch=2)
    ranks = [keys_of(21, batch_size, epoch=2, rank=rank, world=world) for rank in range(world)]
    for step, batch in enumerate(whole):
        shards = [rank[step] for rank in ranks]
        assert sorted(k for shard in shards for k in shard) == sorted(batch)
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert len({len(rank) for rank in ranks}) == 1


def test_multi_scale_sizes_are_multiples_of_32_and_the_same_on_all_ranks():
    sizes = set()
    for epoch in range(4):
        ranks = [train_sampler(300, 4, epoch, (416, 640), multi_scale=0.3, rank=r, world=2) for r in range(2)]
        found = [[{k.size for k in batch} for batch in sampler] for sampler in ranks]
        assert found[0] == found[1] and all(len(one) == 1 for one in found[0])
        by_step = [next(iter(one)) for one in found[0]]
        assert all(len(set(by_step[i : i + 10])) == 1 for i in range(0, len(by_step), 10))
        sizes |= set(by_step)
    assert len(sizes) > 4 and all(h % 32 == w % 32 == 0 for h, w in sizes)
    assert all(0.65 * 640 <= w <= 1.35 * 640 and abs(h / w - 416 / 640) < 0.05 for h, w in sizes)


def test_multi_scale_leaves_more_than_one_pixel_of_the_last_feature():
    sizes = {k.size for k in flat(keys_of(300, image_size=(64, 96), multi_scale=1.0))}
    assert min(map(min, sizes)) == 64 and len(sizes) > 2  # batch norms need two values, also of a single image
    for narrow in ((32, 64), (64, 32), (32, 128)):
        sizes = {k.size for k in flat(keys_of(300, image_size=narrow, multi_scale=1.0))}
        assert min(height * width for height, width in sizes) == 32 * 64 and len(sizes) > 1
    for size, least in (((96, 128), 96), ((64, 160), 64)):  # of a model with a stride of 64
        sizes = {k.size for k in flat(keys_of(300, image_size=size, multi_scale=1.0, coarsest=64))}
        assert min(map(min, sizes)) == least and len(sizes) > 1
        assert min(-(-height // 64) * -(-width // 64) for height, width in sizes) >= 2


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_validation_has_every_image_once_over_all_ranks(world, batch_size):
    samplers = [ValSampler(21, batch_size, SIZE, rank, world) for rank in range(world)]
    for sampler in samplers:
        batches = list(sampler)
        assert len(sampler) == len(batches) and all(1 <= len(batch) <= batch_size for batch in batches)
    assert sorted(k.index for sampler in samplers for batch in sampler for k in batch) == list(range(21))
    empty = ValSampler(2, 4, SIZE, rank=2, world=3)
    assert len(empty) == 0 and list(empty) == []


# ---- batches


@pytest.mark.shared_memory
def test_workers_do_not_change_a_batch_and_epochs_differ(painted):
    data = dataset_of(painted(9))
    alone, workers = (batches_of(data, (0, 1, 0), count) for count in (0, 2))
    assert_same_batches(alone, workers)
    assert_same_batches(alone[:3], alone[6:])  # epoch 0 again
    images = torch.cat([batch.images for batch in alone[:6]]).flatten(1)
    assert len(torch.unique(images, dim=0)) == len(images) == 24


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "spawn" else ())
        for name in sorted({"fork", "spawn"} & set(mp.get_all_start_methods()))
    ],
)
@pytest.mark.shared_memory
def test_workers_notice_that_the_no_augmentation_epochs_begin_earlier(painted, method):
    """A time limit changes the number of epochs while the workers run."""
    data = dataset_of(painted(5))
    shared = torch.tensor(9).share_memory_()
    loader = build_loader(replace(data, no_aug_from=shared), train_sampler(len(data)), 1)
    loader.multiprocessing_context = method
    assert_same_batches(list(loader), batches_of(data))
    next(iter(loader))  # left after a batch, as the steps that are measured leave it
    shared.fill_(0)
    assert_same_batches(list(loader), batches_of(replace(data, no_aug_from=0)))


def test_ranks_draw_the_samples_that_one_process_would(painted):
    data = dataset_of(painted(9))
    whole = batches_of(data, (1,))
    ranks = [batches_of(data, (1,), rank=rank, world=2) for rank in range(2)]
    for batch, first, second in zip(whole, *ranks, strict=True):
        assert len(first.ids) == len(second.ids) == 2
        for rank, shard in enumerate((first, second)):
            assert torch.equal(shard.images, batch.images[rank::2]) and torch.equal(shard.ids, batch.ids[rank::2])
            most = shard.labels.shape[1]
            assert torch.equal(shard.labels, batch.labels[rank::2, :most])
            assert torch.equal(shard.boxes, batch.boxes[rank::2, :most])


@pytest.mark.shared_memory
def test_an_epoch_that_has_begun_is_loaded_while_the_program_does_something_else(painted, monkeypatch):
    """The batches are the same, also those of the epochs after it."""
    data = dataset_of(painted(6))
    expected, read = batches_of(data, (0, 1, 2)), mp.Value("i", 0)

    def counted(self, key, original=DetectionDataset.__getitem__):
        read.value += 1
        return original(self, key)

    monkeypatch.setattr(DetectionDataset, "__getitem__", counted)
    sampler = train_sampler(len(data), 4)
    loader, found = build_loader(data, sampler, workers=1), []
    for epoch in range(3):
        found += list(loader)
        before, sampler.epoch = read.value, epoch + 1
        loader.begin()
        end = time.monotonic() + 60
        while read.value == before and time.monotonic() < end:
            time.sleep(0.01)
        assert read.value > before
    assert_same_batches(found, expected)


@pytest.mark.shared_memory
def test_batches_from_workers_stay_valid_after_the_next_ones(painted):
    data, sampler = dataset_of(painted(9)), train_sampler(9, 2)
    parts = [(batch.images[1, :, ::3], batch.boxes) for batch in build_loader(data, sampler, 2)]
    for (images, boxes), batch in zip(parts, build_loader(data, sampler, 0), strict=True):
        assert torch.equal(images, batch.images[1, :, ::3]) and torch.equal(boxes, batch.boxes)


@pytest.mark.shared_memory
@pytest.mark.parametrize("workers", [0, 1])
def test_kept_batches_are_loaded_once_and_stay_equal(painted, monkeypatch, workers):
    """Also if the first iteration ends early. The worker has ended after the first whole one."""
    data, sampler, read = dataset_of(painted(5)), ValSampler(5, 2, SIZE), mp.Value("i", 0)
    expected = list(build_loader(data, sampler, 0))

    def counted(self, key, original=DetectionDataset.__getitem__):
        read.value += 1
        return original(self, key)

    monkeypatch.setattr(DetectionDataset, "__getitem__", counted)
    pixels, received = shared_memory._pixels, []  # of the workers

    def noted(*args):
        received.append(weakref.ref(array := pixels(*args)))
        return array

    monkeypatch.setattr(shared_memory, "_pixels", noted)
    loader = build_loader(data, sampler, workers, keeps=True)
    next(iter(loader))
    assert_same_batches(list(loader), expected)
    before = read.value
    assert_same_batches([*loader, *loader], [*expected, *expected])
    assert read.value == before and not mp.active_children()
    assert bool(received) == bool(workers) and all(array() is None for array in received)  # the small memory is free


@pytest.mark.parametrize(("free", "fit"), [(16, True), (15, False)])
def test_batches_stay_in_memory_if_they_take_a_sixteenth_of_it(monkeypatch, free, fit):
    monkeypatch.setattr(cache, "free_memory", lambda: float(free))
    assert cache.fits_in_memory(1.0) is fit


def test_an_epoch_resumes_at_any_batch(painted):
    data = dataset_of(painted(9))
    whole = batches_of(data)
    for start in range(len(whole) + 1):
        sampler = train_sampler(len(data), 4)
        sampler.start = start
        assert_same_batches(list(build_loader(data, sampler, 0)), whole[start:])
        assert len(sampler) == len(whole)


# ---- signals


def threads_with_sigterm(pid: int) -> int:
    """Number of threads of the process that do not block SIGTERM: the one that waits for it, while it waits."""
    masks = [
        re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return sum(not int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="this system does not report the sender of a signal")
@pytest.mark.shared_memory
def test_workers_ignore_sigterm_except_from_their_parent(painted):
    torch.set_num_threads(torch.get_num_threads())  # from here on torch starts more threads in the workers
    data = dataset_of(painted(9))
    loader, others = build_loader(data, train_sampler(len(data), 1), 2), mp.active_children()
    batches = iter(loader)
    next(batches), next(batches)  # one of each worker: both have started
    workers = [child for child in mp.active_children() if child not in others]
    assert all(threads_with_sigterm(worker.pid) <= 1 for worker in workers)
    for worker in workers:
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):  # from another process: a batch system, Ctrl-C, a closed terminal
            subprocess.run(
                [sys.executable, "-c", f"import os, signal; os.kill({worker.pid}, signal.{name})"], check=True
            )
    assert len(list(batches)) == 7 and all(worker.is_alive() for worker in workers) and len(workers) == 2
    for worker in workers:
        worker.terminate()  # as the end of the program does
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)


class Failing(torch.utils.data.Dataset):
    """Raises an error at the third item."""

    def __init__(self, error: Exception):
        self.error = error

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise self.error
        return index


@pytest.mark.parametrize(
    "error", [ImageError("a.png: cut off"), ValueError("one: two\nthree"), OSError(5, "I/O", "b.png")]
)
@pytest.mark.shared_memory
def test_an_error_has_the_same_message_with_and_without_workers(error):
    for options in ({}, {"num_workers": 1, "worker_init_fn": init_worker}):
        batches = iter(Loader(Failing(error), batch_sampler=[[0], [1], [2]], **options))
        assert [int(next(batches)) for _ in range(2)] == [0, 1]
        with pytest.raises(type(error)) as raised:
            next(batches)
        assert type(raised.value) is type(error) and str(raised.value) == str(error)
