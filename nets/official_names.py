"""Maps the tensor names of official weights to ours."""

import re

YOLOX_NAMES = {  # official part of a name -> ours
    "backbone.backbone.stem.conv.": "backbone.stem.",
    "backbone.backbone.dark": "backbone.stage",
    "backbone.lateral_conv0.": "neck.reduce_stride32.",
    "backbone.C3_p4.": "neck.up_to_stride16.",
    "backbone.reduce_conv1.": "neck.reduce_stride16.",
    "backbone.C3_p3.": "neck.up_to_stride8.",
    "backbone.bu_conv2.": "neck.shrink_stride8.",
    "backbone.C3_n3.": "neck.down_to_stride16.",
    "backbone.bu_conv1.": "neck.shrink_stride16.",
    "backbone.C3_n4.": "neck.down_to_stride32.",
    "head.cls_convs.": "head.class_convs.",
    "head.reg_convs.": "head.box_convs.",
    "head.cls_preds.": "head.class_predictors.",
    "head.reg_preds.": "head.box_predictors.",
    "head.obj_preds.": "head.objectness_predictors.",
    **{".m.": ".blocks.", ".dconv.": ".depthwise.", ".pconv.": ".pointwise."},
}

YOLOV9_LAYERS = {  # index in the official list of layers -> ours; layers without weights are left out
    **{0: "backbone.stem", 1: "backbone.stage2.0", 2: "backbone.stage2.1", 3: "backbone.stage3.0"},
    **{4: "backbone.stage3.1", 5: "backbone.stage4.0", 6: "backbone.stage4.1", 7: "backbone.stage5.0"},
    **{8: "backbone.stage5.1", 9: "backbone.stage5.2", 12: "neck.up_to_stride16", 15: "neck.up_to_stride8"},
    **{16: "neck.shrink_stride8", 18: "neck.down_to_stride16", 19: "neck.shrink_stride16", 21: "neck.down_to_stride32"},
    22: "head",
}
YOLOV9_PATTERNS = {  # regular expression -> replacement
    r"\.bottleneck\.(\d)\.conv1\.conv1\.": r".blocks.\1.conv1.conv3x3.",
    r"\.bottleneck\.(\d)\.conv1\.conv2\.": r".blocks.\1.conv1.conv1x1.",
    r"\.bottleneck\.": ".blocks.",
    r"^backbone\.stage5\.2\.conv5\.": "backbone.stage5.2.conv2.",
    r"^head\.heads\.(\d)\.class_conv\.2\.": r"head.class_predictors.\1.",
    r"^head\.heads\.(\d)\.anchor_conv\.2\.": r"head.box_predictors.\1.",
    r"^head\.heads\.(\d)\.class_conv\.": r"head.class_convs.\1.",
    r"^head\.heads\.(\d)\.anchor_conv\.": r"head.box_convs.\1.",
}

PPYOLOE_NAMES = {  # official part of a name -> ours; `of_ppyoloe` numbers the rest
    "backbone.stem.conv1.": "backbone.stem.0.",
    "backbone.stem.conv2.": "backbone.stem.1.",
    "backbone.stem.conv3.": "backbone.stem.2.",
    ".attn.": ".attention.",
    "neck.fpn_stages.0.0.": "neck.top_stride32.",
    "neck.fpn_stages.1.0.": "neck.up_to_stride16.",
    "neck.fpn_stages.2.0.": "neck.up_to_stride8.",
    "neck.fpn_routes.0.": "neck.reduce_stride32.",
    "neck.fpn_routes.1.": "neck.reduce_stride16.",
    "neck.pan_stages.1.0.": "neck.down_to_stride16.",
    "neck.pan_stages.0.0.": "neck.down_to_stride32.",
    "neck.pan_routes.1.": "neck.shrink_stride8.",
    "neck.pan_routes.0.": "neck.shrink_stride16.",
    ".convs.spp.": ".blocks.pool.",
    ".convs.": ".blocks.",
    ".conv2.conv1.": ".conv2.conv3x3.",
    ".conv2.conv2.": ".conv2.conv1x1.",
    **{"._mean": ".running_mean", "._variance": ".running_var"},
}
PPYOLOE_HEAD = {
    "stem_cls": "class_stems",
    "stem_reg": "box_stems",
    "pred_cls": "class_predictors",
    "pred_reg": "box_predictors",
}


PICODET_NAMES = {  # official part of a name -> ours
    "backbone.conv1.": "backbone.stem.",
    **{f"backbone.blocks{stage + 1}.": f"backbone.stage{stage}." for stage in range(1, 6)},
    **{".se.conv1.": ".attention.reduce.", ".se.conv2.": ".attention.expand."},
    **{".dw_conv.": ".depthwise.", ".dwconv.": ".depthwise.conv.", ".bn1.": ".depthwise.bn."},
    **{".pw_conv.": ".pointwise.", ".pwconv.": ".pointwise.conv.", ".bn2.": ".pointwise.bn."},
    **{f"neck.conv_t.convs.{level}.": f"neck.reduce_stride{8 << level}." for level in range(3)},
    "neck.top_down_blocks.0.": "neck.up_to_stride16.",
    "neck.top_down_blocks.1.": "neck.up_to_stride8.",
    "neck.downsamples.0.": "neck.shrink_stride8.",
    "neck.downsamples.1.": "neck.shrink_stride16.",
    "neck.bottom_up_blocks.0.": "neck.down_to_stride16.",
    "neck.bottom_up_blocks.1.": "neck.down_to_stride32.",
    "neck.first_top_conv.": "neck.shrink_top.",
    "neck.second_top_conv.": "neck.shrink_stride32.",
    "head.conv_feat.se.": "head.attention_stems.",
    **{".norm.": ".bn.", "._mean": ".running_mean", "._variance": ".running_var"},
}
PICODET_PATTERNS = {  # regular expression -> replacement; the predictors have two names each
    r"^head\.conv_feat\.cls_conv_dw(\d)\.(\d)\.": r"head.convs.\1.\2.depthwise.",
    r"^head\.conv_feat\.cls_conv_pw(\d)\.(\d)\.": r"head.convs.\1.\2.pointwise.",
    r"^head\.head_cls(?:_list\.)?(\d)\.": r"head.class_predictors.\1.",
    r"^head\.head_reg(?:_list\.)?(\d)\.": r"head.box_predictors.\1.",
    r"^head\.cls_align\.(\d)\.depthwise\.": r"head.alignments.\1.0.",
    r"^head\.cls_align\.(\d)\.pointwise\.": r"head.alignments.\1.1.",
}


def of_yolox(official: str) -> str:
    """Official tensor name -> name in our YOLOX. Our own names stay unchanged."""
    name = official.removeprefix("module.")
    for theirs, ours in YOLOX_NAMES.items():
        name = name.replace(theirs, ours)
    return name


def of_yolov9(official: str) -> str | None:
    """Official tensor name -> name in our YOLOv9, or None: the auxiliary branch and a constant. Our own names stay unchanged."""
    name = re.sub(r"^((module|model)\.)+", "", official)
    number, _, rest = name.partition(".")
    if not number.isdigit():
        return name
    if int(number) not in YOLOV9_LAYERS or "anc2vec" in rest:
        return None
    name = f"{YOLOV9_LAYERS[int(number)]}.{rest}"
    for theirs, ours in YOLOV9_PATTERNS.items():
        name = re.sub(theirs, ours, name)
    return name


def of_ppyoloe(official: str) -> str | None:
    """Official tensor name -> name in our PP-YOLOE+, or None: a constant. Our own names stay unchanged."""
    if "proj_conv" in official:
        return None
    name = official
    for theirs, ours in PPYOLOE_NAMES.items():
        name = name.replace(theirs, ours)
    if stage := re.match(r"backbone\.stages\.(\d)\.(conv_down)?", name):
        part = "down" if stage[2] else "csp."
        return f"backbone.stage{int(stage[1]) + 2}.{part}{name[stage.end() :]}"
    if level := re.match(r"yolo_head\.(\w+)\.(\d)\.", name):  # their levels begin with stride 32
        return f"head.{PPYOLOE_HEAD[level[1]]}.{2 - int(level[2])}.{name[level.end() :]}"
    return name


def of_picodet(official: str) -> str | None:
    """Official tensor name -> name in our PicoDet, or None: constants and unused scales. Our own names stay unchanged."""
    if official.endswith((".project", ".scale_reg")):
        return None
    name = official
    for theirs, ours in PICODET_NAMES.items():
        name = name.replace(theirs, ours)
    for theirs, ours in PICODET_PATTERNS.items():
        name = re.sub(theirs, ours, name)
    return name
