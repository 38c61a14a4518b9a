"""The data sets, recipes and stages of benchmarks.small_data. Its result page has a table per question and a row per recipe."""

from typing import Any, NamedTuple

from benchmarks import small_data_hooks as hook
from engine.schedule import CHOSEN
from utils.config import show


class DataSet(NamedTuple):
    """A data set: the paths of its files, its size, and whether it chooses recipes or only reports."""

    choice: bool  # true: its results choose the recipes; false: its results are only reported
    train: str
    val: str  # the same; or the fraction of the training images that becomes the validation data
    images: tuple[int, int]  # number for training, number for evaluation
    side: int  # median side of a box in pixels, in images scaled to a longer side of 640
    screen: tuple[int, int]  # epochs in all stages (3,000 to 6,000 samples), and input size in the stage "screen"
    image_root: str | None = None


BCCD = "bccd/BCCD/ImageSets/Main"
COCO = ("coco_train337/instances_train2017_subset.json", "coco_val326/instances_val2017_core326.json")
DATA = {
    "bccd": DataSet(True, f"{BCCD}/train.txt", f"{BCCD}/val.txt", (205, 87), 102, (20, 224)),
    "chess": DataSet(True, "more/chess/train.txt", "more/chess/val.txt", (230, 58), 45, (20, 256)),
    "deep_pcb": DataSet(True, "more/deep_pcb/train.txt", "more/deep_pcb/val.txt", (400, 100), 34, (15, 256)),
    "bccd_test": DataSet(False, f"{BCCD}/train.txt", f"{BCCD}/test.txt", (205, 72), 102, (20, 224)),
    "raccoon": DataSet(
        False,
        "raccoon/data/train_labels.csv",
        "raccoon/data/test_labels.csv",
        (160, 40),
        376,
        (20, 224),
        "raccoon/images",
    ),
    "hemocytometer": DataSet(
        False, "more/hemocytometer/train.txt", "more/hemocytometer/val.txt", (168, 42), 18, (20, 320)
    ),
    "dental_xray": DataSet(False, "more/dental_xray/train.txt", "more/dental_xray/val.txt", (400, 100), 55, (15, 256)),
    "coco337": DataSet(True, *COCO, (337, 326), 54, (10, 256)),
    "raccoon_train": DataSet(True, "raccoon/data/train_labels.csv", ".25", (120, 40), 375, (20, 224), "raccoon/images"),
    "coco163": DataSet(False, COCO[1], ".5", (163, 163), 59, (20, 320)),
}


class Recipe(NamedTuple):
    """A way to train, as differences from the shipped recipe."""

    question: str
    changes: dict[str, Any]  # constants of train.py, and the fractions of FRACTIONS
    hooks: tuple[hook.Hook, ...] = ()
    peer: str | None = None  # another trainer: libreyolo or ultralytics
    linear: bool = True  # true: the learning rate is proportional to the images per step, as in the shipped recipe


# The defaults of train.py before this benchmark, repeated here so that rows stay comparable when a default changes. Frozen and
# no-augmentation epochs are fractions of all epochs, so that short runs have the proportions of the default: 10 of 50 epochs
# are frozen, 10 are without augmentation.
SHIPPED = {
    **{"model": "yolox_nano", "freeze": 0.2, "no_aug": 0.2, "warmup_epochs": 1.0},
    **{"batch_size": 16, "freeze_batch_size": 32, "optimizer": "adamw", "weight_decay": 0.05},
    **{"learning_rate": 4e-3, "min_learning_rate": 2e-4, "schedule": "cosine", "multi_scale": 0.0},
    **{"mosaic": 0.5, "mixup": 0.0, "flip": 0.5, "rotation": 5.0, "scale": (0.5, 1.5), "hsv": (5.0, 30.0, 30.0)},
    **{"repeat": 0.0, "accumulate": 1, "ema": True},
}
FRACTIONS = {"freeze": "freeze_epochs", "no_aug": "no_aug_epochs", "warmup": "warmup_epochs"}
FREEZING = "1. Freezing, the batch norms of the backbone after the thaw, and its learning rate"
NORMS = "2. Stem, batch norms and a second warm-up"
LENGTH = "3. Length"
SIZE = "4. Input size"
OPTIMIZER = "5. Optimizer, learning rate, batch, weight decay and no-augmentation epochs"
AUGMENTATION = "6. Augmentation"
LOSS = "The loss"
COMBINED = "7. The best changes together"
FEW = "8. Freezing with 30 training images"
SCRATCH = "From scratch, and other trainers"


def rates(factor: float, lowest: float | None = None) -> dict[str, float]:
    """Returns the learning rates of the shipped recipe times `factor`; the minimum times `lowest` instead, if it is given."""
    return {"learning_rate": 4e-3 * factor, "min_learning_rate": 2e-4 * (factor if lowest is None else lowest)}


def sgd(factor: float) -> dict[str, Any]:
    """Returns the constants of SGD with `factor` times the learning rate of YOLOX."""
    rate = {"learning_rate": 0.01 * factor, "min_learning_rate": 5e-4 * factor}
    return {"optimizer": "sgd", "weight_decay": 5e-4, **rate}


def chosen(**changes: Any) -> dict[str, Any]:
    """Returns what the training chose by itself when this benchmark was begun, besides `freeze` of SHIPPED."""
    return {**dict.fromkeys(CHOSEN), "learning_rate": 2e-3, **changes}


def batch(images: int) -> dict[str, int]:
    """Returns the batch sizes: `images` per step after the thaw, and twice as many while the backbone is frozen."""
    return {"batch_size": images, "freeze_batch_size": 2 * images}


BEST = chosen(rotation=0.0, **batch(8))
NEW = dict.fromkeys(CHOSEN) | {"freeze_epochs": 0, "rotation": 0.0, **batch(8)}  # the defaults of train.py


def best(*hooks: hook.Hook, **changes: Any) -> Recipe:
    """Returns the recipe `BEST`, with further changes and hooks."""
    used = {FRACTIONS.get(name) for name in changes}
    base = {name: value for name, value in BEST.items() if name not in used}
    return Recipe(COMBINED, base | changes, hooks, linear=False)


def few(**changes: Any) -> Recipe:
    """Returns the best recipe for 50 epochs of 30 training images."""
    return best((hook.few_images, 30), epochs=50, learning_rate=8e-3, **changes)._replace(question=FEW)


def untrained(*hooks: hook.Hook) -> Recipe:
    """Returns the recipe that evaluates the pretrained weights: an epoch that changes nothing."""
    nothing = {"learning_rate": 0.0, "min_learning_rate": 0.0, "epochs": 1}
    return Recipe("0. The shipped recipe", NEW | nothing, (*hooks, (hook.norm_momentum, 0.0)), linear=False)


# The most promising recipes come first: a search that is stopped early has measured these on all data sets.
RECIPES = {
    "shipped": Recipe("0. The shipped recipe", {}),
    "chosen": Recipe("0. The shipped recipe", chosen(), linear=False),
    "chosen_rotation_0_batch_8": Recipe(COMBINED, BEST, linear=False),
    "best_rate_2": best(learning_rate=4e-3),
    "best_rate_4": best(learning_rate=8e-3),
    "best_rate_8": best(learning_rate=1.6e-2),
    "best_rate_4_batch_16": best(learning_rate=8e-3, **batch(16)),
    "best_rate_4_freeze_0": best(learning_rate=8e-3, freeze_epochs=0),
    "best_rate_4_freeze_all": best(learning_rate=8e-3, freeze=1.0),
    "best_rate_4_freeze_0.05": best(learning_rate=8e-3, freeze=0.05),
    "best_rate_4_backbone_0.3": best((hook.backbone_rate, 0.3), learning_rate=8e-3),
    "best_rate_2_batch_4": best(learning_rate=4e-3, **batch(4)),
    "best_rate_2_freeze_0": best(learning_rate=4e-3, freeze_epochs=0),
    "best_rate_2_freeze_0.1": best(learning_rate=4e-3, freeze=0.1),
    "best_rate_2_freeze_all": best(learning_rate=4e-3, freeze=1.0),
    "best_rate_2_backbone_0.3": best((hook.backbone_rate, 0.3), learning_rate=4e-3),
    "best_rate_2_batch_16": best(learning_rate=4e-3, **batch(16)),
    "best_batch_4": best(**batch(4)),
    "best_freeze_0": best(freeze_epochs=0),
    "new": Recipe("0. The shipped recipe", NEW, linear=False),
    "untrained": untrained(),
    "negatives_untrained": untrained((hook.gray_negatives,)),
    **{
        f"negatives_rate_{name}": best((hook.gray_negatives,), learning_rate=rate, freeze_epochs=0)
        for name, rate in {"0.06": 1.25e-4, "0.25": 5e-4, "1": 2e-3}.items()
    },
    "best_freeze_all": best(freeze=1.0),
    "best_backbone_0.3": best((hook.backbone_rate, 0.3)),
    "best_mosaic_1": best(mosaic=1.0),
    "best_no_aug_0.4": best(no_aug=0.4),
    "best_momentum_0.1": best((hook.norm_momentum, 0.1)),
    "best_freeze_0.1": best(freeze=0.1),
    "best_eval_norms": best((hook.eval_norms,)),
    "best_mosaic_0": best(mosaic=0.0),
    "best_rate_0.5": best(learning_rate=1e-3),
    "rate_0.5": Recipe(OPTIMIZER, rates(0.5)),
    "rate_0.25": Recipe(OPTIMIZER, rates(0.25)),
    "freeze_0": Recipe(FREEZING, {"freeze": 0}),
    "freeze_0.1": Recipe(FREEZING, {"freeze": 0.1}),
    "freeze_all": Recipe(FREEZING, {"freeze": 1.0}),
    "backbone_0.3": Recipe(FREEZING, {}, ((hook.backbone_rate, 0.3),)),
    "backbone_0.1": Recipe(FREEZING, {}, ((hook.backbone_rate, 0.1),)),
    "momentum_0.1": Recipe(NORMS, {}, ((hook.norm_momentum, 0.1),)),
    "no_aug_0.4": Recipe(OPTIMIZER, {"no_aug": 0.4}),
    "no_aug_0.1": Recipe(OPTIMIZER, {"no_aug": 0.1}),
    "second_warmup_1": Recipe(NORMS, {}, ((hook.second_warmup, 1.0),)),
    "rotation_0": Recipe(AUGMENTATION, {"rotation": 0.0}),
    "mosaic_1": Recipe(AUGMENTATION, {"mosaic": 1.0}),
    "best_rate_4_freeze_0_backbone_0.1": best((hook.backbone_rate, 0.1), learning_rate=8e-3, freeze_epochs=0),
    "best_rate_2_freeze_0_backbone_0.1": best((hook.backbone_rate, 0.1), learning_rate=4e-3, freeze_epochs=0),
    "best_rate_2_freeze_0_backbone_0.3": best((hook.backbone_rate, 0.3), learning_rate=4e-3, freeze_epochs=0),
    "best_rate_1_freeze_0_backbone_0.1": best((hook.backbone_rate, 0.1), learning_rate=2e-3, freeze_epochs=0),
    "best_rate_0.25_freeze_0": best(learning_rate=5e-4, freeze_epochs=0),
    "best_rate_0.25_freeze_all": best(learning_rate=5e-4, freeze=1.0),
    "best_rate_0.06_freeze_0": best(learning_rate=1.25e-4, freeze_epochs=0),
    "best_rate_0.06_freeze_all": best(learning_rate=1.25e-4, freeze=1.0),
    "few_freeze_0": few(freeze_epochs=0),
    "few_freeze_0.2": few(freeze=0.2),
    "few_freeze_all": few(freeze=1.0),
    # the rest of the questions
    "rate_0.5_freeze_0": Recipe(OPTIMIZER, {"freeze": 0, **rates(0.5)}),
    "warmup_0.1_freeze_0": Recipe(NORMS, {"freeze": 0, "warmup": 0.1}),
    "batch_8": Recipe(OPTIMIZER, batch(8)),
    "batch_frozen_16": Recipe(OPTIMIZER, {"freeze_batch_size": 16}),
    "unscaled": Recipe("0. The shipped recipe", {"freeze_epochs": 10, "no_aug_epochs": 10}),
    "eval_norms": Recipe(FREEZING, {}, ((hook.eval_norms,),)),
    "freeze_0_backbone_0.3": Recipe(FREEZING, {"freeze": 0}, ((hook.backbone_rate, 0.3),)),
    "freeze_0_backbone_0.1": Recipe(FREEZING, {"freeze": 0}, ((hook.backbone_rate, 0.1),)),
    "freeze_0_eval_norms": Recipe(FREEZING, {"freeze": 0}, ((hook.eval_norms,),)),
    "eval_norms_backbone_0.3": Recipe(FREEZING, {}, ((hook.eval_norms,), (hook.backbone_rate, 0.3))),
    "eval_norms_backbone_0.1": Recipe(FREEZING, {}, ((hook.eval_norms,), (hook.backbone_rate, 0.1))),
    "freeze_0_eval_norms_backbone_0.3": Recipe(
        FREEZING, {"freeze": 0}, ((hook.eval_norms,), (hook.backbone_rate, 0.3))
    ),
    "freeze_0.5": Recipe(FREEZING, {"freeze": 0.5}),
    "frozen_stem": Recipe(NORMS, {}, ((hook.frozen_stem,),)),
    "second_warmup_3": Recipe(NORMS, {}, ((hook.second_warmup, 3.0),)),
    "new_statistics": Recipe(NORMS, {}, ((hook.new_statistics, 128),)),
    "warmup_0.1": Recipe(NORMS, {"warmup": 0.1}),
    "rate_0.25_same_lowest": Recipe(OPTIMIZER, rates(0.25, 1.0)),
    "rate_1_lowest_0.2": Recipe(OPTIMIZER, rates(1.0, 0.2)),
    "rate_2": Recipe(OPTIMIZER, rates(2.0)),
    "sgd_1": Recipe(OPTIMIZER, sgd(1.0)),
    "sgd_0.5": Recipe(OPTIMIZER, sgd(0.5)),
    "sgd_2": Recipe(OPTIMIZER, sgd(2.0)),
    "sgd_0.25": Recipe(OPTIMIZER, sgd(0.25)),
    "sgd_1_no_clipping": Recipe(OPTIMIZER, sgd(1.0), ((hook.no_clipping,),)),
    "batch_32": Recipe(OPTIMIZER, batch(32)),
    "batch_32_square_root": Recipe(OPTIMIZER, batch(32), ((hook.rescaled_rate, 0.5),)),
    "batch_8_square_root": Recipe(OPTIMIZER, batch(8), ((hook.rescaled_rate, 0.5),)),
    "decay_0.01": Recipe(OPTIMIZER, {"weight_decay": 0.01}),
    "decay_0.2": Recipe(OPTIMIZER, {"weight_decay": 0.2}),
    "no_aug_0": Recipe(OPTIMIZER, {"no_aug": 0}),
    "mosaic_0": Recipe(AUGMENTATION, {"mosaic": 0.0}),
    "mixup_0.5": Recipe(AUGMENTATION, {"mixup": 0.5}),
    "copy_paste_0.5": Recipe(AUGMENTATION, {}, ((hook.copy_paste, 0.5),)),
    "repeat_0.5": Recipe(AUGMENTATION, {"repeat": 0.5}),
    "size_320": Recipe(SIZE, {"image_size": (320, 320)}),
    "size_416": Recipe(SIZE, {"image_size": (416, 416)}),
    "epochs_40": Recipe(LENGTH, {"epochs": 40}),
    "epochs_30": Recipe(LENGTH, {"epochs": 30}),
    "epochs_60": Recipe(LENGTH, {"epochs": 60}),
    "epochs_100": Recipe(LENGTH, {"epochs": 100}),
    "size_640": Recipe(SIZE, {"image_size": (640, 640)}),
    "epochs_200": Recipe(LENGTH, {"epochs": 200}),
}
NEVER, FIFTH = "best_rate_2_freeze_0", "best_rate_2"  # the new defaults, and the same with a fifth of the epochs frozen


class Change(NamedTuple):
    """One change of the new defaults: a row of the page."""

    question: str
    text: str
    recipe: Recipe
    reference: str = NEVER  # the recipe without the change


def change(question: str, text: str, *hooks: hook.Hook, **changes: Any) -> Change:
    """Returns one change of the new defaults, which never freeze the backbone."""
    return Change(question, text, best(*hooks, **{"learning_rate": 4e-3, "freeze_epochs": 0} | changes))


def thawed(question: str, text: str, *hooks: hook.Hook) -> Change:
    """Returns one change of the new defaults with a fifth of the epochs frozen."""
    return Change(question, text, best(*hooks, learning_rate=4e-3), FIFTH)


CHANGES = {
    "new_mixup_0.5": change(AUGMENTATION, "`mixup=.5`", mixup=0.5),
    "new_copy_paste_0.5": change(AUGMENTATION, "each box is copied with probability .5", (hook.copy_paste, 0.5)),
    "new_repeat_0.5": change(AUGMENTATION, "`repeat=.5`", repeat=0.5),
    "new_mosaic_0": change(AUGMENTATION, "`mosaic=0`", mosaic=0.0),
    "best_rate_2_freeze_0_mosaic_1": change(AUGMENTATION, "`mosaic=1`", mosaic=1.0),
    "best_rate_2_freeze_0_no_aug_0.1": change(OPTIMIZER, "a tenth of the epochs without augmentation", no_aug=0.1),
    "new_no_aug_0.4": change(OPTIMIZER, "two fifths of the epochs without augmentation", no_aug=0.4),
    "new_cosine_to_the_end": change(OPTIMIZER, "the cosine ends with the last epoch", (hook.cosine_to_the_end,)),
    "new_ema_2": change(OPTIMIZER, "the EMA averages over twice as many steps", (hook.ema_length, 2.0)),
    "new_scale_0.8": change(AUGMENTATION, "`scale=.8,1.25`", scale=(0.8, 1.25)),
    "new_momentum_0.1": change(NORMS, "momentum of all batch norms .1", (hook.norm_momentum, 0.1)),
    "new_eval_norms": change(FREEZING, "batch norms of the backbone in evaluation mode", (hook.eval_norms,)),
    "new_freeze_0.2_eval_norms": thawed(
        FREEZING, "batch norms of the backbone in evaluation mode after a frozen fifth*", (hook.eval_norms,)
    ),
    "new_statistics_128": change(
        NORMS, "statistics from 128 images before each evaluation", (hook.new_statistics, 128)
    ),
    "new_frozen_stem": change(NORMS, "the first convolution is never trained", (hook.frozen_stem,)),
    "new_freeze_0.2_second_warmup": thawed(
        NORMS, "a second warm-up of an epoch after a frozen fifth*", (hook.second_warmup, 1.0)
    ),
    "new_hsv_0": change(AUGMENTATION, "`hsv=0,0,0`", hsv=(0.0, 0.0, 0.0)),
    "new_multi_scale_0.25": change(AUGMENTATION, "`multi_scale=.25`", multi_scale=0.25),
    "new_rotation_5": change(AUGMENTATION, "`rotation=5`", rotation=5.0),
    "new_batch_16": change(OPTIMIZER, "`batch_size=16`", batch_size=16),
    "new_decay_0.2": change(OPTIMIZER, "`weight_decay=.2`", weight_decay=0.2),
    "new_decay_0.01": change(OPTIMIZER, "`weight_decay=.01`", weight_decay=0.01),
    "new_l1_always": change(LOSS, "the L1 loss in all epochs", (hook.l1_always,)),
    "new_box_2": change(LOSS, "twice the weight of the IoU loss", (hook.loss_weight, "box", 2.0)),
    "new_ema_0.5": change(OPTIMIZER, "the EMA averages over half as many steps", (hook.ema_length, 0.5)),
    "new_vertical_flip": change(AUGMENTATION, "mirrored top to bottom with probability .5", (hook.vertical_flip, 0.5)),
    "new_cells": change(
        AUGMENTATION,
        "`mosaic=0 rotation=5`, mirrored top to bottom with probability .5",
        (hook.vertical_flip, 0.5),
        mosaic=0.0,
        rotation=5.0,
    ),
    "new_sgd": change(OPTIMIZER, '`optimizer="sgd"`, its default rate and decay', optimizer="sgd", learning_rate=None),
}
RECIPES |= {name: change.recipe for name, change in CHANGES.items()}
FROM_SCRATCH = {
    "scratch_yolox_nano": Recipe(SCRATCH, {"weights": None, "freeze": 0}),
    "scratch_yolov9_t": Recipe(SCRATCH, {"weights": None, "freeze": 0, "model": "yolov9_t"}),
    "scratch_new_yolox_nano": Recipe(SCRATCH, NEW | {"weights": None}, linear=False),
    "scratch_new_yolov9_t": Recipe(SCRATCH, NEW | {"weights": None, "model": "yolov9_t"}, linear=False),
}
PEERS = {  # other trainers, each with its own defaults; LibreYOLO starts from the weights of our YOLOX-nano
    "libreyolo_yolox_nano": Recipe(SCRATCH, {}, peer="libreyolo"),
    "ultralytics_yolo11n_scratch": Recipe(SCRATCH, {}, peer="ultralytics"),
}
FINALISTS = ("shipped", "new")  # the defaults of train.py before this benchmark, and after it

# Recipes that differ only in freezing: never frozen -> frozen for a fifth of the epochs, for all of them.
FROZEN = {
    "best_freeze_0": ("chosen_rotation_0_batch_8", "best_freeze_all"),
    "best_rate_0.25_freeze_0": ("", "best_rate_0.25_freeze_all"),
    "best_rate_2_freeze_0": ("best_rate_2", "best_rate_2_freeze_all"),
    "best_rate_4_freeze_0": ("best_rate_4", "best_rate_4_freeze_all"),
    "few_freeze_0": ("few_freeze_0.2", "few_freeze_all"),
}


RATES = (
    *("best_rate_0.06_freeze_0", "best_rate_0.25_freeze_0", "best_freeze_0"),
    *("best_rate_2_freeze_0", "best_rate_4_freeze_0"),
)
# Recipes for classes that the weights know: without training, then as in KNOWN_HEAD. Kind of the images -> recipes.
KNOWN_HEAD = ("shipped", "new", "`learning_rate=.002`", ".0005", ".000125")
KNOWN = {
    "": ("untrained", *FINALISTS, "best_freeze_0", "best_rate_0.25_freeze_0", "best_rate_0.06_freeze_0"),
    ", gray negatives": ("negatives_untrained", "", "", *(f"negatives_rate_{name}" for name in ("1", "0.25", "0.06"))),
}
LENGTHS = ("best_freeze_0", "best_rate_2_freeze_0")  # compared with several numbers of epochs and input sizes


class Stage(NamedTuple):
    """A set of runs: data sets x recipes x seeds. Recipes are compared only within a stage."""

    choice: tuple[bool, ...]  # the values of `DataSet.choice` whose data sets it uses
    seeds: tuple[int, ...]
    recipes: tuple[str, ...]
    image_size: int | None  # None: that of `DataSet.screen`; the number of epochs is always that of `DataSet.screen`


STAGES = {
    "screen": Stage((True,), (0,), tuple(RECIPES), None),
    "confirm": Stage((True,), (1, 2, 3), FINALISTS, 320),
    "report": Stage((False,), (4, 5, 6), (*FINALISTS, "libreyolo_yolox_nano"), 320),
    "peers": Stage((True, False), (1,), ("shipped", *FROM_SCRATCH, *PEERS), 320),
}


def recipes() -> dict[str, Recipe]:
    """Returns all recipes by name, with those of other trainers."""
    return RECIPES | FROM_SCRATCH | PEERS


def constants(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns constants of train.py: `changes` replace those of `base`, and fractions of the epochs become numbers of epochs.

    A changed constant also replaces its fraction in `base`, and a changed fraction its constant."""
    other = FRACTIONS | {target: name for name, target in FRACTIONS.items()}
    settings = {name: value for name, value in base.items() if other.get(name) not in changes} | changes
    result = {name: value for name, value in settings.items() if name not in FRACTIONS}
    epochs = {FRACTIONS[name]: round(settings[name] * settings["epochs"]) for name in FRACTIONS if name in settings}
    return result | epochs | {"bad_boxes": "drop", "workers": 0}


def sources(folder: str, data: DataSet) -> dict[str, str | None]:
    """Returns the constants with the paths of the images and the annotations."""
    root = data.image_root and f"{folder}/{data.image_root}"
    val = data.val if data.val.startswith(".") else f"{folder}/{data.val}"
    return {"train": f"{folder}/{data.train}", "val": val, "image_root": root}


def overrides(recipe: Recipe) -> str:
    """Returns the differences from the shipped recipe as text: changed constants and fractions, then hooks."""
    words = [f"{name}={show(value)}" for name, value in recipe.changes.items()]
    return " ".join([*words, *filter(None, [hook.text(recipe.hooks)])])
