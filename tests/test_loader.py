"""datasets/loader.py and datasets/dataset.py: an epoch is a function of its number, for any number of workers and processes."""

import multiprocessing as mp
import pickle
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from datasets import slots
from datasets.annotations import read_annotation_file
from datasets.dataset import PARTNER_REACH, Batch, DetectionDataset, Item, Key, collate, epoch_order
from datasets.images import read_image
from datasets.loader import TrainSampler, ValSampler, build_loader
from datasets.mosaic import Augment
from datasets.transforms import boxes_into, letterbox

HOW = Augment(mosaic=0.5, mixup=0.3, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
SIZE = (64, 96)


def train_sampler(length, batch_size=4, epoch=0, image_size=SIZE, **options):
    sampler = TrainSampler(length, batch_size, image_size, seed=3, **options)
    sampler.epoch = epoch
    return sampler


def keys_of(length, batch_size=4, epoch=0, **options):
    return list(train_sampler(length, batch_size, epoch, **options))


def flat(batches):
    return [key for batch in batches for key in batch]


def data_set(file, **options):
    return DetectionDataset(read_annotation_file(str(file)), "corner", **options)


def assert_same_items(first, second):
    assert first.index == second.index and np.array_equal(first.image, second.image)
    assert np.array_equal(first.boxes, second.boxes) and np.array_equal(first.labels, second.labels)


def assert_same_batches(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- order


def test_the_order_is_a_function_of_seed_and_epoch():
    assert keys_of(23, epoch=5) == keys_of(23, epoch=5)
    orders = [tuple(epoch_order(23, seed, epoch)) for seed, epoch in ((3, 0), (3, 1), (4, 0))]
    assert len(set(orders)) == 3 and all(sorted(order) == list(range(23)) for order in orders)


@pytest.mark.parametrize("length, batch_size", [(20, 4), (21, 4), (7, 7), (1, 1)])
def test_every_picture_comes_once_an_epoch_and_the_last_batch_wraps(length, batch_size):
    batches = keys_of(length, batch_size)
    keys = flat(batches)
    assert [len(batch) for batch in batches] == [batch_size] * -(-length // batch_size)
    assert sorted(k.index for k in keys[:length]) == list(range(length))
    assert [k.index for k in keys[length:]] == [k.index for k in keys[: len(keys) - length]]
    assert [k.position for k in keys] == list(range(len(keys)))  # repeats are drawn differently
    assert {k.size for k in keys} == {SIZE} and {k.epoch for k in keys} == {0}


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_pitfalls_18_and_35_a_batch_larger_than_the_data_set_is_filled(length, accumulate):
    sampler = train_sampler(length, 8, accumulate=accumulate)
    batches = list(sampler)
    assert len(batches) == len(sampler) and len(sampler) % accumulate == 0
    assert [len(batch) for batch in batches] == [8] * len(sampler)
    counts = np.bincount([k.index for k in flat(batches)], minlength=length)
    assert counts.min() >= 1 and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [4, 7])
def test_pitfall_14_shares_of_the_processes_are_disjoint_and_together_the_batch(world, batch_size):
    whole = keys_of(21, batch_size, epoch=2)
    shares = [keys_of(21, batch_size, epoch=2, rank=rank, world=world) for rank in range(world)]
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert sorted(k for part in parts for k in part) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len({len(share) for share in shares}) == 1


def test_multi_scale_sizes_are_multiples_of_32_and_the_same_for_all_processes():
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


def test_without_multi_scale_the_size_stays():
    assert {k.size for k in flat(keys_of(50))} == {SIZE}
    assert {k.size for k in flat(keys_of(50, image_size=(64, 64), multi_scale=0.4))} == {(64, 64)}  # less than a step


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_pitfall_8_validation_pictures_are_divided_without_repeats(world, batch_size):
    samplers = [ValSampler(21, batch_size, SIZE, rank, world) for rank in range(world)]
    for sampler in samplers:
        batches = list(sampler)
        assert len(sampler) == len(batches) and all(1 <= len(batch) <= batch_size for batch in batches)
    assert sorted(k.index for sampler in samplers for batch in sampler for k in batch) == list(range(21))


def test_a_process_without_validation_pictures_has_no_batch():
    sampler = ValSampler(2, 4, SIZE, rank=2, world=3)
    assert len(sampler) == 0 and list(sampler) == []


# --- samples


def test_a_training_sample_is_a_function_of_its_key(painted):
    data = data_set(painted(12), augment=HOW, seed=5)
    key = Key(2, 7, 4, SIZE)
    assert_same_items(data[key], data[key])
    assert_same_items(data[key], pickle.loads(pickle.dumps(data))[key])
    assert data[key].image.shape == (*SIZE, 3) and data[key].index == 4


def test_pitfall_6_epochs_positions_and_seeds_draw_differently(painted):
    alone = replace(HOW, mosaic=0.0, mixup=0.0)  # partners would differ anyway
    data, other = (data_set(painted(5), augment=alone, seed=seed) for seed in (5, 6))
    keys = [Key(2, 7, 3, SIZE), Key(3, 7, 3, SIZE), Key(2, 8, 3, SIZE)]
    images = [data[key].image for key in keys] + [other[keys[0]].image]
    assert len({image.tobytes() for image in images}) == 4


def test_partners_of_a_mosaic_lie_near_in_the_order_of_the_epoch(painted):
    file, read = painted(2), []
    file.write_text(file.read_text(encoding="utf-8") * 1000, encoding="utf-8")

    class Noting(DetectionDataset):
        def read(self, index, *how):
            read.append(index)
            return super().read(index, *how)

    data = Noting(data_set(file).annotations, "corner", replace(HOW, mosaic=1.0, mixup=0.0), seed=3)
    place = np.argsort(epoch_order(2000, 3, 1))  # of a picture in the order
    away = []
    for key in flat(list(train_sampler(2000, 20, epoch=1))[:2]):
        read.clear()
        data[key]
        assert len(read) == 4 and read[0] == key.index
        away += [(place[index] - key.position + 1000) % 2000 - 1000 for index in read[1:]]
    assert max(map(abs, away)) <= PARTNER_REACH and min(away) < -100 and max(away) > 100 and len(set(away)) > 80


def test_plain_epochs_are_letterboxed_single_pictures(painted):
    still = Augment(1.0, 1.0, 0.0, 20, (0.5, 2.0), 0.2, 5, hsv=(0, 0, 0))
    data = data_set(painted(6), augment=still, plain_from=3)
    image = letterbox(read_image(data.annotations.path(5)), SIZE, "corner")[0]
    assert not np.array_equal(data[Key(2, 0, 5, SIZE)].image, image)
    for epoch in (3, 4):
        assert np.array_equal(data[Key(epoch, 0, 5, SIZE)].image, image)


@pytest.mark.parametrize("kind", ["corner", "centre"])
def test_a_validation_sample_is_the_letterboxed_picture_with_its_frame(painted, kind):
    data = DetectionDataset(read_annotation_file(str(painted(4))), kind)
    item = data[Key(0, 3, 3, (64, 128))]
    image, frame = letterbox(read_image(data.annotations.path(3)), (64, 128), kind)
    assert np.array_equal(item.image, image) and item.frame.tolist() == pytest.approx(list(frame))
    boxes, labels, _ = data.annotations.boxes_of(3)
    assert len(boxes) == 3 and item.labels.tolist() == labels.tolist()
    assert np.allclose(item.boxes, boxes_into(boxes, frame))
    item = data[Key(0, 0, 1, (64, 128))]  # one box: its colour is in the middle of it, and gray around
    ((x1, y1, x2, y2),) = item.boxes.astype(int).tolist()
    colour = item.image[..., 2 if item.labels[0] == 0 else 0]
    assert colour[(y1 + y2) // 2, (x1 + x2) // 2] > 250 and (colour > 250).sum() < 1.3 * (x2 - x1) * (y2 - y1)


def test_pitfall_19_boxes_reaching_outside_are_clipped_and_crowd_is_not_trained_on(painted):
    file = painted(2)
    name = "train_1.png"  # 64 x 48
    file.write_text(f"{name} -9,-9,20,20,0 50,30,99,99,1 1,1,9,9,0,1\n", encoding="utf-8")
    sample = data_set(file).read(0)
    assert sample.boxes.tolist() == [[0, 0, 20, 20], [50, 30, 64, 48]] and sample.labels.tolist() == [0, 1]
    assert len(data_set(file).ground_truth()["annotations"]) == 3


# --- batches


def test_collate_pads_boxes_and_labels():
    def item(count, index):
        boxes = np.arange(4 * count, dtype=np.float32).reshape(-1, 4)
        image = np.full((32, 64, 3), index, np.uint8)
        return Item(image, boxes, np.arange(count), index, np.full(5, index, np.float32))

    batch = collate([item(2, 7), item(0, 8), item(3, 9)])
    assert batch.images.shape == (3, 3, 32, 64) and batch.images.dtype == torch.uint8 and batch.size == (32, 64)
    assert batch.labels.tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, 2]] and batch.ids.tolist() == [7, 8, 9]
    assert batch.boxes.shape == (3, 3, 4) and batch.boxes[0, :2].flatten().tolist() == list(range(8))
    assert batch.boxes.dtype == batch.frames.dtype == torch.float32 and not batch.boxes[1].any()
    assert batch.images[:, 0, 0, 0].tolist() == [7, 8, 9] and batch.frames[:, 0].tolist() == [7, 8, 9]
    assert collate([item(0, 1)]).boxes.shape == (1, 1, 4)


def batches_of(data, epochs=(0,), workers=0, rank=0, world=1):
    sampler = train_sampler(len(data), 4, rank=rank, world=world)
    loader, found = build_loader(data, sampler, workers), []
    for epoch in epochs:
        sampler.epoch = epoch
        found += list(loader)
    return found


def test_pitfalls_6_and_36_workers_change_nothing_and_no_epoch_repeats(painted):
    data = data_set(painted(9), augment=HOW)
    alone, helped = (batches_of(data, (0, 1, 0), workers) for workers in (0, 2))
    assert_same_batches(alone, helped)
    assert_same_batches(alone[:3], alone[6:])  # epoch 0 again
    pictures = torch.cat([batch.images for batch in alone[:6]]).flatten(1)
    assert len(torch.unique(pictures, dim=0)) == len(pictures) == 24


def test_pitfalls_6_and_14_processes_draw_the_samples_that_one_would(painted):
    data = data_set(painted(9), augment=HOW)
    whole = batches_of(data, (1,))
    shares = [batches_of(data, (1,), rank=rank, world=2) for rank in range(2)]
    for batch, first, second in zip(whole, *shares, strict=True):
        assert len(first.ids) == len(second.ids) == 2
        for rank, share in enumerate((first, second)):
            assert torch.equal(share.images, batch.images[rank::2]) and torch.equal(share.ids, batch.ids[rank::2])
            most = share.labels.shape[1]
            assert torch.equal(share.labels, batch.labels[rank::2, :most])
            assert torch.equal(share.boxes, batch.boxes[rank::2, :most])


def test_memory_of_a_worker_is_used_again_only_when_nobody_sees_it(monkeypatch):
    monkeypatch.setattr(slots, "get_worker_info", lambda: "a worker")
    monkeypatch.setattr(slots, "_slots", [])

    def pass_on(value, side=8, count=2):
        return slots.received(*slots.sent(slots.stack([np.full((side, side, 3), value, np.uint8)] * count)))

    held = [pass_on(1)[1:, ::2], pass_on(2).numpy()[0], pass_on(3)]
    places = [one.data_ptr() for one in slots._slots]
    fresh = [pass_on(4), pass_on(5)]  # no slot is free
    assert [int(one.flatten()[0]) for one in held + fresh] == [1, 2, 3, 4, 5] and len(slots._slots) == slots.SLOTS
    del held[1]
    assert pass_on(6, 4).data_ptr() == places[1] + slots.HEAD and (held[0] == 1).all()
    large = pass_on(7, 100)  # does not fit: another slot in its place
    assert (large == 7).all() and large.shape == (2, 100, 100, 3) and (held[1] == 3).all()
    assert [one.data_ptr() for one in slots._slots][::2] == places[::2]


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_of_batches_from_workers_stay_what_they_are(painted, workers):
    data, sampler = data_set(painted(9), augment=HOW), train_sampler(9, 2)
    parts = [(batch.images[1, :, ::3], batch.boxes) for batch in build_loader(data, sampler, workers)]
    for (images, boxes), batch in zip(parts, build_loader(data, sampler, 0), strict=True):
        assert torch.equal(images, batch.images[1, :, ::3]) and torch.equal(boxes, batch.boxes)


@pytest.mark.parametrize("pictures", [1, 2, 3])
def test_pitfall_18_one_to_three_pictures_are_enough(painted, pictures):
    data = data_set(painted(pictures + 1), augment=Augment(1.0, 1.0, 0.5, 5, (0.5, 1.5), 0.1, 2))
    data = DetectionDataset(data.annotations.select(range(1, pictures + 1)), "corner", data.augment)  # with boxes
    (batch,) = batches_of(data)
    assert batch.images.shape == (4, 3, *SIZE) and (batch.labels >= 0).any()
    boxes = batch.boxes[batch.labels >= 0]
    assert (boxes[:, 2:] > boxes[:, :2]).all() and boxes.min() >= 0 and boxes[:, 2].max() <= SIZE[1]


def test_pitfall_35_validation_drops_nothing(painted):
    data = data_set(painted(5))
    found = list(build_loader(data, ValSampler(5, 2, SIZE), 0))
    assert [batch.ids.tolist() for batch in found] == [[0, 1], [2, 3], [4]]


def test_batches_go_to_a_device_but_their_ids_stay():
    batch = Batch(*(torch.zeros(2, 3) for _ in range(5))).to(torch.device("meta"))
    assert {x.device.type for x in (batch.images, batch.boxes, batch.labels, batch.frames)} == {"meta"}
    assert batch.ids.device.type == "cpu"


def test_pitfall_37_workers_started_afresh_as_on_windows_and_macos_give_the_same_batches(painted):
    data = data_set(painted(5), augment=HOW)
    loader = build_loader(data, train_sampler(len(data)), 1)
    loader.multiprocessing_context = "spawn"
    assert_same_batches(list(loader), batches_of(data))


def test_an_epoch_is_gone_on_with_at_any_batch_without_reading_what_was_done(painted):
    data = data_set(painted(9), augment=HOW)
    whole = batches_of(data)
    for start in range(len(whole) + 1):
        sampler = train_sampler(len(data), 4)
        sampler.start = start
        assert_same_batches(list(build_loader(data, sampler, 0)), whole[start:])
        assert len(sampler) == len(whole)


def takers_of_sigterm(pid: int) -> int:
    """Threads of the process that do not block it: the one that waits for it, while it does."""
    masks = [
        re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())[1] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return sum(not int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="this system does not say who sent a signal")
def test_workers_outlive_a_sigterm_to_all_but_not_one_from_their_process(painted):
    torch.set_num_threads(torch.get_num_threads())  # from here on torch starts threads of its own in the workers
    data = data_set(painted(9), augment=HOW)
    loader, others = build_loader(data, train_sampler(len(data), 1), 2), mp.active_children()
    batches = iter(loader)
    next(batches), next(batches)  # one of each: both are up
    workers = [child for child in mp.active_children() if child not in others]
    assert all(takers_of_sigterm(worker.pid) <= 1 for worker in workers)
    for worker in workers:
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)  # from elsewhere, as a batch system does
    assert len(list(batches)) == 7 and all(worker.is_alive() for worker in workers) and len(workers) == 2
    for worker in workers:
        worker.terminate()  # as the end of the program does
        worker.join(10)
    assert not any(worker.is_alive() for worker in workers)
