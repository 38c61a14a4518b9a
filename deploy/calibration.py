"""Reads the data for an 8-bit export: training images for the calibration, and validation data that measure the mAP."""

from dataclasses import replace

import numpy as np

from datasets.check_images import check_images
from datasets.dataset import DetectionDataset
from datasets.errors import DataError, logged
from datasets.formats import read as formats
from datasets.formats.options import options_of
from datasets.loader import Loader, ValSampler, build_loader
from datasets.store import Annotations
from deploy.load import Loaded
from utils.images import letterbox

IMAGES = 50  # at most, on which the ranges of the activations are measured
BATCH_SIZE = 8  # of the loader; exported files choose their own


def read(train: str | None, val: str | None, loaded: Loaded) -> tuple[list[np.ndarray], Loader]:
    """Returns training images, letterboxed for the model: uint8 [H, W, 3], and a loader of the validation data.

    `train` and `val` are the sources of the data; None: those of the training run. Raises DataError.
    """
    config, size, letterbox_kind = loaded.config, loaded.image_size, loaded.model.letterbox
    train, val = train or config.get("train"), val or config.get("val")
    if not train or not val:
        raise DataError("int8=true needs training images and validation data with boxes: give train= and val=")
    data, notes = check_images(read_split(val, "val", loaded), options_of(config, loaded.classes))
    data, outside = data.with_range(loaded.value_range)
    for note in notes + outside:
        print(logged(note))
    train_data = replace(read_split(train, "train", loaded), value_range=loaded.value_range)
    images = [letterbox(image, size, letterbox_kind)[0] for image in calibration_images(train_data)]
    sampler = ValSampler(len(data), BATCH_SIZE, size)
    return images, build_loader(DetectionDataset(data, letterbox_kind), sampler, workers=0)


def read_split(source: str, split: str, loaded: Loaded) -> Annotations:
    """Reads a split with the options of the training run. Raises DataError if it has no box of the classes of the model."""
    config = loaded.config
    if source != config.get(split):  # other images than in training
        config = config | {"image_root": None}
    data = formats.read(source, split, options_of(config, loaded.classes))
    if not len(data.boxes):
        raise DataError(f"{split}={source}: no boxes of the classes of the model in its split {split!r}")
    return data


def calibration_images(data: Annotations) -> list[np.ndarray]:
    """Reads up to IMAGES images, evenly spaced over the data. Raises ImageError."""
    return [data.image(index) for index in range(0, len(data), -(-len(data) // IMAGES))]
