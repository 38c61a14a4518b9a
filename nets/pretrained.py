"""Official weights: addresses and digests, and matching of classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from utils.text import clean_name

HOST = "https://github.com"
PADDLE_HOST, PADDLE_BUCKETS = "https://paddledet.bj.bcebos.com", "https://bj.bcebos.com"  # of PaddleDetection
YOLOX_RELEASE = "Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
YOLOV9_RELEASE = "MultimediaTechLab/YOLO/releases/download/v1.0-alpha"


class OfficialFile(NamedTuple):
    """A released weights file."""

    path: str  # below `host`
    sha256: str | None = None  # None: unknown, see `weights.pin`
    image_size: tuple[int, int] = (640, 640)  # height and width of the training and of the published AP
    ap: float = 0.0  # published AP50-95 on COCO val2017, 0 to 1
    host: str | None = None  # None: HOST


YOLOX_RELEASED = {  # size of the model -> sides of the input in the training, published AP, SHA-256
    "nano": (416, 0.258, "cd28f55fbbc1829f99d9ac9b38a16d259a22889739c8728ea877610201feff7b"),
    "tiny": (416, 0.328, "9de513de589ac98bb92d3bca53b5af7b9acfa9b0bacb831f7999d0f7afaee8f0"),
    "s": (640, 0.405, "f55ded7181e1b0c13285c56e7790b8f0e8f8db590fe4edb37f0b7f345c913a30"),
    "m": (640, 0.469, "60076992b32da82951c90cfa7bd6ab70eba9eda243e08b940a396f60ac2d19b6"),
    "l": (640, 0.497, "1e6b7fa6240375370b2a8a8eab9066b3cdd43fd1d0bfa8d2027fd3a51def2917"),
    "x": (640, 0.511, "5652330b6ae860043f091b8f550a60c10e1129f416edfdb65c259be6caf355cf"),
}
YOLOX_FILES = {
    size: OfficialFile(f"{YOLOX_RELEASE}/yolox_{size}.pth", sha256, (side, side), ap)
    for size, (side, ap, sha256) in YOLOX_RELEASED.items()
}
YOLOV9_RELEASED = {"t": 0.383, "s": 0.468, "m": 0.514, "c": 0.530}  # size of the model -> published AP
YOLOV9_FILES = {size: OfficialFile(f"{YOLOV9_RELEASE}/v9-{size}.pt", ap=ap) for size, ap in YOLOV9_RELEASED.items()}
PPYOLOE_RELEASED = {"s": 0.437, "m": 0.498, "l": 0.529, "x": 0.547}  # size of the model -> published AP
PPYOLOE_FILES = {
    size: OfficialFile(f"models/ppyoloe_plus_crn_{size}_80e_coco.pdparams", ap=ap, host=PADDLE_HOST)
    for size, ap in PPYOLOE_RELEASED.items()
}
PPYOLOE_OBJECTS365 = {
    size: OfficialFile(
        f"v1/paddledet/models/pretrained/ppyoloe_crn_{size}_obj365_pretrained.pdparams", host=PADDLE_BUCKETS
    )
    for size in PPYOLOE_RELEASED
}
PICODET_RELEASED = {  # size of the model -> side of the input -> published AP
    "s": {320: 0.291, 416: 0.325},
    "m": {320: 0.344, 416: 0.375},
    "l": {320: 0.361, 416: 0.394, 640: 0.426},
}
PICODET_BY_SIDE = {
    size: tuple(
        OfficialFile(f"models/picodet_{size}_{side}_coco_lcnet.pdparams", None, (side, side), ap, PADDLE_HOST)
        for side, ap in sides.items()
    )
    for size, sides in PICODET_RELEASED.items()
}
PICODET_FILES = {size: files[-1] for size, files in PICODET_BY_SIDE.items()}  # of the largest input

COCO_CLASSES = tuple(
    """person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop
    sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack,
    umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
    skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple,
    sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining
    table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink,
    refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush""".replace("\n   ", "").split(", ")
)
UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # the 91 ids of COCO's paper have gaps
COCO_CATEGORY_IDS = tuple(i for i in range(1, 91) if i not in UNUSED_IDS)


class PretrainedError(ValueError):
    """Weights that cannot be downloaded or used. The message names the file or address and the fix."""


def nearest(files: Sequence[OfficialFile], image_size: tuple[int, int]) -> OfficialFile:
    """Returns the file whose training input has the most similar area to this height and width."""
    return min(files, key=lambda file: abs(math.log(math.prod(file.image_size) / math.prod(image_size))))


def shared_classes(from_names: Sequence[str], to_names: Sequence[str]) -> dict[int, int]:
    """Index in `to_names` -> index in `from_names`, for names in both. Ignores case, and treats - and _ as spaces."""

    def normalize(name: str) -> str:
        return clean_name(name).casefold().replace("_", " ").replace("-", " ")

    known = {normalize(name): i for i, name in reversed(list(enumerate(from_names)))}
    return {i: known[normalize(name)] for i, name in enumerate(to_names) if normalize(name) in known}


def adapt_classes(
    state: Mapping[str, Tensor], from_names: Sequence[str] | None, to_names: Sequence[str], model: nn.Module
) -> tuple[dict[str, Any], dict[str, int]]:
    """Reorders the rows of the class predictors in a state dict from classes `from_names` to the model's classes `to_names`.

    Classes that only `to_names` has keep the freshly initialized rows of `model`. The second dict says how many values these
    rows have, by tensor. If `from_names` is None, the rows stay unchanged: they fit only a model with as many classes.
    """
    if from_names is None:
        return dict(state), {}
    pairs = shared_classes(from_names, to_names)
    adapted, fresh, own = dict(state), {}, model.state_dict()
    for name, rows in state.items():
        fits = name in own and rows.shape == (len(from_names), *own[name].shape[1:])
        if ".class_predictors." in name and fits:
            adapted[name] = own[name].detach().cpu().clone()
            for to, source in pairs.items():
                adapted[name][to] = rows[source]
            fresh[name] = (len(to_names) - len(pairs)) * rows[0].numel()
    return adapted, fresh
