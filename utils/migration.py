"""Constants of other programs and their names here. The tables of docs/migrate.md have the same contents."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

SCRIPTS = ("train.py", "evaluate.py", "predict.py", "export.py")
YES_NO = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
NEAR = 0.75  # least similarity of a misspelled name: epoch and epochs, but not degrees and merge
LONGEST = 50  # characters of a name that a message repeats
FIRST_WORD = 4  # characters from which the first word of a name stands for the whole: warmup for warmup_epochs


class Here(NamedTuple):
    """What takes the place of a constant of another program."""

    lines: tuple[
        str, ...
    ] = ()  # as a user types them; {}: the given value. The first one whose constant the script has is shown
    note: str = ""  # what differs, or why there is no such constant
    values: Mapping[str, str] = {}  # values that have another name here; all others stay as they are

    def written(self, given: str) -> list[str]:
        """Returns the lines with the value that the user gave."""
        word = YES_NO.get(given.lower(), given.lower())
        return [line.replace("{}", self.values.get(word, given)) for line in self.lines]


PER_64 = "for 64 images per step; a step scales it with its number of images"
EVERY_EPOCH = "last.pt is saved after every epoch, best.pt after the best one"
OWN = "extra_augment in train.py is the place for augmentations of your own"
DETECTION = "boxes only, no masks and no keypoints"

FREEZE_UNFREEZE = {  # repositories in which the backbone is frozen first
    "phi": Here(("model=yolox_{}",), "or yolov9_t, _s, _m, _c, ppyoloe_s, _m, _l, _x, picodet_s, _m, _l"),
    "input_shape": Here(("image_size={}",)),
    "model_path": Here(("weights={}", "checkpoint={}")),
    "pretrained": Here(("weights={}",), values={"true": "coco", "false": "none"}),
    "Freeze_Train": Here(("freeze_epochs={}",), "a number of epochs", {"true": "10", "false": "0"}),
    "Freeze_Epoch": Here(("freeze_epochs={}",)),
    "UnFreeze_Epoch": Here(("epochs={}",), "frozen epochs included"),
    "Freeze_batch_size": Here(("freeze_batch_size={}",)),
    "Unfreeze_batch_size": Here(("batch_size={}",)),
    "Init_Epoch": Here(("resume=true",), "the checkpoint holds the epoch"),
    "Init_lr": Here(("learning_rate={}",), PER_64),
    "Min_lr": Here(("min_learning_rate={}",), PER_64),
    "optimizer_type": Here(("optimizer={}",)),
    "lr_decay_type": Here(("schedule={}",), values={"cos": "cosine"}),
    "momentum": Here(note="it is 0.9"),
    "mosaic_prob": Here(("mosaic={}",)),
    "mixup_prob": Here(("mixup={}",)),
    "special_aug_ratio": Here(("no_aug_epochs=VALUE",), "the number of epochs at the end"),
    "label_smoothing": Here(note="class targets are soft already"),
    "save_period": Here(("save_every={}",), EVERY_EPOCH),
    "eval_flag": Here(("evaluate_every={}",), "a number of epochs", {"true": "1"}),
    "eval_period": Here(("evaluate_every={}",)),
    "classes_path": Here(("classes={}",)),
    "train_annotation_path": Here(("train={}",)),
    "val_annotation_path": Here(("val={}", "data={}")),
    "num_workers": Here(("workers={}",)),
    "Cuda": Here(("device={}",), values={"true": "cuda", "false": "cpu"}),
    "distributed": Here(note="torchrun starts several processes, see docs/distributed.md"),
    "fp16": Here(("amp={}", "half={}"), values={"true": "fp16", "false": "none"}),
    "save_dir": Here(("output={}",)),
    "video": Here(("source={}",)),
    "fps": Here(("speed=true",)),
    "export_onnx": Here(note="export.py writes ONNX"),
    "simplify": Here(note="the exported file is simplified already"),
    "onnx_save_path": Here(("output={}",)),
}

ULTRALYTICS = {
    "data": Here(("train={}", "data={}", "source={}")),
    "imgsz": Here(("image_size={}",), "height,width"),
    "batch": Here(("batch_size={}",), values={"-1": "0"}),
    "lr0": Here(("learning_rate={}",), PER_64),
    "lrf": Here(("min_learning_rate=VALUE",), "a learning rate, not a fraction of the first one; " + PER_64),
    "momentum": FREEZE_UNFREEZE["momentum"],
    "cos_lr": Here(("schedule={}",), values={"true": "cosine", "false": "constant"}),
    "nbs": Here(note="learning_rate is " + PER_64),
    "warmup_momentum": Here(note="momentum is 0.9 from the first step on"),
    "warmup_bias_lr": Here(note="all parameters have the same warm-up, see warmup_epochs"),
    "freeze": Here(("freeze_epochs=VALUE",), "the whole backbone for a number of epochs, not a number of layers"),
    "pretrained": FREEZE_UNFREEZE["pretrained"],
    "project": Here(("output={}",)),
    "exist_ok": Here(note="every run has a new folder"),
    "save_period": FREEZE_UNFREEZE["save_period"],
    "close_mosaic": Here(("no_aug_epochs={}",), "last epochs, also without affine and mixup"),
    "degrees": Here(("rotation={}",)),
    "translate": Here(note="0.1, with scale= and rotation="),
    "shear": Here(note="0.4 times rotation="),
    "perspective": Here(note=OWN),
    "fliplr": Here(("flip={}",)),
    "flipud": Here(("flip_vertical={}",)),
    "hsv_h": Here(("hsv=5,30,30",), "hue of 180, saturation and value of 255"),
    "hsv_s": Here(("hsv=5,30,30",), "hue of 180, saturation and value of 255"),
    "hsv_v": Here(("hsv=5,30,30",), "hue of 180, saturation and value of 255"),
    "copy_paste": Here(note=OWN),
    "cutmix": Here(note=OWN),
    "erasing": Here(note=OWN),
    "auto_augment": Here(note=OWN),
    "bgr": Here(note=OWN),
    "box": Here(note="nets/losses.py has the weights of the losses"),
    "cls": Here(note="nets/losses.py has the weights of the losses"),
    "dfl": Here(note="nets/losses.py has the weights of the losses"),
    "dropout": Here(note="the models have no dropout"),
    "cache": Here(note="decoded images are cached, see THAW_CACHE_GB in docs/constants.md"),
    "rect": Here(("image_size=VALUE",), "height,width of all images; rectangles are fine"),
    "single_cls": Here(("merge=dog:animal,cat:animal",), "classes that become another one"),
    "fraction": Here(note="give a data set with fewer images, see python -m tools.convert"),
    "time": Here(("hours={}",), "at most epochs= epochs"),
    "deterministic": Here(note="on a CPU the bits are the same; a GPU rounds differently in each run"),
    "nc": Here(("classes=FILE",), "only if the data do not name their classes"),
    "names": Here(("classes={}",)),
    "conf": Here(("confidence={}",)),
    "iou": Here(("nms_iou={}",)),
    "max_det": Here(("max_detections={}",)),
    "agnostic_nms": Here(("class_agnostic={}",)),
    "augment": Here(note="there is no test-time augmentation; tile= helps with small objects"),
    "save_json": Here(note="detections.json is always written"),
    "save_txt": Here(("labels=yolo",)),
    "save_conf": Here(note="labels=coco and labels=labelstudio write the scores"),
    "save_crop": Here(("crops={}",)),
    "visualize": Here(note="there are no heat maps"),
    "plots": Here(note="curves and images are always drawn"),
    "vid_stride": Here(("every={}",), "frames of a video"),
    "tracker": Here(("track=true",), "by ByteTrack of the package trackers"),
    "format": Here(note="export.py writes ONNX; docs/deploy.md has the commands for TensorRT, OpenVINO and ncnn"),
    "dynamic": Here(("dynamic_size={}",), "any height and width; batch_size=0: any number of images"),
    "simplify": FREEZE_UNFREEZE["simplify"],
    "opset": Here(note="the opset is 18"),
    "nms": Here(note="NMS is inside the exported file; outputs=raw leaves it out"),
    "workspace": Here(note="an option of trtexec, see docs/deploy.md"),
    "task": Here(note=DETECTION),
    "mode": Here(note="train.py, evaluate.py, predict.py and export.py are separate scripts"),
    "cfg": Here(note="edit the constants at the top of the script, or write name=value"),
    "overlap_mask": Here(note=DETECTION),
    "mask_ratio": Here(note=DETECTION),
    "retina_masks": Here(note=DETECTION),
}

OTHER_SCRIPTS = {  # names of one script of this program in another one
    "data": Here(("train={}", "data={}", "source={}")),
    "train": Here(("data={}",)),
    "val": Here(("data={}",)),
    "source": Here(("data={}", "images={}")),
    "images": Here(("source={}", "data={}")),
    "weights": Here(("checkpoint={}",)),
    "checkpoint": Here(("weights={}",)),
    "split": Here(("source_split={}",)),
    "source_split": Here(("split={}",)),
    "size": Here(("image_size={}",)),
    "lr": Here(("learning_rate={}",), PER_64),
}


def unknown_constant(name: str, given: str, names: Collection[str]) -> str:
    """Returns what to write instead of `name=given` in a script that has the constants `names`, and not this one."""
    word = name.lower().replace("-", "_")
    found = [
        table[key] for table in (OTHER_SCRIPTS, FREEZE_UNFREEZE, ULTRALYTICS) for key in table if key.lower() == word
    ]
    missing = f"there is no constant {name if len(name) <= LONGEST else name[:LONGEST] + ' ...'!r}"
    for here in found:
        for line in here.written(given):
            if constant_in(line) in names:
                return f"{missing}; write {line}" + (f" ({here.note})" if here.note else "")
    near = [word] if word in names else [] if found else similar(word, names)
    if near:
        return f"{missing}; did you mean {' or '.join(f'{other}={given}' for other in near)}?"
    for line in (f"{word}={given}", *(line for here in found for line in here.written(given))):
        if scripts := scripts_with(constant_in(line)):
            return f"{missing} here; {line} is for {', '.join(scripts)}"
    notes = [here.note for here in found if not here.lines]
    return f"{missing}: {notes[0]}" if notes else f"{missing}; --help lists all of them"


def constant_in(line: str) -> str:
    """Returns the name in `name=value`."""
    return line.partition("=")[0]


def similar(word: str, names: Iterable[str]) -> list[str]:
    """Returns the names that begin with the word `word`, or else those that are similar to it."""
    names = list(names)
    longer = [name for name in names if len(word) >= FIRST_WORD and name.startswith(word + "_")]
    return longer or difflib.get_close_matches(word, names, n=2, cutoff=NEAR)


def scripts_with(constant: str) -> list[str]:
    """Returns the scripts that have a constant."""
    root = Path(__file__).parents[1]
    return [name for name in SCRIPTS if (root / name).is_file() and constant in constants_of(root / name)]


def constants_of(script: Path) -> set[str]:
    """Returns the names of the constants of a script, read from the class Config in its source code."""
    body = re.search(r"^class Config\b.*?:\n(.*?)^\S", script.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^    (\w+): .* = ", body[1], re.MULTILINE)) if body else set()
