"""Mutants: small errors put into the code one at a time, each of which the tests of its module must notice.

    python -m tests.mutants [part of a name ...]

Works on a copy of the repository. Prints a line per mutant: killed, or SURVIVED; the exit status is 1 if one survived. All
together take about half an hour on two cores. tests/test_mutants.py holds that each mutant still applies to the code.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """`old` occurs once in `file`; with `new` in its place, `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


OPTIMIZER, SCHEDULE, EPOCH = "engine/optimizer.py", "engine/schedule.py", "engine/epoch.py"
EXTENDED = "nets/extended.py"
PICODET, PPYOLOE, LOSSES = "nets/picodet.py", "nets/ppyoloe.py", "nets/losses.py"
PARALLEL, RESUME, EVALUATION = "engine/parallel.py", "engine/resume.py", "engine/evaluation.py"

MUTANTS = [
    Mutant(
        "statistics are fixed before the network has learned",
        SCHEDULE,
        "return max(first_no_aug, epochs - usual_no_aug_epochs(epochs))",
        "return first_no_aug",
        "test_train",
    ),
    Mutant(
        "batch norms with fixed statistics still use batch statistics",
        "nets/model.py",
        "                    module.eval()\n",
        "                    pass\n",
        "test_families",
    ),
    Mutant(
        "the EMA has batch-norm buffers of its own",
        OPTIMIZER,
        "            ours._buffers = theirs._buffers\n",
        "            pass\n",
        "test_optim",
    ),
    Mutant(
        "old batch norms are updated while added classes train",
        EXTENDED,
        "            part.eval()\n",
        "            pass\n",
        "test_extended",
    ),
    Mutant(
        "old parts are trained with added classes",
        EXTENDED,
        "        self.requires_grad_(False)\n",
        "",
        "test_extended",
    ),
    Mutant(
        "boxes of old classes train the added head",
        EXTENDED,
        ".clamp(min=-1)",
        ".clamp(min=0)",
        "test_extended",
    ),
    Mutant(
        "added classes crowd out old detections",
        "nets/model.py",
        '        if limits.get("class_agnostic"):\n',
        "        if True:\n",
        "test_extended",
    ),
    Mutant("the EMA ignores tau", OPTIMIZER, "(1 - torch.exp(self.count / -self.tau))", "1.0", "test_optim"),
    Mutant(
        "the schedule is one step late",
        OPTIMIZER,
        'group["lr"] = self.learning_rate',
        'group["lr"] = self.schedule(max(self.step_number - 1, 0))',
        "test_optim",
    ),
    Mutant(
        "statistics are not restored after a bad step",
        OPTIMIZER,
        "        torch._foreach_copy_(self.statistics, self.good_parts)\n",
        "",
        "test_optim",
    ),
    Mutant("accumulated losses are not divided", OPTIMIZER, "loss / self.accumulate", "loss", "test_optim"),
    Mutant("weight decay acts on norms", OPTIMIZER, "p.ndim > 1", "p.ndim > 0", "test_optim"),
    Mutant(
        "known classes train with the usual rate",
        SCHEDULE,
        "LOWEST_RATE**likeness",
        "LOWEST_RATE ** (1 - likeness)",
        "test_optim",
    ),
    Mutant("sgd from scratch is clipped", SCHEDULE, "sgd.clip_from_scratch", "not sgd.clip_from_scratch", "test_optim"),
    Mutant(
        "the EMA is not updated while frozen",
        OPTIMIZER,
        "        self.ema.update(finite)\n",
        "        self.ema.update(finite * (not self.model.frozen))\n",
        "test_optim",
    ),
    Mutant(
        "gradients are clipped before they are unscaled",
        OPTIMIZER,
        "        self.scaler.unscale_(self.optimizer)\n",
        "",
        "test_optim",
    ),
    Mutant(
        "the state of the scaler is not restored",
        OPTIMIZER,
        'self.scaler.load_state_dict(state["scaler"])',
        "pass",
        "test_optim",
    ),
    Mutant(
        "autocast is on for an empty shard",
        EPOCH,
        "updater.autocast() if len(batch.images) else nullcontext()",
        "updater.autocast()",
        "test_fit",
    ),
    Mutant("cuDNN searches with multi_scale", EPOCH, "search and not sampler.multi_scale", "search", "test_fit"),
    Mutant(
        "a frozen batch norm moves",
        "nets/model.py",
        "        if self.frozen:\n            self.backbone.eval()\n",
        "",
        "test_models",
    ),
    Mutant(
        "the no-augmentation loss begins an epoch late",
        "train.py",
        "no_aug=epoch >= first_no_aug",
        "no_aug=epoch > first_no_aug",
        "test_train",
    ),
    Mutant(
        "a run that falls behind keeps its schedule",
        "train.py",
        "                        updater.schedule = build_schedule(parts.schedule, plan, cfg.schedule, defaults)\n",
        "",
        "test_time_budget",
    ),
    Mutant(
        "the no-augmentation data begin an epoch late",
        "datasets/dataset.py",
        "epoch >= self.no_aug_from",
        "epoch > self.no_aug_from",
        "test_dataset",
    ),
    Mutant(
        "left and top of the letterbox are swapped",
        "utils/images.py",
        "float(left), float(top)), place",
        "float(top), float(left)), place",
        "test_images",
    ),
    Mutant(
        "the inverse letterbox does not shift",
        "utils/images.py",
        "(boxes - transform[..., [4, 5, 4, 5]]) /",
        "boxes /",
        "test_images",
    ),
    Mutant("crowd regions count as boxes", "utils/matches.py", "ignored = crowd | ", "ignored = ", "test_metrics"),
    Mutant(
        "the validation sampler drops an image",
        "datasets/loader.py",
        "range(rank, length, world)",
        "range(rank, length - 1, world)",
        "test_loader",
    ),
    Mutant(
        "each rank has its own input size",
        "datasets/loader.py",
        "(self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP)",
        "(self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP, self.rank)",
        "test_loader",
    ),
    Mutant(
        "a capture changes the statistics",
        PARALLEL,
        "buffer.copy_(value)  # capturing",
        "value.clone()  # capturing",
        "test_simulated_gpu",
    ),
    Mutant(
        "graphs keep the cache of autocast",
        PARALLEL,
        "autocast(cache=False)",
        "autocast(cache=True)",
        "test_simulated_gpu",
    ),
    Mutant("TF32 in the evaluation", EVALUATION, "allow_tf32 = False", "allow_tf32 = True", "test_simulated_gpu"),
    Mutant(
        "the window of a mosaic is not mirrored",
        "datasets/mosaic.py",
        "        if mirrored[i]:\n            x1, x2 = wide - x2, wide - x1\n",
        "",
        "test_mosaic",
    ),
    Mutant(
        "mixup has other weights",
        "datasets/mosaic.py",
        "sample.image, 0.5, over, 0.5, 0",
        "sample.image, 0.6, over, 0.4, 0",
        "test_mosaic",
    ),
    Mutant(
        "the visible fraction ignores the window",
        "datasets/transforms.py",
        "visible = (last - first).prod(1) * sides.prod(1)",
        "visible = (boxes[:, 2:] - boxes[:, :2]).prod(1) * sides.prod(1)",
        "test_transforms",
    ),
    Mutant("the running variance is biased", PARALLEL, "pixels / max(pixels - 1, 1)", "1.0", "test_distributed"),
    Mutant(
        "the normalizer ignores the number of ranks",
        "utils/processes.py",
        ".clamp(min=1) / self.world_size",
        ".clamp(min=1)",
        "test_distributed",
    ),
    Mutant(
        "statistics are not averaged over ranks",
        OPTIMIZER,
        "if ranks.world_size > 1 and norms:",
        "if False:",
        "test_distributed",
    ),
    Mutant(
        "the meter is not resumed",
        RESUME,
        '"meter": meter.state_dict()',
        '"meter": Meter().state_dict()',
        "test_resume",
    ),
    Mutant(
        "the last of equal epochs is the best", RESUME, 'row["AP"] > best[1]', 'row["AP"] >= best[1]', "test_resume"
    ),
    Mutant(
        "the top level of PicoDet has the stride 32",
        PICODET,
        "strides = (8, 16, 32, 64)",
        "strides = (8, 16, 32, 32)",
        "test_picodet",
    ),
    Mutant(
        "PicoDet has swish for hard-swish",
        PICODET,
        "F.hardswish(y, inplace=not y.requires_grad)",
        "F.silu(y, inplace=not y.requires_grad)",
        "test_picodet",
    ),
    Mutant(
        "PicoDet forgets the alignment in its scores",
        PICODET,
        "(classes.sigmoid() * alignment.sigmoid()[..., None] + EPS).sqrt()",
        "(classes.sigmoid() + 0 * alignment[..., None] + EPS).sqrt()",
        "test_picodet",
    ),
    Mutant("PicoDet gets BGR", PICODET, "pixels.flip(1).split(1, 1)", "pixels.split(1, 1)", "test_picodet"),
    Mutant(
        "the map of stride 64 of PicoDet lacks the top of the backbone",
        PICODET,
        "self.shrink_top(top) + self.shrink_stride32(out32)",
        "self.shrink_stride32(out32)",
        "test_picodet",
    ),
    Mutant(
        "the distances of PicoDet end too late", LOSSES, "dfl_margin = 0.1\n", "dfl_margin = 0.01\n", "test_picodet"
    ),
    Mutant("PP-YOLOE has 16 distances", PPYOLOE, "BINS = 17", "BINS = 16", "test_ppyoloe"),
    Mutant(
        "the attention of PP-YOLOE has no bias",
        PPYOLOE,
        "self.fc = nn.Conv2d(channels, channels, 1)",
        "self.fc = nn.Conv2d(channels, channels, 1, bias=False)",
        "test_ppyoloe",
    ),
    Mutant(
        "the attention of PP-YOLOE has a plain sigmoid",
        PPYOLOE,
        "nn.functional.hardsigmoid",
        "torch.sigmoid",
        "test_ppyoloe",
    ),
    Mutant(
        "the classes of PP-YOLOE lack the residual connection",
        PPYOLOE,
        "self.class_stems[i](x, mean) + x)",
        "self.class_stems[i](x, mean))",
        "test_ppyoloe",
    ),
    Mutant(
        "the neck of PP-YOLOE has no pooling",
        PPYOLOE,
        "if pool and i == (depth - 1) // 2:",
        "if pool and i == depth:",
        "test_ppyoloe",
    ),
    Mutant(
        "weights without a weight of the 1x1 branch switch it off",
        PPYOLOE,
        "torch.ones(1)",
        "torch.zeros(1)",
        "test_ppyoloe",
    ),
    Mutant(
        "the varifocal loss counts a matched class twice",
        LOSSES,
        "((matched - _varifocal_negative(logits)) * positive)",
        "(matched * positive)",
        "test_ppyoloe",
    ),
    Mutant("TAL ignores first choices", "nets/assigners.py", "(overlap + 2 * first)", "overlap", "test_assigners"),
    Mutant(
        "the weight of CIoU has a gradient",
        "utils/boxes.py",
        "weight if library is np else weight.detach()",
        "weight",
        "test_boxes",
    ),
    Mutant(
        "the initial scores are one half",
        "nets/yolox.py",
        "nn.init.constant_(predictor.bias, prior)",
        "nn.init.constant_(predictor.bias, 0.0)",
        "test_yolox",
    ),
    Mutant(
        "NMS stops at the first boxes",
        "nets/postprocess.py",
        "while len(scores) > first and len(kept) < max_detections:",
        "while False:",
        "test_postprocess",
    ),
    Mutant(
        "class-agnostic NMS is per class",
        "nets/postprocess.py",
        "groups = torch.zeros_like(labels) if class_agnostic else labels",
        "groups = labels",
        "test_postprocess",
    ),
    Mutant(
        "a Result of a file holds its image",
        "deploy/detector.py",
        "pixels = None if one.in_file else one.pixels",
        "pixels = one.pixels",
        "test_result",
    ),
    Mutant(
        "weak detections begin tracks",
        "deploy/tracking.py",
        "confidence=strong.astype(np.float32)",
        "confidence=result.scores",
        "test_tracking",
    ),
    Mutant(
        "a download that is cut off is an image",
        "deploy/sources.py",
        "    if len(data) < size:\n",
        "    if False:\n",
        "test_sources",
    ),
    Mutant(
        "classes far apart suppress each other",
        "nets/postprocess.py",
        "groups[:, None] * (2 * FAR)",
        "groups[:, None] * FAR",
        "test_postprocess",
    ),
    Mutant(
        "a box at the border of a tile is not cut",
        "deploy/tile_merge.py",
        "near = BORDER * ",
        "near = 0 * ",
        "test_tiles",
    ),
    Mutant(
        "two label files of an image may differ",
        "datasets/formats/yolo.py",
        "if not is_text and _lines(other) != _lines(label):",
        "if is_text and _lines(other) != _lines(label):",
        "test_unread",
    ),
    Mutant(
        "label files that are not read count as read",
        "datasets/formats/folder.py",
        "mine = [name for name in every[read] if _path(folder, name) in own]",
        "mine = every[read]",
        "test_layouts",
    ),
    Mutant(
        "label files that are not read may label more images",
        "datasets/formats/folder.py",
        "if counts[most] > count:",
        "if counts[most] > 2 * count:",
        "test_layouts",
    ),
    Mutant(
        "images are reduced too much",
        "datasets/dataset.py",
        "reduction * scale <= 1",
        "reduction * scale <= 2",
        "test_cache",
    ),
    Mutant(
        "a changed image comes from the cache",
        "datasets/cache.py",
        "if digest != _digest(key, height, width, total) or status",
        "if status",
        "test_cache",
    ),
    Mutant(
        "the validation loss is not divided by positives",
        EVALUATION,
        "total / max(positives, 1)",
        "total / max(len(loader.dataset), 1)",
        "test_evaluate",
    ),
    Mutant(
        "crops may be empty",
        "deploy/results.py",
        "inside = area(boxes) > 0",
        "inside = area(boxes) >= 0",
        "test_results",
    ),
    Mutant(
        "names of classes match with their case",
        "nets/pretrained.py",
        "name.casefold().replace",
        "name.replace",
        "test_pretrained",
    ),
    Mutant(
        "ignored boxes are taken like others",
        "utils/matches.py",
        "preference = np.where(truth.ignored[:, box], 0.25, 1)",
        "preference = 1.0",
        "test_metrics",
    ),
]


def file_of_tests(name: str) -> Path:
    """The file of tests with this name, relative to the repository."""
    (path,) = (ROOT / "tests").rglob(f"{name}.py")
    return path.relative_to(ROOT)


def passes(tests: str, copy: Path) -> bool:
    """Runs a file of tests in the copy of the repository."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-m",
        "not gpu and not slow",
        str(file_of_tests(tests)),
    ]
    return subprocess.run(command, cwd=copy, capture_output=True).returncode == 0


def survives(mutant: Mutant, copy: Path) -> bool:
    """Puts a mutant into the copy of the repository, runs its tests there, and restores the file."""
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return passes(mutant.tests, copy)
    finally:
        path.write_text(text, encoding="utf-8")


def main(words: list[str]) -> int:
    """Runs the mutants whose names hold one of the words, or all; returns the number of those that survived."""
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for file in files:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy / file)
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            if not passes(tests, copy):
                raise SystemExit(f"{file_of_tests(tests)} fails without a mutant")
        for mutant in chosen:
            alive = survives(mutant, copy)
            survivors += alive
            print(f"{'SURVIVED' if alive else 'killed':8}  {mutant.tests:20}  {mutant.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return survivors


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]) > 0)
