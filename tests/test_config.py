"""utils/config.py: constants from the command line by their declared type, with cures for what users get wrong."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.config import ConfigError, check, help_text, override, show, table


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
    colour: tuple[float, float, float] = (0.1, 0.7, 0.4)
    patience: int | None = None

    def not_a_constant(self) -> int:
        return self.epochs


def given_line(*argv):
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
        ("amp=none", "none"),  # a word of its own: the type admits no None
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
        ("train=C:\\new\\train.txt", "C:\\new\\train.txt"),
    ],
)
def test_values_are_read_by_the_declared_type(item, value):
    name = item.partition("=")[0]
    cfg = given_line(item)
    assert getattr(cfg, name) == value
    assert type(getattr(cfg, name)) is type(value)
    assert {k: v for k, v in asdict(cfg).items() if k != name} == {
        k: v for k, v in asdict(Config()).items() if k != name
    }


@pytest.mark.parametrize(
    "item",
    "epochs=ten epochs=1.5 epochs=inf epochs=nan epochs=true learning_rate=nan learning_rate=1,2 sync_bn=maybe "
    "sync_bn=none sync_bn=2 epochs=none image_size=640,480,3 image_size=a,b image_size=1.5 colour=1 colour=1,2 "
    "steps=1,x ema=none".split(),
)
def test_values_that_do_not_fit_are_refused_with_name_and_type(item):
    with pytest.raises(ConfigError, match=f"{item.partition('=')[0]} is .*(number|True|values)"):
        given_line(item)


def test_tuple_messages_show_how_many_values_are_wanted():
    with pytest.raises(ConfigError, match=r"image_size=1,2,3: image_size is 2 values with commas between them"):
        given_line("image_size=1,2,3")


@pytest.mark.parametrize(
    ("item", "meant"), [("epoch=3", "epochs"), ("image-size=64", "image_size"), ("Learning_rate=1", "learning_rate")]
)
def test_an_unknown_name_says_which_was_meant(item, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        given_line(item)


def test_an_unknown_name_like_nothing_points_to_the_help():
    with pytest.raises(ConfigError, match="--help"):
        given_line("zzzzzz=3")


@pytest.mark.parametrize(
    ("argv", "cure"),
    [
        (["--epochs=9"], "epochs=9"),
        (["--sync-bn"], "sync_bn=value"),
        (["epochs"], "epochs=value"),
        (["epochs="], "VAL"),
    ],
)
def test_other_ways_of_writing_an_override_get_the_cure(argv, cure):
    with pytest.raises(ConfigError, match=cure):
        given_line(*argv)


def test_the_last_of_two_wins():
    assert given_line("epochs=3", "amp=bf16", "epochs=4") == replace(Config(), epochs=4, amp="bf16")


def test_a_constant_without_a_type_is_refused_with_the_cure():
    @dataclass(frozen=True)
    class Forgot:
        epochs: int = 3
        batch_size = 8

    with pytest.raises(ConfigError, match=r"batch_size: int = 8"):
        override(Forgot(), [])


def test_control_characters_in_a_windows_path_are_refused_with_the_cure():
    with pytest.raises(ConfigError) as error:
        check(Config(train="C:\new\table.txt"))
    assert r'r"C:\new\table.txt"' in str(error.value)
    assert '"C:/new/table.txt"' in str(error.value)
    with pytest.raises(ConfigError, match=r"\\x01"):
        check(Config(classes="C:\1.txt"))


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
def test_what_is_shown_can_be_typed(cfg):
    argv = [f"{name}={show(value)}" for name, value in asdict(cfg).items()]
    assert override(Config(), argv) == cfg


def test_the_help_prints_the_constants_with_their_comments(capsys):
    for flag in ("-h", "--help"):
        with pytest.raises(SystemExit) as stop:
            given_line("epochs=3", flag)
        assert stop.value.code == 0
        out = capsys.readouterr().out
        assert "# height, width" in out and "learning_rate: float = 0.01" in out and "# data" in out
        assert "not_a_constant" not in out


def test_the_help_works_without_a_source_file():
    scope: dict = {"dataclass": dataclass}
    exec("@dataclass(frozen=True)\nclass Config:\n    epochs: int = 7\n", scope)
    assert "epochs  7" in help_text(scope["Config"]())


def test_the_table_marks_what_was_changed_and_shows_derived_values():
    lines = table(given_line("epochs=9", "image_size=64"), derived={"total_steps": 90}).splitlines()
    (epochs,) = [line for line in lines if "epochs" in line]
    assert epochs.startswith("*") and "9" in epochs and "was 50" in epochs
    assert [line.split()[1] for line in lines if line.startswith("* ")] == ["image_size", "epochs"]
    assert lines[-2].strip() == "derived" and lines[-1].split() == ["total_steps", "90"]
    demo = replace(Config(), epochs=9)
    assert not any(line.startswith("*") for line in table(demo, defaults=demo).splitlines())
