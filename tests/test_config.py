"""utils/config.py: constants read by their declared types, and scripts whose error messages name the fix."""

import errno
import json
import os
import subprocess
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

from utils import config
from utils.config import ConfigError, check, override, require, require_writable, run_script, show, table
from utils.distributed import RemoteError

ROOT = Path(__file__).parents[1]


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


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("epochs=100", 100),
        ("epochs=1e3", 1000),
        ("epochs=64.0", 64),
        ("learning_rate=1", 1.0),
        ("learning_rate=1e-4", 1e-4),
        ("classes=none", None),
        ("classes=None", None),
        ("classes=my classes.txt", "my classes.txt"),
        ("classes=a=b.txt", "a=b.txt"),
        ("amp=none", "none"),  # text: the type does not allow None
        ("amp=fp16", "fp16"),
        ("patience=none", None),
        ("patience=5", 5),
        ("mosaic=none", None),
        ("mosaic=1", 1.0),
        ("resume=true", True),
        ("resume=1", True),
        ("resume=runs/a-1", "runs/a-1"),
        ("ema=off", False),
        ("ema=1", 1.0),
        ("ema=.99", 0.99),
        ("sync_bn=0", False),
        ("sync_bn=yes", True),
        ("image_size=640,480", (640, 480)),
        ("image_size=[640, 480]", (640, 480)),
        ("image_size=(640,480)", (640, 480)),
        ("image_size=640", (640, 640)),
        ("scale=.1,2", (0.1, 2.0)),
        ("steps=3", (3,)),
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
    with pytest.raises(
        ConfigError, match=f"{item}: {item.partition('=')[0]} is (int|float|bool|tuple).*, for example "
    ):
        parse(item)


@pytest.mark.parametrize("name", ["epochs", "epoch", "-1", "{0}", "\n\n{0}", "a\x7f\ufeff{0}"])
def test_a_long_word_hides_neither_the_problem_nor_the_fix(name):
    with pytest.raises(ConfigError, match="for example|did you mean epochs|--help|write name=value") as raised:
        parse(name.format("x" * 5000) + "=" + "[\x7f" * 5000)
    assert len(str(raised.value)) < 1000 and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        ("epoch=3", "did you mean epochs"),
        ("image-size=64", "did you mean image_size"),
        ("Learning_rate=1", "did you mean learning_rate"),
        ("zzzzzz=3", "--help"),
        ("--epochs=9", "epochs=9"),
        ("--sync-bn", "sync_bn=VALUE"),
        ("epochs", "epochs=VALUE"),
        ("epochs=", "epochs=VALUE"),
        ("image_size=1,2,3", r"tuple\[int, int\], for example 416,416"),
    ],
)
def test_an_invalid_override_gets_a_hint(item, hint):
    with pytest.raises(ConfigError, match=hint):
        parse(item)


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
    for argv, message in (
        (["none.txt"], r"none.txt': there is no such file or folder in .*; write classes=none.txt or train=none.txt"),
        (["data", "data"], "train= is given twice: write the name before each word, as in train=data"),
        (["train=x", "data"], "train= is given twice"),
        (["train="], "train=VALUE; train is str, for example data/train.txt"),
        (["data=x"], "did you mean train=x"),
        (["data="], "did you mean train=VALUE"),
        (["imgsz=640"], "did you mean image_size=640"),
        (["epochs"], "epochs=VALUE; epochs is int, for example 50"),
    ):
        with pytest.raises(ConfigError, match=message):
            override(Config(), argv, positional)


def test_numbers_outside_of_the_limits_and_unknown_words_are_refused():
    limits = {"epochs": 1, "scale": 0.1}, {"mosaic": 1}, {"amp": ("fp16", "none")}
    require(Config(mosaic=None), *limits)
    for wrong, message in (
        ({"epochs": 0}, "epochs=0: it must be at least 1"),
        ({"scale": (0.05, 2.0)}, "scale=0.05,2: it must be at least 0.1"),
        ({"mosaic": 1.5}, "mosaic=1.5: it must be at most 1"),
        ({"amp": "fp61"}, "amp=fp61: did you mean fp16.*fp16, none"),
    ):
        with pytest.raises(ConfigError, match=message):
            require(Config(**wrong), *limits)


def test_a_folder_that_cannot_be_written_is_refused_and_a_good_one_stays_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    before = sorted(tmp_path.iterdir())
    for good in (tmp_path, tmp_path / "new/folder"):
        require_writable("output=x", good)
    bad = [tmp_path / "file", tmp_path / "file/new", tmp_path / "dangling", tmp_path / ("n" * 5000)]
    for folder in bad + [Path("/proc/x")] * (sys.platform == "linux"):  # the administrator has permission for /proc
        with pytest.raises(ConfigError, match="output=x: .*name another folder"):
            require_writable("output=x", folder)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(ConfigError, match="output=x: .*Read-only"):
        require_writable("output=x", tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_the_last_of_two_overrides_wins():
    assert parse("epochs=3", "amp=bf16", "epochs=4") == replace(Config(), epochs=4, amp="bf16")


def test_a_constant_without_a_type_is_refused_with_the_fix():
    @dataclass(frozen=True)
    class Forgot:
        epochs: int = 3
        batch_size = 8

    with pytest.raises(ConfigError, match=r"batch_size: int = 8"):
        override(Forgot(), [])


def test_control_characters_in_a_windows_path_are_refused_with_the_fix():
    for path in ("C:\new\table.txt", "C:\1.txt"):
        with pytest.raises(ConfigError, match="control character.*r before the quotes"):
            check(Config(train=path))


def test_values_typed_into_the_file_get_their_declared_types():
    cfg = check(
        Config(train=Path("a/b.txt"), learning_rate=1, image_size=[64, np.int64(96)], scale=2, epochs=np.int32(3))
    )
    assert cfg == replace(
        Config(), train=str(Path("a/b.txt")), learning_rate=1.0, image_size=(64, 96), scale=(2.0, 2.0), epochs=3
    )
    types = [type(v) for v in (cfg.train, cfg.learning_rate, *cfg.image_size, cfg.scale[0], cfg.epochs)]
    assert types == [str, float, int, int, float, int]


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": "50"}, {"epochs": True}, {"epochs": 1.5}, {"train": None}, {"train": 3}, {"sync_bn": 1}]
    + [{"image_size": "640,640"}, {"image_size": (1, 2, 3)}, {"learning_rate": float("inf")}, {"ema": "x"}],
)
def test_values_of_another_type_in_the_file_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
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
    assert "# height, width" in out and "learning_rate: float = 0.01" in out and "# data" in out


def test_the_table_marks_changed_values_and_shows_derived_ones():
    lines = table(parse("epochs=9", "image_size=64"), Config(), {"total_steps": 90}).splitlines()
    (epochs,) = [line for line in lines if "epochs" in line]
    assert epochs.startswith("*") and "9" in epochs and "was 50" in epochs
    assert [line.split()[1] for line in lines if line.startswith("* ")] == ["image_size", "epochs"]
    assert lines[-2].strip() == "derived" and lines[-1].split() == ["total_steps", "90"]
    demo = replace(Config(), epochs=9)
    assert not any(line.startswith("*") for line in table(demo, demo, {}).splitlines())
    lines = table(
        parse("epochs=9", "image_size=64"), Config(), {}, {"epochs": None, "image_size": (64, 64)}
    ).splitlines()
    assert [line.split()[-1] for line in lines if "epochs" in line] == ["(chosen)"]
    assert [line[0] for line in lines if "epochs" in line or "image_size" in line] == ["*", " "]


def run(error):
    def main():
        raise error

    run_script(main, stopped="continue with resume=true", memory_advice="lower batch_size=")


@pytest.mark.parametrize(
    "error, message",
    [
        (ValueError("wrong"), "ValueError: wrong"),
        (PermissionError("no"), "PermissionError: no"),
        (ConfigError("epochs=0"), "ConfigError: epochs=0"),
        (KeyboardInterrupt(), "continue with resume=true"),
        (torch.cuda.OutOfMemoryError("full"), "CUDA out of memory: lower batch_size="),
    ],
)
def test_user_errors_end_a_script_in_one_line(error, message):
    with pytest.raises(SystemExit, match=message):
        run(error)


def test_other_errors_keep_their_traceback():
    with pytest.raises(TypeError):
        run(TypeError("a bug"))


@pytest.mark.parametrize(
    "words",
    [["train.py"], *(pytest.param(words, marks=pytest.mark.slow) for words in (
        ["evaluate.py"], ["predict.py"], ["export.py"], ["-m", "tools.convert"], ["-m", "tools.check"]
    ))],
)  # fmt: skip
def test_a_missing_system_library_is_reported_with_the_fix(tmp_path, words):
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "libGL.so.1" in done.stderr and "apt-get install" in done.stderr


def test_a_character_that_the_terminal_cannot_show_does_not_end_a_script():
    program = "from utils.config import run_script; run_script(lambda: print('猫 done'), '', '')"
    env = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "? done"


@pytest.fixture
def rank_1(monkeypatch, tmp_path):
    """This is rank 1, the second process of a node, under torchrun -> the file in which torchrun expects the error."""
    monkeypatch.setattr(config, "PAUSE", 0.01)
    file = tmp_path / "error.json"
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_ERROR_FILE": str(file)}.items():
        monkeypatch.setenv(name, value)
    return file


def test_a_failing_rank_prints_its_rank_and_reports_to_torchrun(rank_1):
    for error in (ValueError("wrong"), SystemExit("in one sentence")):
        with pytest.raises(SystemExit, match=f"rank 1: .*{error}"):
            run(error)
        assert str(error) in json.loads(rank_1.read_text())["message"]["message"]
    with pytest.raises(TypeError):
        run(TypeError("a bug"))
    assert json.loads(rank_1.read_text())["message"]["message"] == "TypeError: a bug"


@pytest.mark.parametrize("error", [RuntimeError("[gloo/pair.cc:1] Connection closed"), dist.DistError("NCCL timeout")])
def test_a_rank_that_lost_the_others_prints_one_line(rank_1, error):
    with pytest.raises(SystemExit, match="rank 1: lost the connection.*timeout_minutes") as raised:
        run(error)
    assert "\n" not in str(raised.value).strip() and str(error) in json.loads(rank_1.read_text())["message"]["message"]


def test_a_rank_that_ends_because_another_failed_prints_nothing(rank_1):
    with pytest.raises(SystemExit) as raised:
        run(RemoteError("rank 0 failed"))
    assert raised.value.code == 1 and not rank_1.exists()


def test_a_constant_that_was_replaced_names_the_new_one():
    with pytest.raises(ConfigError, match="skip_bad_images has been replaced: write bad_images=skip"):
        override(Config(), ["skip_bad_images=true"])
