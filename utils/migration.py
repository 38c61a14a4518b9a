"""Constants of other programs and their names here. The tables of docs/migrate.md have the same contents."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from utils.text import brief

SCRIPTS = ("train.py", "evaluate.py", "predict.py", "export.py")
YES_NO = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
NEAR = 0.75  # least similarity of a misspelled name: epoch and epochs, but not degrees and merge
FIRST_WORD = 4  # characters from which the first word of a name stands for the whole: warmup for warmup_epochs


class Here(NamedTuple):
    """What takes the place of a constant of another program."""

    lines: tuple[str, ...] = ()  # {}: the given value, VALUE: one to choose; the first one that the script has is shown
    note: str = ""  # what differs, or why there is no such constant
    values: Mapping[str, str] = {}  # values that have another name here; all others stay as they are

    def written(self, given: str) -> list[str]:
        """Returns the lines with the value that the user gave."""
        return [line.replace("{}", self.value(given) or given) for line in self.lines]

    def value(self, given: str) -> str | None:
        """Returns the name here of a value that has another one, None of all others."""
        word = given.lower()
        if word.startswith("."):
            word = f"0{word}"
        return self.values.get(word, self.values.get(YES_NO.get(word, "")))


PER_64 = "for 64 images per step, which a step scales; without it, a fitting one is chosen"
NOT_A_FRACTION = f"a learning rate, not a fraction of the first one; {PER_64}"
COSINE = {"true": "cosine", "false": "cosine", "cos": "cosine", "linear": "cosine", "yoloxwarmcos": "cosine"}

NAMES = {  # names of other trainers, and of one script of this program in another one -> what takes their place
    # repositories in which the backbone is frozen first
    "phi": Here(("model=yolox_{}",), "or yolov9_t, _s, _m, _c, ppyoloe_s, _m, _l, _x, picodet_s, _m, _l"),
    "input_shape imgsz img_size img input_size test_size tsize size": Here(("image_size={}",), "height,width"),
    "model_path ckpt": Here(("weights={}", "checkpoint={}")),
    "pretrained": Here(("weights={}",), values={"true": "coco", "false": "none"}),
    "Freeze_Train": Here(("freeze_epochs={}",), "a number of epochs", {"true": "10", "false": "0"}),
    "Freeze_Epoch": Here(("freeze_epochs={}",)),
    "UnFreeze_Epoch": Here(("epochs={}",), "frozen epochs included"),
    "max_epoch": Here(("epochs={}",)),
    "Freeze_batch_size": Here(("freeze_batch_size={}",)),
    "Unfreeze_batch_size": Here(("batch_size={}",)),
    "Init_Epoch start_epoch": Here(("resume=true",), "to continue a run; the checkpoint holds the epoch"),
    "Init_lr lr0 lr": Here(("learning_rate={}",), PER_64),
    "Min_lr": Here(("min_learning_rate={}",), PER_64),
    "optimizer_type": Here(("optimizer={}",), values={"sgd": "sgd", "adam": "adam", "auto": "adamw"}),
    "lr_decay_type scheduler": Here(("schedule={}",), values=COSINE),
    "momentum": Here(note="it is 0.9"),
    "mosaic_prob": Here(("mosaic={}",)),
    "mixup_prob": Here(("mixup={}",)),
    "special_aug_ratio": Here(("no_aug_epochs=VALUE",), "the number of epochs at the end"),
    "label_smoothing": Here(note="class targets are soft already"),
    "compile": Here(note="a run on one GPU replays its steps by CUDA graphs instead"),
    "save_period": Here(("save_every={}",), "last.pt and best.pt are saved by themselves", {"-1": "0"}),
    "eval_flag": Here(("evaluate_every={}",), "a number of epochs", {"true": "1", "false": "VALUE"}),
    "eval_period eval_interval": Here(("evaluate_every={}",)),
    "classes_path names": Here(("classes={}",)),
    "train_annotation_path train_ann": Here(("train={}",)),
    "val_annotation_path val_ann": Here(("val={}", "data={}")),
    "num_workers data_num_workers": Here(("workers={}",)),
    "Cuda": Here(("device={}",), values={"true": "cuda", "false": "cpu"}),
    "distributed devices num_machines": Here(note="torchrun starts several processes, see docs/distributed.md"),
    "fp16": Here(("amp={}", "half={}"), values={"true": "fp16", "false": "none"}),
    "save_dir project dir_save_path video_save_path map_out_path onnx_save_path": Here(("output={}",)),
    "video video_path dir_origin_path test_img_path path": Here(("source={}", "data={}")),
    "crop save_crop": Here(("crops={}",)),
    "count": Here(note="predict.py prints the objects of each class"),
    "fps test_interval fps_image_path speed": Here(note="predict.py prints the milliseconds per image at its end"),
    "heatmap_save_path visualize": Here(note="there are no heat maps"),
    "export_onnx": Here(note="export.py writes ONNX"),
    "simplify": Here(note="the exported file is simplified already"),
    "letterbox_image": Here(note="images keep their aspect ratio, as the model was trained"),
    "max_boxes max_det": Here(("max_detections={}",)),
    "map_mode map_vis": Here(note="evaluate.py computes and draws everything at once"),
    "MINOVERLAP": Here(note="evaluate.py prints AP50, AP75 and the mean of IoU 0.5 to 0.95"),
    "score_threhold": Here(("show_confidence={}", "confidence={}")),
    "VOCdevkit_path data_dir": Here(("train={}", "data={}", "source={}"), "the folder of the data set"),
    "annotation_mode": Here(note="train= reads VOC folders as they are"),
    "trainval_percent train_percent": Here(("val=VALUE",), "the fraction for validation, such as val=.1"),
    "anchors_path anchors_mask": Here(note="the models have no anchor boxes"),
    "backbone depth width": Here(("model=VALUE",), "such as yolox_s; --help lists all"),
    "focal_loss focal_alpha focal_gamma iou_type box cls dfl": Here(
        note="nets/losses.py has the losses and their weights"
    ),
    # Ultralytics
    "data": Here(("train={}", "data={}", "source={}")),
    "batch": Here(
        ("batch_size={}",),
        "0: the largest that fits the GPUs",
        {"-1": "0", **{f"{hundredths / 100:g}": "0" for hundredths in range(1, 100)}},
    ),
    "lrf": Here(("min_learning_rate=VALUE",), NOT_A_FRACTION),
    "cos_lr": Here(("schedule={}",), "there is no linear one", COSINE),
    "nbs": Here(note=f"learning_rate is {PER_64}"),
    "warmup_momentum": Here(note="momentum is 0.9 from the first step on"),
    "warmup_bias_lr warmup_lr": Here(note="all parameters have the same warm-up, see warmup_epochs"),
    "freeze": Here(("freeze_epochs=VALUE",), "the whole backbone for a number of epochs, not a number of layers"),
    "exist_ok": Here(note="every run has a new folder"),
    "close_mosaic": Here(("no_aug_epochs={}",), "last epochs, also without affine and mixup"),
    "degrees": Here(("rotation={}",)),
    "translate": Here(note="0.1, with scale= and rotation="),
    "shear": Here(note="0.4 times rotation="),
    "fliplr flip_prob": Here(("flip={}",)),
    "flipud": Here(("flip_vertical={}",)),
    "hsv_h hsv_s hsv_v": Here(("hsv=5,30,30",), "hue of 180, saturation and value of 255"),
    "perspective copy_paste cutmix erasing auto_augment bgr": Here(
        note="extra_augment in train.py is the place for augmentations of your own"
    ),
    "dropout": Here(note="the models have no dropout"),
    "cache": Here(note="decoded images are cached, see THAW_CACHE_GB in docs/constants.md"),
    "rect": Here(("image_size=VALUE",), "height,width of all images; rectangles are fine"),
    "single_cls": Here(("merge=dog:animal,cat:animal",), "classes that become another one"),
    "fraction": Here(note="give a data set with fewer images, see python -m tools.convert"),
    "time": Here(("hours={}",), "at most epochs= epochs"),
    "deterministic": Here(note="on a CPU the bits are the same; a GPU rounds differently in each run"),
    "nc num_classes nb_classes": Here(("classes=FILE",), "only if the data do not name their classes"),
    "conf test_conf conf_thres": Here(("confidence={}",)),
    "iou nmsthre iou_thres": Here(("nms_iou={}",)),
    "agnostic_nms": Here(("class_agnostic={}",)),
    "augment": Here(note="there is no test-time augmentation; tile= helps with small objects"),
    "save_json": Here(note="detections.json is always written"),
    "save_txt": Here(("labels={}",), values={"true": "yolo", "false": "none"}),
    "save_conf": Here(note="labels=coco and labels=labelstudio write the scores"),
    "plots verbose save": Here(note="results are always printed, drawn and saved"),
    "vid_stride": Here(("every={}",), "frames of a video"),
    "tracker": Here(("track=true",), "by ByteTrack of the package trackers"),
    "format keras optimize": Here(
        note="export.py writes ONNX; docs/deploy.md has the commands for TensorRT, OpenVINO and ncnn"
    ),
    "dynamic": Here(("dynamic_size={}",), "any height and width; batch_size=0: any number of images"),
    "opset": Here(note="the opset is 18"),
    "nms": Here(note="NMS is inside the exported file; outputs=raw leaves it out"),
    "workspace": Here(note="an option of trtexec, see docs/deploy.md"),
    "task overlap_mask mask_ratio retina_masks": Here(note="boxes only, no masks and no keypoints"),
    "mode": Here(note="train.py, evaluate.py, predict.py and export.py are separate scripts"),
    "cfg exp_file": Here(note="edit the constants at the top of the script, or write name=value"),
    # YOLOX and LibreYOLO
    "basic_lr_per_img": Here(("learning_rate=VALUE",), "64 times the value; for 64 images per step"),
    "min_lr_ratio": Here(("min_learning_rate=VALUE",), NOT_A_FRACTION),
    "multiscale_range": Here(("multi_scale=.25",), "a fraction of the input size: .25 for a range of 5 at 640"),
    "mosaic_scale": Here(("scale={}",)),
    "exp_name experiment_name": Here(("name={}",)),
    "ema ema_decay": Here(note="there always is a moving average of the weights"),
    # other scripts of this program
    "train": Here(("data={}",)),
    "val": Here(("data=VALUE",), "a file or a folder; without it, the validation images of the run"),
    "source": Here(("data={}", "images={}")),
    "images": Here(("source={}", "data={}")),
    "weights": Here(("checkpoint={}",)),
    "checkpoint": Here(("weights={}",)),
    "split": Here(("source_split={}",)),
    "source_split": Here(("split={}",)),
}


def unknown_constant(name: str, given: str, names: Collection[str]) -> str:
    """Returns what to write instead of `name=given` in a script that has the constants `names`, and not this one."""
    word = name.lower().replace("-", "_")
    found = [here for names, here in NAMES.items() if word in names.lower().split()]
    missing = f"there is no constant {brief(name)!r}"
    for here in found:
        for line in here.written(given):
            if constant_in(line) in names:
                return f"{missing}; write {line}" + (f" ({here.note})" if here.note else "")
    near = [word] if word in names else [] if found or scripts_with(word) else similar(word, names)
    if near:
        return f"{missing}; did you mean {' or '.join(f'{other}={given}' for other in near)}?"
    for line in (f"{word}={given}", *(line for here in found for line in here.written(given))):
        if scripts := scripts_with(constant_in(line)):
            return f"{missing} here; {line} is for {', '.join(scripts)}"
    notes = [here.note for here in found if not here.lines]
    return f"{missing}: {notes[0]}" if notes else f"{missing}; --help lists all of them"


def value_here(name: str, given: str) -> str | None:
    """Returns the value of the constant `name` that means what `given` means in another program, None if it has the same name."""
    rows = [here for here in NAMES.values() if f"{name}={{}}" in here.lines]
    return next((value for here in rows if (value := here.value(given))), None)


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
