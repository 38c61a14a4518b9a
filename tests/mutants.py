"""Mutants: small errors put into the code one at a time, each of which the tests of its module must notice.

    python -m tests.mutants [part of a name ...]

Works on a copy of the repository. Prints a line per mutant: killed, or SURVIVED; the exit status is 1 if one survived. All
together take about half an hour on two cores. tests/test_mutants.py holds that each mutant still finds its place.
"""

import ast
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """`old` is an expression or a statement that occurs once in a function, and `new` takes its place; "" removes a statement.

    `place` is "module:function", with the class of a method: "engine.optimizer:EMA.update". Layout and comments do not matter.
    """

    name: str
    place: str
    old: str
    new: str
    tests: str  # which must fail

    @property
    def file(self) -> Path:
        """The file of the place, relative to the repository."""
        return Path(self.place.partition(":")[0].replace(".", "/")).with_suffix(".py")

    def put_into(self, text: str) -> str:
        """Returns the source text of the file with the mutant in it. Raises ValueError unless its place is found once."""
        scope = ast.parse(text)
        for name in filter(None, self.place.partition(":")[2].split(".")):
            scope = next(node for node in ast.walk(scope) if getattr(node, "name", None) == name)
        wanted = ast.parse(self.old).body[0]
        if isinstance(wanted, ast.Expr):
            wanted = wanted.value
        found = [node for node in ast.walk(scope) if ast.dump(node) == ast.dump(wanted)]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.place} has {len(found)} times {self.old}")
        lines = text.encode().splitlines(keepends=True)  # the columns of ast count bytes
        begin = sum(map(len, lines[: found[0].lineno - 1])) + found[0].col_offset
        end = sum(map(len, lines[: found[0].end_lineno - 1])) + found[0].end_col_offset
        return (text.encode()[:begin] + (self.new or "pass").encode() + text.encode()[end:]).decode()


MUTANTS = [
    Mutant(
        "a corrected label file is replaced",
        "utils.outputs:OwnFiles.write",
        "not self.overwrite and (is_deleted or self.is_changed(name))",
        "False",
        "test_corrected_labels",
    ),
    Mutant(
        "a correction that equals a prediction becomes one",
        "utils.outputs:OwnFiles.write",
        "self.is_changed(name)",
        "self.is_changed(name) and path.read_bytes() != data",
        "test_corrected_labels",
    ),
    Mutant(
        "labels of other classes are mixed",
        "deploy.label_files:LabelFiles.require_replaceable",
        "there[: len(self.classes)] != tuple(self.classes)",
        "False",
        "test_corrected_labels",
    ),
    Mutant(
        "Ctrl-C ends a long step",
        "utils.signals:StopSignal._handle",
        "under_torchrun or number == signal.SIGTERM",
        "True",
        "test_stop_signal",
    ),
    Mutant(
        "SIGTERM has no limit",
        "utils.signals:StopSignal._handle",
        "under_torchrun or number == signal.SIGTERM",
        "under_torchrun",
        "test_stop_signal",
    ),
    Mutant(
        "a wrong class that is accepted moves the box too",
        "tools.suspects_table:with_proposals",
        "labels[known.index(row['box'])][4] = proposal[4]",
        "labels[known.index(row['box'])][:] = proposal",
        "test_suspects",
    ),
    Mutant(
        "the exported program forgets the padding of the letterbox",
        "deploy.onnx_detector:Detector.result",
        "(boxes[real] - offset) / scale",
        "boxes[real] / scale",
        "test_deploy",
    ),
    Mutant(
        "the exported program takes one threshold for all classes",
        "deploy.onnx_detector:Detector.result",
        "(labels >= 0) & (scores >= self.thresholds[labels])",
        "labels >= 0",
        "test_deploy",
    ),
    Mutant(
        "runs on different validation data are compared",
        "tools.compared_runs:data_marks",
        "run.data",
        "run.data[1]",
        "test_compare",
    ),
    Mutant(
        "statistics are fixed before the network has learned",
        "engine.schedule:first_fixed_epoch",
        "max(first_no_aug, epochs - usual_no_aug_epochs(epochs))",
        "first_no_aug",
        "test_train",
    ),
    Mutant(
        "batch norms with fixed statistics still use batch statistics",
        "nets.model:DetectionModel.train",
        "module.eval()",
        "",
        "test_families",
    ),
    Mutant(
        "the EMA has batch-norm buffers of its own",
        "engine.optimizer:EMA.__init__",
        "ours._buffers = theirs._buffers",
        "",
        "test_optim",
    ),
    Mutant(
        "old batch norms are updated while added classes train",
        "nets.extended:ExtendedModel.train",
        "part.eval()",
        "",
        "test_extended",
    ),
    Mutant(
        "old parts are trained with added classes",
        "nets.extended:ExtendedModel.__init__",
        "self.requires_grad_(False)",
        "",
        "test_extended",
    ),
    Mutant(
        "boxes of old classes train the added head",
        "nets.extended:NewestCriterion.__call__",
        "(labels - self.first_class).clamp(min=-1)",
        "(labels - self.first_class).clamp(min=0)",
        "test_extended",
    ),
    Mutant(
        "added classes crowd out old detections",
        "nets.model:DetectionModel.detections",
        "limits.get('class_agnostic')",
        "True",
        "test_extended",
    ),
    Mutant(
        "the EMA ignores tau",
        "engine.optimizer:EMA.update",
        "1 - torch.exp(self.count / -self.tau)",
        "1.0",
        "test_optim",
    ),
    Mutant(
        "the schedule is one step late",
        "engine.optimizer:Updater.update",
        "self.learning_rate",
        "self.schedule(max(self.step_number - 1, 0))",
        "test_optim",
    ),
    Mutant(
        "statistics are not restored after a bad step",
        "engine.optimizer:Updater._keep_good_statistics",
        "torch._foreach_copy_(self.statistics, self.good_parts)",
        "",
        "test_optim",
    ),
    Mutant(
        "accumulated losses are not divided",
        "engine.optimizer:Updater.step",
        "loss / self.accumulate",
        "loss",
        "test_optim",
    ),
    Mutant("weight decay acts on norms", "engine.optimizer:parameter_groups", "p.ndim > 1", "p.ndim > 0", "test_optim"),
    Mutant(
        "known classes train with the usual rate",
        "engine.rates:Rates.__init__",
        "domain_similarity",
        "1 - domain_similarity",
        "test_optim",
    ),
    Mutant(
        "sgd from scratch is clipped",
        "engine.rates:Rates.__init__",
        "sgd.clip_from_scratch",
        "not sgd.clip_from_scratch",
        "test_optim",
    ),
    Mutant(
        "the EMA is not updated while frozen",
        "engine.optimizer:Updater.update",
        "self.ema.update(finite)",
        "self.ema.update(finite * (not self.model.frozen))",
        "test_optim",
    ),
    Mutant(
        "gradients are clipped before they are unscaled",
        "engine.optimizer:Updater.update",
        "self.scaler.unscale_(self.optimizer)",
        "",
        "test_optim",
    ),
    Mutant(
        "the state of the scaler is not restored",
        "engine.optimizer:Updater.load_state_dict",
        "self.scaler.load_state_dict(state['scaler'])",
        "",
        "test_optim",
    ),
    Mutant(
        "autocast is on for an empty shard",
        "engine.epoch:fit_one_epoch",
        "updater.autocast() if len(batch.images) else nullcontext()",
        "updater.autocast()",
        "test_fit",
    ),
    Mutant(
        "cuDNN searches with multi_scale",
        "engine.network:accelerate",
        "search and (not sampler.multi_scale)",
        "search",
        "test_fit",
    ),
    Mutant(
        "a frozen batch norm moves",
        "nets.model:DetectionModel.train",
        "if self.frozen:\n    self.backbone.eval()",
        "",
        "test_models",
    ),
    Mutant(
        "the no-augmentation loss begins an epoch late",
        "engine.course:Course.phase",
        "epoch >= self.first_no_aug",
        "epoch > self.first_no_aug",
        "test_train",
    ),
    Mutant(
        "a run that falls behind keeps its schedule",
        "engine.optimizer:Updater.follow",
        "self.schedule = course.schedule",
        "",
        "test_time_budget",
    ),
    Mutant(
        "the no-augmentation data begin an epoch late",
        "datasets.dataset:DetectionDataset._training_sample",
        "epoch >= self.no_aug_from",
        "epoch > self.no_aug_from",
        "test_dataset",
    ),
    Mutant(
        "left and top of the letterbox are swapped",
        "utils.images:fit",
        "LetterboxTransform(float(width), float(height), scale, scale, float(left), float(top))",
        "LetterboxTransform(float(width), float(height), scale, scale, float(top), float(left))",
        "test_images",
    ),
    Mutant(
        "the inverse letterbox does not shift",
        "utils.images:into_original",
        "boxes - transform[..., [4, 5, 4, 5]]",
        "boxes",
        "test_images",
    ),
    Mutant(
        "crowd regions count as boxes",
        "metrics.matches:_sorted_boxes",
        "crowd | (areas < LOW[:, None])",
        "areas < LOW[:, None]",
        "test_coco_metrics",
    ),
    Mutant(
        "the validation sampler drops an image",
        "datasets.loader:ValSampler.__init__",
        "length",
        "length - 1",
        "test_loader",
    ),
    Mutant(
        "each rank has its own input size",
        "datasets.loader:TrainSampler.size",
        "(self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP)",
        "(self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP, self.rank)",
        "test_loader",
    ),
    Mutant(
        "a capture changes the statistics",
        "engine.parallel:Graphed.__init__",
        "buffer.copy_(value)",
        "value.clone()",
        "test_simulated_gpu",
    ),
    Mutant(
        "graphs keep the cache of autocast",
        "engine.parallel:Graphed.__init__",
        "autocast(cache=False)",
        "autocast(cache=True)",
        "test_simulated_gpu",
    ),
    Mutant(
        "TF32 in the evaluation",
        "engine.evaluation:evaluate",
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cudnn.allow_tf32 = True",
        "test_simulated_gpu",
    ),
    Mutant(
        "the window of a mosaic is not mirrored",
        "datasets.mosaic:mosaic",
        "if mirrored[i]:\n    x1, x2 = (wide - x2, wide - x1)",
        "",
        "test_mosaic",
    ),
    Mutant(
        "mixup has other weights",
        "datasets.mosaic:mixup",
        "cv2.addWeighted(sample.image, 0.5, over, 0.5, 0)",
        "cv2.addWeighted(sample.image, 0.6, over, 0.4, 0)",
        "test_mosaic",
    ),
    Mutant(
        "the visible fraction ignores the window",
        "datasets.transforms:move_boxes",
        "last - first",
        "boxes[:, 2:] - boxes[:, :2]",
        "test_transforms",
    ),
    Mutant(
        "the running variance is biased",
        "engine.parallel:ExactBatchNorm2d.forward",
        "pixels / max(pixels - 1, 1)",
        "1.0",
        "test_distributed",
    ),
    Mutant(
        "the normalizer ignores the number of ranks",
        "utils.processes:Ranks.normalizer",
        "self.sum(count.detach()).clamp(min=1) / self.world_size",
        "self.sum(count.detach()).clamp(min=1)",
        "test_distributed",
    ),
    Mutant(
        "statistics are not averaged over ranks",
        "engine.optimizer:Updater.average_statistics",
        "ranks.world_size > 1 and norms",
        "False",
        "test_distributed",
    ),
    Mutant(
        "the meter is not resumed",
        "engine.saving:Saver._write",
        "meter.state_dict",
        "Meter().state_dict",
        "test_resume",
    ),
    Mutant(
        "the last of equal epochs is the best",
        "engine.state:State.best_epoch",
        "row['AP'] > best[1]",
        "row['AP'] >= best[1]",
        "test_resume",
    ),
    Mutant(
        "the top level of PicoDet has the stride 32",
        "nets.picodet:PicoDet",
        "(8, 16, 32, 64)",
        "(8, 16, 32, 32)",
        "test_picodet",
    ),
    Mutant("PicoDet has swish for hard-swish", "nets.picodet:Conv.forward", "F.hardswish", "F.silu", "test_picodet"),
    Mutant(
        "PicoDet forgets the alignment in its scores",
        "nets.picodet:joint_scores",
        "classes.sigmoid() * alignment.sigmoid()[..., None]",
        "classes.sigmoid() + 0 * alignment[..., None]",
        "test_picodet",
    ),
    Mutant("PicoDet gets BGR", "nets.picodet:PicoDet.prepare", "pixels.flip(1)", "pixels", "test_picodet"),
    Mutant(
        "the map of stride 64 of PicoDet lacks the top of the backbone",
        "nets.picodet:Neck.forward",
        "self.shrink_top(top) + self.shrink_stride32(out32)",
        "self.shrink_stride32(out32)",
        "test_picodet",
    ),
    Mutant(
        "the distances of PicoDet end too late",
        "nets.losses:PicoDetCriterion",
        "dfl_margin = 0.1",
        "dfl_margin = 0.01",
        "test_picodet",
    ),
    Mutant("PP-YOLOE has 16 distances", "nets.ppyoloe:", "BINS = 17", "BINS = 16", "test_ppyoloe"),
    Mutant(
        "the attention of PP-YOLOE has no bias",
        "nets.ppyoloe:ChannelAttention.__init__",
        "nn.Conv2d(channels, channels, 1)",
        "nn.Conv2d(channels, channels, 1, bias=False)",
        "test_ppyoloe",
    ),
    Mutant(
        "the attention of PP-YOLOE has a plain sigmoid",
        "nets.ppyoloe:ChannelAttention.forward",
        "nn.functional.hardsigmoid",
        "torch.sigmoid",
        "test_ppyoloe",
    ),
    Mutant(
        "the classes of PP-YOLOE lack the residual connection",
        "nets.ppyoloe:Head.levels",
        "self.class_stems[i](x, mean) + x",
        "self.class_stems[i](x, mean)",
        "test_ppyoloe",
    ),
    Mutant(
        "the neck of PP-YOLOE has no pooling",
        "nets.ppyoloe:CSPRep.__init__",
        "(depth - 1) // 2",
        "depth",
        "test_ppyoloe",
    ),
    Mutant(
        "weights without a weight of the 1x1 branch switch it off",
        "nets.ppyoloe:PPYOLOE.completed",
        "torch.ones",
        "torch.zeros",
        "test_ppyoloe",
    ),
    Mutant(
        "the varifocal loss counts a matched class twice",
        "nets.losses:PPYOLOECriterion.class_loss",
        "matched - _varifocal_negative(logits)",
        "matched",
        "test_ppyoloe",
    ),
    Mutant(
        "TAL ignores first choices", "nets.assigners:_every_box", "overlap + 2 * first", "overlap", "test_assigners"
    ),
    Mutant(
        "the weight of CIoU has a gradient",
        "utils.boxes:ciou",
        "weight if library is np else weight.detach()",
        "weight",
        "test_boxes",
    ),
    Mutant(
        "the initial scores are one half",
        "nets.yolox:Head.__init__",
        "nn.init.constant_(predictor.bias, prior)",
        "nn.init.constant_(predictor.bias, 0.0)",
        "test_yolox",
    ),
    Mutant(
        "NMS stops at the first boxes",
        "nets.postprocess:nms",
        "len(scores) > first and len(kept) < max_detections",
        "False",
        "test_postprocess",
    ),
    Mutant(
        "class-agnostic NMS is per class",
        "nets.postprocess:select",
        "torch.zeros_like(labels) if class_agnostic else labels",
        "labels",
        "test_postprocess",
    ),
    Mutant(
        "a Result of a file holds its image",
        "deploy.detector:Detector.of_input",
        "None if one.in_file else one.pixels",
        "one.pixels",
        "test_result",
    ),
    Mutant(
        "weak detections begin tracks",
        "deploy.tracking:Tracker.update",
        "strong.astype(np.float32)",
        "result.scores",
        "test_tracking",
    ),
    Mutant(
        "a download that is cut off is an image", "deploy.inputs:download", "len(data) < size", "False", "test_inputs"
    ),
    Mutant("classes far apart suppress each other", "nets.postprocess:nms", "2 * FAR", "FAR", "test_postprocess"),
    Mutant("a box at the border of a tile is not cut", "deploy.tile_merge:_is_cut", "BORDER", "0", "test_tiles"),
    Mutant(
        "two label files of an image may differ",
        "datasets.formats.yolo:_contradictions",
        "not is_text",
        "is_text",
        "test_layouts",
    ),
    Mutant(
        "label files that are not read count as read",
        "datasets.formats.folder:left_over",
        "[name for name in every[read] if _path(folder, name) in own]",
        "every[read]",
        "test_layouts",
    ),
    Mutant(
        "label files that are not read may label more images",
        "datasets.formats.folder:left_over",
        "counts[most] > count",
        "counts[most] > 2 * count",
        "test_layouts",
    ),
    Mutant(
        "images are reduced too much",
        "datasets.dataset:DetectionDataset._reduction",
        "reduction * scale <= 1",
        "reduction * scale <= 2",
        "test_cache",
    ),
    Mutant(
        "a changed image comes from the cache",
        "datasets.cache:ImageCache._load",
        "digest != _digest(key, height, width, total) or status.st_size != _HEAD.size + 3 * height * width",
        "status.st_size != _HEAD.size + 3 * height * width",
        "test_cache",
    ),
    Mutant(
        "the validation loss is not divided by positives",
        "engine.evaluation:evaluate",
        "positives",
        "len(loader.dataset)",
        "test_evaluate",
    ),
    Mutant("crops may be empty", "deploy.writer:Results.add", "area(boxes) > 0", "area(boxes) >= 0", "test_writer"),
    Mutant(
        "names of classes match with their case",
        "nets.pretrained:shared_classes.normalize",
        "name.casefold()",
        "name",
        "test_pretrained",
    ),
    Mutant(
        "ignored boxes are taken like others",
        "metrics.matches:_match_coco",
        "np.where(truth.ignored[:, box], 0.25, 1)",
        "1.0",
        "test_coco_metrics",
    ),
    Mutant(
        "a fifth is rounded down",
        "engine.schedule:usual_no_aug_epochs",
        "round(epochs / 5)",
        "epochs // 5",
        "test_course",
    ),
    Mutant(
        "no-augmentation epochs begin in the past",
        "engine.schedule:first_no_aug_epoch",
        "max(epochs - length, done)",
        "epochs - length",
        "test_course",
    ),
    Mutant(
        "no-augmentation epochs that have begun are moved",
        "engine.schedule:first_no_aug_epoch",
        "if before < done:\n    return before",
        "",
        "test_course",
    ),
    Mutant(
        "a shorter plan keeps its frozen epochs",
        "engine.schedule:Plan.cut",
        "min(self.freeze_epochs, epochs)",
        "self.freeze_epochs",
        "test_course",
    ),
    Mutant(
        "one slow lap counts fully",
        "engine.time_budget:TimeBudget.seconds",
        "statistics.median_low(self.laps[kind])",
        "statistics.fmean(self.laps[kind])",
        "test_course",
    ),
    Mutant(
        "a resumed run chooses its epochs again",
        "engine.time_budget:TimeBudget.load_state_dict",
        "(state['epochs'], tuple(state['chosen_for']))",
        "(state['epochs'], self._chosen_for)",
        "test_course",
    ),
    Mutant(
        "the workers of the loader keep the old no-augmentation epoch",
        "engine.course:Course._set",
        "self.no_aug_from.fill_(self.first_no_aug)",
        "",
        "test_course",
    ),
    Mutant(
        "the EMA keeps its length",
        "engine.optimizer:Updater.follow",
        "self.ema.set_length(course.plan.total_steps)",
        "",
        "test_course",
    ),
    Mutant(
        "a mosaic shows the wrong part of an image that is upside down",
        "datasets.mosaic:mosaic",
        "(high - y2, high - y1)",
        "(y1, y2)",
        "test_mosaic",
    ),
    Mutant(
        "random values are drawn for mirroring that is off",
        "datasets.transforms:random_upside_down",
        "not settings.flip_vertical",
        "False",
        "test_transforms",
    ),
    Mutant(
        "a resumed run needs room for all of its files again",
        "engine.saving:require_space",
        "not (folder / name).exists()",
        "True",
        "test_resume",
    ),
    Mutant(
        "the first evaluation decides the order of the columns",
        "engine.run_folder:columns_of",
        "columns.insert(place, name)",
        "columns.append(name)",
        "test_run",
    ),
    Mutant(
        "flip is chosen from all classes",
        "train:main",
        "train_data.classes[model.first_class:]",
        "train_data.classes",
        "test_add_classes",
    ),
    Mutant(
        "a resumed run has new weights",
        "engine.origin:Origin.completed",
        "('weights', 'freeze_epochs')",
        "('freeze_epochs',)",
        "test_resume",
    ),
    Mutant(
        "old thresholds win over measured ones",
        "engine.saving:Saver._contents",
        "{**self.frozen_thresholds, **state.thresholds}",
        "{**state.thresholds, **self.frozen_thresholds}",
        "test_resume",
    ),
    Mutant(
        "the moments of Adam count once",
        "engine.memory:StepProbe.bytes",
        "2 * sum((p.nbytes for p in trial.parameters() if p.grad is not None))",
        "sum((p.nbytes for p in trial.parameters() if p.grad is not None))",
        "test_measure",
    ),
    Mutant(
        "the probe of a frozen step thaws it",
        "engine.memory:StepProbe.bytes",
        "trial.freeze_backbone(frozen)",
        "",
        "test_measure",
    ),
    Mutant(
        "the thawed step is measured with too few images",
        "engine.memory:StepMemory.__init__",
        "-(-self.batch_sizes['batch_size'] // number_of_gpus(ranks))",
        "self.batch_sizes['batch_size'] // number_of_gpus(ranks)",
        "test_measure",
    ),
    Mutant(
        "runs on other validation data are repetitions",
        "tools.compared_runs:repeats",
        "validated_on(varied['val']) or run.data[0]",
        "validated_on(varied['val'])",
        "test_compare",
    ),
    Mutant(
        "images that are numbers only belong to one video",
        "datasets.groups:_numbered",
        "shared == '#'",
        "False",
        "test_groups",
    ),
    Mutant(
        "few images that look alike make all frames",
        "datasets.groups:_similar",
        "max(MIN_SIMILAR, len(rows) / 2)",
        "MIN_SIMILAR",
        "test_groups",
    ),
    Mutant(
        "objectness learns that there is no object of an unknown class",
        "nets.losses:_objectness_loss",
        "(known, ~known)",
        "(~known, known)",
        "test_unknown_classes",
    ),
    Mutant(
        "the class of a box is not known at its own anchor points",
        "nets.losses:YOLOv9Criterion.__call__",
        "flat.gather(1, place) | positive",
        "flat.gather(1, place) & positive",
        "test_unknown_classes",
    ),
    Mutant(
        "an open region keeps its size in an image that is read smaller",
        "datasets.dataset:DetectionDataset.read",
        "moved(self.annotations.ignore_regions_of(index), np.eye(2, 3) / (reduction or 1))",
        "self.annotations.ignore_regions_of(index)",
        "test_unknown",
    ),
    Mutant(
        "open regions of an image are for the classes of all of them",
        "datasets.store:Annotations.ignore_regions_of",
        "classes[place.ravel(), self.labels[rows]] = True",
        "classes[:, self.labels[rows]] = True",
        "test_unknown",
    ),
    Mutant(
        "an open region reaches into the other images of a mosaic",
        "datasets.store:Annotations.ignore_regions_of",
        "clip(boxes, width, height)",
        "boxes",
        "test_unknown",
    ),
    Mutant(
        "an own augmentation that changes nothing spreads what is unknown",
        "datasets.dataset:after_augment",
        "np.array_equal(image, after.image)",
        "False",
        "test_unknown",
    ),
    Mutant(
        "an open region tells that its classes were looked for",
        "datasets.classes:ignore_class",
        "data.annotated_mask()[image[regions]][:, others]",
        "np.ones((len(regions), len(others)), bool)",
        "test_incomplete",
    ),
    Mutant(
        "what is verified to be there counts as labeled",
        "datasets.formats.tables:_add_verified",
        "float(row[confidence]) == 0",
        "True",
        "test_incomplete",
    ),
    Mutant(
        "save_minutes are seconds",
        "engine.saving:Saver.between_steps",
        "60 * self.save_minutes",
        "self.save_minutes",
        "test_resume",
    ),
    Mutant(
        "nodes with different states of a run begin",
        "engine.resume:find",
        "len(set(answers)) == 1",
        "True",
        "test_resume",
    ),
    Mutant(
        "a deleted label file comes back",
        "utils.outputs:OwnFiles.write",
        "is_deleted or self.is_changed(name)",
        "self.is_changed(name)",
        "test_corrected_labels",
    ),
    Mutant(
        "any number of images are versions of one",
        "datasets.groups:version_groups",
        "counts[name] <= MAX_VERSIONS",
        "True",
        "test_groups",
    ),
    Mutant(
        "detections of classes that were not looked for count",
        "metrics.coco:to_coco",
        "annotations.annotated is not None",
        "False",
        "test_coco_metrics",
    ),
    Mutant(
        "a late run has no epoch without augmentation",
        "engine.course:Course.change_epochs",
        "done - 1 < self.first_no_aug < before",
        "False",
        "test_course",
    ),
    Mutant(
        "all heads of an exported file share one limit",
        "deploy.onnx_graph:DetectionGraph.forward",
        "len(heads) * self.most",
        "self.most",
        "test_onnx",
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
    path.write_text(mutant.put_into(text), encoding="utf-8")
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
