"""utils/config.py: constants read by their declared types, and scripts whose error messages name the fix."""

import errno
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from refused import mentions, refused, told

import evaluate
import predict
import train
from tools import convert, suspects
from utils import config, migration
from utils.config import ConfigError, check, constants_text, override, require, require_writable, show
from utils.processes import RemoteError
from utils.script import command_line, run_script

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Config:
    # data
    train: str = "data/train.txt"  # annotation file
    classes: str | None = None
    # model
    image_size: tuple[int, int] = (416, 416)  # height, width
    epochs: int = 50
    learning_rate: float = 0.01
    mosaic: float | None = 0.5
    amp: str = "none"
    resume: bool | str = False
    ema: bool | float = True
    sync_bn: bool = True
    steps: tuple[int, ...] = (8, 11)
    scale: tuple[float, float] = (0.5, 1.5)
    color: tuple[float, float, float] = (0.1, 0.7, 0.4)
    patience: int | None = None
    parts: tuple[str, ...] = ()


def parse(*argv):
    return override(Config(), argv)


def after(word, caught):
    """What a message holds after the word that it is about: the fix is not that word itself."""
    return str(caught.value).partition(word)[2]


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("epochs=100", 100),
        ("epochs=1e3", 1000),
        ("learning_rate=1", 1.0),
        ("learning_rate=1e-4", 1e-4),
        ("classes=none", None),
        ("classes=a=b.txt", "a=b.txt"),
        ("amp=none", "none"),  # text: the type does not allow None
        ("patience=none", None),
        ("mosaic=none", None),
        ("resume=true", True),
        ("resume=runs/a-1", "runs/a-1"),
        ("ema=off", False),
        ("ema=1", 1.0),
        ("ema=.99", 0.99),
        ("sync_bn=yes", True),
        ("image_size=640,480", (640, 480)),
        ("image_size=[640, 480]", (640, 480)),
        ("image_size=640", (640, 640)),
        ("scale=.1,2", (0.1, 2.0)),
        ("scale=1", (1.0, 1.0)),
        ("steps=1,2,3", (1, 2, 3)),
        ("steps=()", ()),
        ("parts=[a, b c]", ("a", "b c")),
        ("train=C:\\new\\train.txt", "C:\\new\\train.txt"),
    ],
)
def test_values_are_read_by_the_declared_type(item, value):
    name = item.partition("=")[0]
    cfg = parse(item)
    assert getattr(cfg, name) == value
    assert type(getattr(cfg, name)) is type(value)
    assert {k: v for k, v in asdict(cfg).items() if k != name} == {
        k: v for k, v in asdict(Config()).items() if k != name
    }


@pytest.mark.parametrize(
    "item",
    "epochs=ten epochs=1.5 epochs=inf epochs=nan epochs=true learning_rate=nan learning_rate=1,2 sync_bn=maybe "
    "sync_bn=none sync_bn=2 epochs=none image_size=640,480,3 image_size=a,b image_size=1.5 color=1 color=1,2 "
    "steps=1,x ema=none".split(),
)
def test_values_that_do_not_fit_are_refused_with_name_and_type(item):
    name = item.partition("=")[0]
    with refused(ConfigError, item) as raised:
        parse(item)
    first, *examples = re.findall(rf"\b{name}=\S+", str(raised.value))
    assert first.startswith(item) and parse(*examples) and examples


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        ("image-size=64", "image_size=64"),
        ("Learning_rate=1", "learning_rate=1"),
        ("zzzzzz=3", "--help"),
        ("--epochs=9", "epochs=9"),
        ("--sync-bn", "sync_bn=VALUE"),
        ("epochs", "epochs=VALUE"),
        ("epochs=", "epochs=VALUE"),
        ("image_size=1,2,3", "image_size=416,416"),
        ("patience=x", "none"),
        ("amp", "amp=none"),
        ("resume", "resume=true"),
    ],
)
def test_an_invalid_override_gets_a_hint(item, hint):
    with refused(ConfigError, item) as caught:
        parse(item)
    assert mentions(after(item, caught), hint)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--epochs 10", "epochs=10"),
        ("-epochs 10", "epochs=10"),
        ("epochs 10", "epochs=10"),
        ("epochs = 10", "epochs=10"),
        ("--learning-rate -1", "learning_rate=-1"),
        ("--imgsz 640", "image_size=640"),
        ("--lr0=.01", "learning_rate=.01"),
        ("--epochs amp=bf16", "epochs=VALUE"),
    ],
)
def test_dashes_and_spaces_get_a_message_with_the_number_of_the_user(words, fix):
    first = words.partition(" ")[0]
    with refused(ConfigError, first) as caught:
        parse(*words.split())
    assert mentions(after(first, caught), fix)


# Constants of other trainers, each with a value as their users write it -> what the message names: here, in train.py
ELSEWHERE = {
    "input_shape=640,640": "image_size=640,640",
    "imgsz=640": "image_size=640",
    "fp16=False": "amp=none",
    "Init_lr=.01": "learning_rate=.01",
    "lrf=0.01": "min_learning_rate=VALUE",  # a factor there
    "pretrained=true": "weights=coco",
    "close_mosaic=10": "no_aug_epochs=10",
    "batch=-1": "batch_size=0",
    "batch=.7": "batch_size=0",  # a fraction of the GPU's memory there
    "save_period=-1": "save_every=0",
    "cos_lr=False": "schedule=cosine",  # linear there
    "optimizer_type=SGD": "optimizer=sgd",
    "data=coco.yaml": "train=coco.yaml",
    "Freeze_Train=False": "freeze_epochs=0",
    "momentum=.9": "0.9",
    "conf=.3": "confidence=.3 is for evaluate.py, predict.py",
    "warmup=3": "warmup_epochs=3",
    "devices=8": "torchrun",
    "num_classes=3": "classes=FILE",
    "max_epoch=300": "epochs=300",
    "basic_lr_per_img=.0001": "learning_rate=VALUE",
    "mosaic_scale=0.1,2": "scale=0.1,2",
    "count=True": "predict.py",
    "dir_origin_path=img/": "source=img/",
    "map_mode=0": "evaluate.py",
    "letterbox_image=False": "aspect ratio",
    "MINOVERLAP=0.5": "AP50",
    "max_boxes=100": "max_detections=100",
    "max_detections=100": "predict.py",
    # the name exists here, and the value has another meaning or name
    "scale=.5": "scale=0.5,1.5",
    "scale=.9": "scale=0.9,0.9",
    "scale=2": "scale=2,2",
    "hsv=.015,.7,.4": "hsv=2.7,178.5,102",
    "optimizer=SGD": "optimizer=sgd",
    "optimizer=auto": "optimizer=adamw",
    "amp=True": "amp=fp16",
    "schedule=cos": "schedule=cosine",
    "multi_scale=True": "multi_scale=0.5",
    "batch_size=-1": "0: the power of two",
    "patience=-1": "0: never",
    "model=best.pt": "weights=best.pt",
}


@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_constant_of_another_program_gets_a_line_that_train_takes(word):
    """The advice is followed: a proposed line for this script is accepted."""
    with refused(ConfigError, word.partition("=")[0]) as caught:
        train.checked(override(train.Config(), [word]))
    message = str(caught.value).partition(": ")[2]
    assert mentions(message, ELSEWHERE[word])
    for line in re.findall(r"\b(?:write|mean) (\w+=[^\s;?]+)", message):
        if "VALUE" not in line and "FILE" not in line:
            train.checked(override(train.Config(), [line]))


@pytest.mark.parametrize(
    "words",
    [
        "scale=1.5,.5",
        "image_size=410,650",
        "min_learning_rate=.1 learning_rate=.01",
        "add_classes=true weights=none",
        "device=cuda:all amp=bf16",
        "epochs=ten",
        "hours=True",
        "model=YOLOX_S",
        "merg=a:b",
        "epoch=3",
    ],
)
def test_every_line_that_a_message_proposes_cures_the_fault(words):
    given = dict(word.split("=") for word in words.split())
    with refused(ConfigError if "410" not in words else ValueError, next(iter(given))) as caught:
        train.checked(override(train.Config(), words.split()))
    lines = re.findall(r"\b(\w+)=([^\s;:?)]+)", str(caught.value).partition(": ")[2])
    proposed = [(name, value) for name, value in lines if value != "FILE"]
    kept = {name: value for name, value in given.items() if name in vars(train.Config())}
    for name, value in proposed:
        train.checked(override(train.Config(), [f"{key}={text}" for key, text in {**kept, name: value}.items()]))
    assert proposed


def test_only_a_slip_of_a_name_gets_a_guess():
    names = vars(train.Config())
    slips = {"epoch": "epochs", "epoches": "epochs", "batchsize": "batch_size", "lerning_rate": "learning_rate"}
    slips |= {"mosiac": "mosaic", "weigth_decay": "weight_decay", "sed": "seed", "imagesize": "image_size"}
    for slip, name in slips.items():
        told(migration.unknown_constant(slip, "1", names), f"{name}=1")
    for other in ("phase", "input", "threshold", "scales_of"):
        assert "=1" not in migration.unknown_constant(other, "1", names), other


def test_every_constant_in_the_tables_of_other_programs_exists():
    of_tools = vars(convert.Config()) | vars(suspects.Config())
    words = [name.lower() for names in migration.NAMES for name in names.split()]
    assert len(words) == len(set(words))
    for there, here in migration.NAMES.items():
        assert here.lines or here.note, there
        for line in here.lines:
            name = migration.constant_in(line)
            assert migration.scripts_with(name) or name in of_tools, there


def test_words_without_a_name_are_constants_where_only_one_fits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b.txt").write_text("")
    Path("data").mkdir()
    positional = {"classes": config.is_weights, "train": os.path.exists}
    for argv, changes in (
        (["data"], {"train": "data"}),
        (["a=b.txt", "epochs=3"], {"train": "a=b.txt", "epochs": 3}),
        (["best.pt", "data"], {"classes": "best.pt", "train": "data"}),
    ):
        assert override(Config(), argv, positional) == replace(Config(), **changes)
    for argv, named in (
        (["none.txt"], ("'none.txt'", "classes=none.txt", "train=none.txt")),
        (["data", "data"], ("train=", "train=data")),
        (["train=x", "data"], ("train=",)),
        (["train="], ("train=VALUE", "train=data/train.txt")),
        (["train", "data"], ("train=data",)),
        (["data=x"], ("train=x",)),
        (["data="], ("train=VALUE",)),
        (["imgsz=640"], ("image_size=640",)),
        (["epochs"], ("epochs=VALUE", "epochs=50")),
    ):
        with refused(ConfigError, *named):
            override(Config(), argv, positional)


def test_numbers_outside_of_the_limits_and_unknown_words_are_refused():
    limits = {"epochs": 1, "scale": 0.1}, {"mosaic": 1}, {"amp": ("fp16", "none")}
    for good in (None, 0.0, 1.0):
        require(Config(mosaic=good, epochs=1, scale=(0.1, 0.1)), *limits)
    for wrong, named in (
        ({"epochs": 0}, ("epochs=0", "at least 1")),
        ({"scale": (0.05, 2.0)}, ("scale=0.05,2", "at least 0.1")),
        ({"mosaic": 1.5}, ("mosaic=1.5", "at most 1")),
        ({"amp": "fp61"}, ("amp=fp61", "fp16?", "fp16, none")),
    ):
        with refused(ConfigError, *named):
            require(Config(**wrong), *limits)


def test_a_folder_that_cannot_be_written_is_refused_and_a_good_one_stays_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    before = sorted(tmp_path.iterdir())
    for good in (tmp_path, tmp_path / "new/folder"):
        require_writable("output=x", good)
    bad = [tmp_path / "file", tmp_path / "file/new", tmp_path / "dangling"]
    for folder in bad + [Path("/proc/x")] * (sys.platform == "linux"):  # the administrator has permission for /proc
        with refused(ConfigError, "output=x"):
            require_writable("output=x", folder)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with refused(ConfigError, "output=x", tmp_path, "read-only", "output=FILE"):
        require_writable("output=x", tmp_path / "new", "give output=FILE")
    assert sorted(tmp_path.iterdir()) == before


def test_a_constant_without_a_type_is_refused_with_the_fix():
    @dataclass(frozen=True)
    class Forgot:
        epochs: int = 3
        batch_size = 8

    with refused(ConfigError, "batch_size: int = 8"):
        override(Forgot(), [])


def test_control_characters_in_a_windows_path_are_refused_with_the_fix():
    for path in ("C:\new\table.txt", "C:\1.txt"):
        with refused(ConfigError, "train", repr(path), 'r"'):
            check(Config(train=path))


def test_the_fix_of_another_path_with_a_control_character_is_about_no_quotes():
    with refused(ConfigError, "train", "rename") as caught:
        override(Config(), ["train=photos/a\x07.jpg"])
    assert 'r"' not in str(caught.value)


def test_values_typed_into_the_file_get_their_declared_types():
    cfg = check(
        Config(train=Path("a/b.txt"), learning_rate=1, image_size=[64, np.int64(96)], scale=[1, 2], epochs=np.int32(3))
    )
    assert cfg == replace(
        Config(), train=str(Path("a/b.txt")), learning_rate=1.0, image_size=(64, 96), scale=(1.0, 2.0), epochs=3
    )
    types = [type(v) for v in (cfg.train, cfg.learning_rate, *cfg.image_size, cfg.scale[0], cfg.epochs)]
    assert types == [str, float, int, int, float, int]


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": "50"}, {"epochs": True}, {"epochs": 1.5}, {"train": None}, {"train": 3}, {"sync_bn": 1}]
    + [
        {"scale": 0.5},
        {"image_size": "640,640"},
        {"image_size": (1, 2, 3)},
        {"learning_rate": float("inf")},
        {"ema": "x"},
    ],
)
def test_values_of_another_type_in_the_file_are_refused(wrong):
    ((name, value),) = wrong.items()
    with refused(ConfigError, f"{name} = {value!r}"):
        check(Config(**wrong))


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        Config,
        image_size=st.tuples(st.integers(), st.integers()),
        epochs=st.integers(),
        learning_rate=numbers,
        mosaic=st.none() | numbers,
        resume=st.booleans(),
        ema=st.booleans() | numbers,
        steps=st.lists(st.integers()).map(tuple),
        scale=st.tuples(numbers, numbers),
        patience=st.none() | st.integers(),
        amp=st.text("abc,/ =[]", min_size=1).map(str.strip).filter(bool),
    )
)
def test_every_shown_value_can_be_typed(cfg):
    argv = [f"{name}={show(value)}" for name, value in asdict(cfg).items()]
    assert override(Config(), argv) == cfg


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_prints_the_constants_with_their_comments(flag, capsys):
    with pytest.raises(SystemExit) as stop:
        parse("epochs=3", flag)
    out = capsys.readouterr().out
    assert stop.value.code == 0
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  ")}
    assert set(asdict(Config())) == {word.partition("=")[0] for word in rows}  # each once, with its default
    assert parse(*(word for word in rows if not word.endswith("=()"))) == Config()
    assert rows["image_size=416,416"].endswith("height, width")  # its comment
    assert {"data", "model"} < set(out.splitlines())  # the groups
    assert "None" not in out and "str" not in out


def test_constants_that_were_changed_or_chosen_can_be_typed_again_and_no_other_is_printed():
    written = replace(Config(), train="my data", image_size=(64, 96), patience=None)
    lines = constants_text(replace(written, patience=3), written, {"total_steps": 90}).splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        ["changed", "'train=my data' image_size=64,96"],
        ["chosen", "patience=3"],
        ["total_steps", "90"],
    ]
    assert constants_text(Config(), Config(), {}) == ""


def run(error):
    def main():
        raise error

    run_script(main, stopped="continue with resume=true", memory_advice="lower batch_size=")


@pytest.mark.parametrize(
    "error, message",
    [
        (ValueError("wrong"), "^\nwrong$"),
        (PermissionError("no"), "^\nno$"),
        (ConfigError("epochs=0"), "^\nepochs=0$"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to"), "^\nCUDA out of memory: lower batch_size=$"),
        (
            torch.cuda.OutOfMemoryError("CUDA out of memory: lower image_size="),
            "^\nCUDA out of memory: lower image_size=$",
        ),
    ],
)
def test_user_errors_end_a_script_in_one_line(error, message):
    with pytest.raises(SystemExit, match=message):
        run(error)


def test_ctrl_c_ends_a_script_in_one_line_with_its_own_status(capsys):
    with pytest.raises(SystemExit) as caught:
        run(KeyboardInterrupt())
    assert caught.value.code == 130 and capsys.readouterr().err.strip() == "continue with resume=true"


def test_the_command_to_continue_can_be_pasted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["my train.py", "name=x"])
    words = ["resume=a b", "name=x"]
    assert command_line("my train.py", words) == "python 'my train.py' 'resume=a b' name=x"
    assert command_line("other.py", words) == "'resume=a b' name=x"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert command_line("my train.py", words) == "torchrun ... 'my train.py' 'resume=a b' name=x"


@pytest.fixture
def rank_1(monkeypatch):
    """This is rank 1, the second process of a node, under torchrun."""
    monkeypatch.setattr("utils.script.PAUSE", 0.01)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("rank_1")
def test_a_failing_rank_prints_its_rank():
    for error in (ValueError("wrong"), SystemExit("in one sentence")):
        with pytest.raises(SystemExit, match=f"rank 1: .*{error}"):
            run(error)
    with pytest.raises(TypeError):
        run(TypeError("a bug"))


@pytest.mark.parametrize("error", [RuntimeError("[gloo/pair.cc:1] Connection closed"), dist.DistError("NCCL timeout")])
@pytest.mark.usefixtures("rank_1")
def test_a_rank_that_lost_the_others_prints_one_line(error):
    with refused(SystemExit, "rank 1", "timeout_minutes=") as raised:
        run(error)
    assert "\n" not in str(raised.value).strip()


@pytest.mark.usefixtures("rank_1")
def test_a_rank_that_ends_because_another_failed_prints_nothing():
    with pytest.raises(SystemExit) as raised:
        run(RemoteError("rank 0 failed"))
    assert raised.value.code == 1


@pytest.mark.parametrize(
    "named, fix",
    [({"imgsz": 640}, "image_size=640"), ({"confidense": 0.3}, "confidence=0.3"), ({"epochs": 3}, "train.py")],
)
def test_an_unknown_constant_in_python_gets_the_help_of_the_command_line(named, fix):
    with refused(ConfigError, fix):
        predict.Config("best.pt", **named)


def test_a_quotient_is_shown_without_its_rounding_error():
    assert show(5.4 / 18) == "0.3" != repr(5.4 / 18) and show(1 / 3) == repr(1 / 3)


def test_a_pattern_that_the_shell_left_is_the_one_path_that_it_matches(tmp_path):
    """cmd.exe and PowerShell do not expand patterns."""
    for name in ("a-1", "b [1]"):
        (tmp_path / name).mkdir()
    positional = {"checkpoint": os.path.exists}
    for word, path in (("a-*", "a-1"), ("b [1]", "b [1]")):
        assert override(evaluate.Config(), [str(tmp_path / word)], positional).checkpoint == str(tmp_path / path)
    with refused(ConfigError, "2 paths", tmp_path / "a-1"):
        override(evaluate.Config(), [str(tmp_path / "*")], positional)
