"""engine/run_constants.py: which constants a run has that is resumed in one word, and which run that is."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from golden import kept
from refused import refused
from small import config, train_quietly

import train
from datasets.errors import DataError
from engine.origin import Origin
from engine.run_constants import constants_of, with_constants_of
from utils import checkpoint
from utils.config import ConfigError

CHANGES = {"mosaic": 0.25, "flip": 0.0, "epochs": 2, "val": ".3", "accumulate": 2, "save_minutes": 3.0}


@pytest.fixture(scope="module")
def trained(demo_images, tmp_path_factory):
    """The constants and the folder of a run that splits off its validation images, in a separate folder."""
    cfg = config(demo_images, tmp_path_factory.mktemp("runs"), learning_rate=None, min_learning_rate=None, **CHANGES)
    return cfg, train_quietly(cfg)[0]


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(trained[1], tmp_path / "copies" / trained[1].name))


def change_constants(folder: Path, **changes) -> None:
    """Changes constants as written of a run; those that become `...` are removed."""
    last = torch.load(folder / "last.pt", weights_only=True)
    written = last["resume"]["origin"]["user_config"] | changes
    last["resume"]["origin"]["user_config"] = {name: value for name, value in written.items() if value is not ...}
    torch.save(last, folder / "last.pt")


def test_constants_are_as_written_not_as_the_run_chose_them(trained):
    """So rates and splits are chosen again from the same data, and automatic workers fit another computer."""
    cfg, folder = trained
    for word in (f"resume={folder}", f"resume={folder / 'last.pt'}"):
        assert replace(train.from_command_line([word]), resume=False) == cfg
    by_name = train.from_command_line(["resume=true", f"name={cfg.name}", f"output={cfg.output}"])
    assert by_name == replace(cfg, resume=True)
    assert constants_of(folder)["val"] == ".3" and constants_of(folder)["learning_rate"] is None


def test_the_command_line_wins_over_the_run_and_the_run_over_the_file(trained, capsys):
    cfg, folder = trained
    edited = replace(train.Config(), mosaic=1.0, epochs=77, optimizer="sgd", train="elsewhere", save_minutes=1.0)
    found = with_constants_of(folder, edited, ["epochs=9", "save_minutes=3"], {})
    assert found == replace(cfg, epochs=9)
    out = capsys.readouterr().out
    assert str(folder) in out and "epochs=9" in out and "demo" not in out
    assert "save_minutes" not in out  # it is the value of the run


def test_a_changed_constant_that_must_not_change_is_refused(trained):
    _, folder = trained
    with refused(ConfigError, folder.name, "mosaic=0.5 (was 0.25)"):
        train_quietly(train.from_command_line([f"resume={folder}", "mosaic=.5"]))


def test_other_names_of_the_classes_are_refused_although_their_file_may_be_another(tmp_path):
    origin, names = object.__new__(Origin), ["cat", "dog"]
    origin.user_config, origin.folder = train.Config(classes="here.txt"), tmp_path
    before = {"user_config": asdict(train.Config(classes="there.txt")), "fingerprint": {"classes": names}}
    origin.last = {"resume": {"origin": before}}
    data = [SimpleNamespace(with_range=lambda _, split=split: (split, [])) for split in ("train", "val")]
    assert origin.checked_against_run(data, {"classes": names}, train.MAY_CHANGE) == ("train", "val")
    with refused(ConfigError, tmp_path, "classes=dog,cat (was cat,dog)"):
        origin.checked_against_run(data, {"classes": names[::-1]}, train.MAY_CHANGE)


def test_a_renamed_run_keeps_its_constants(copy, trained):
    other = copy.rename(copy.with_name("best-of-all"))
    assert train.from_command_line([f"resume={other}"]).name == trained[0].name


def test_a_finished_run_is_extended(copy):
    assert "epochs=" in train_quietly(replace(train.from_command_line([f"resume={copy}"]), output=str(copy.parent)))[2]
    _, _, text = train_quietly(train.from_command_line([f"resume={copy}", "epochs=3", f"output={copy.parent}"]))
    assert (copy / "log.csv").read_text().count("\n") == 1 + 3 and "done" in text


def test_unknown_constants_are_named_missing_ones_have_the_value_of_the_file(copy, capsys, trained):
    change_constants(copy, brightness=0.5, patience=...)
    assert replace(train.from_command_line([f"resume={copy}"]), resume=False) == trained[0]
    assert "brightness" in capsys.readouterr().out


def test_a_run_whose_data_were_moved_names_the_constant_and_resumes_with_it(copy, demo_images, tmp_path):
    change_constants(copy, train=str(tmp_path / "before"))
    with refused(DataError, copy, tmp_path / "before", "train="):
        train.main(train.from_command_line([f"resume={copy}"]))
    text = train_quietly(train.from_command_line([f"resume={copy}", f"train={demo_images}"]))[2]
    assert "nothing to do" in text


def test_a_constant_of_another_type_names_the_run(copy):
    change_constants(copy, scale="large")
    with refused(ConfigError, copy.name, "scale"):
        train.from_command_line([f"resume={copy}"])


def test_the_kept_run_of_an_earlier_version_resumes_in_one_word(tmp_path, monkeypatch):
    monkeypatch.chdir(kept.FOLDER.parent)
    folder = tmp_path / "kept-2026-01-31-1"
    folder.mkdir()
    shutil.copy(kept.LAST, folder)
    _, _, text = train_quietly(
        train.from_command_line([f"resume={folder}", f"output={tmp_path}"]), extra_augment=kept.unchanged
    )
    assert "resuming" in text and checkpoint.load(folder / "last.pt")["epoch"] == 3


def test_a_new_run_starts_only_if_the_command_names_its_data(demo_images, tmp_path, capsys):
    words = ["resume=true", "name=new", f"output={tmp_path}"]
    with refused(ConfigError, "name=new", "train="):
        train.from_command_line(words)
    with refused(ConfigError, f"resume={tmp_path / 'new'}"):
        train.from_command_line([f"resume={tmp_path / 'new'}"])
    whole = [*words, f"train={demo_images}"]
    assert train.from_command_line(whole) == train.Config(
        train=str(demo_images), name="new", output=str(tmp_path), resume=True
    )
    (tmp_path / "new-2026-01-31-1").mkdir()  # killed before its first save
    assert train.from_command_line(whole).resume is True
    with refused(ConfigError, "last.pt"):
        train.from_command_line(words)
    assert train.from_command_line(["resume=true", f"output={tmp_path}"]).name == train.DEMO["name"]
    assert train.from_command_line([*words, "train=data/demo/train.txt"]).name == "new"


def test_the_name_of_a_run_resumes_its_newest_folder(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()  # the data of the run
    shutil.copytree(copy, copy.with_name("small-2999-01-01-1"))
    found = train.from_command_line(["resume=small", f"output={copy.parent}"])
    assert found.resume == str(copy.with_name("small-2999-01-01-1"))
    assert train.from_command_line([f"resume={copy.name}", f"output={copy.parent}"]).resume == str(copy)
    with refused(ConfigError, "resume=smal", copy.parent):
        train.from_command_line(["resume=smal", f"output={copy.parent}"])


def test_the_name_of_a_run_as_weights_is_its_newest_checkpoint(copy, tmp_path, monkeypatch):
    cfg = train.Config(output=str(copy.parent), name="more", weights="small")
    assert train.checked(cfg).weights == str(copy / "best.pt")
    assert train.checked(replace(cfg, weights=str(copy))).weights == str(copy / "best.pt")
    shutil.copytree(copy, copy.with_name("early-2026-01-31-1"), ignore=shutil.ignore_patterns("best.pt"))
    with refused(ConfigError, "weights=early", copy.with_name("early-2026-01-31-1") / "last.pt"):
        train.checked(replace(cfg, weights="early"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "early").mkdir()  # the data of the run
    with refused(ConfigError, "weights=early", copy.with_name("early-2026-01-31-1") / "last.pt"):
        train.checked(replace(cfg, weights="early"))
    shutil.copytree(copy, copy.with_name("coco-2026-01-31-1"))
    assert train.checked(replace(cfg, weights="coco")).weights == "coco"


def test_resume_true_alone_does_not_train_the_demo_next_to_other_runs(copy):
    with refused(ConfigError, f"resume={copy}"):
        train.from_command_line(["resume=true", f"output={copy.parent}"])


def test_the_run_of_torchrun_s_id_is_found_not_the_newest(copy, monkeypatch):
    newest = Path(shutil.copytree(copy, copy.with_name("small-2999-01-01-1")))
    change_constants(newest, seed=7)
    start = json.loads((copy / "environment.json").read_text())
    (copy / "environment.json").write_text(json.dumps(start | {"run": "job 7"}))
    words = ["resume=true", "name=small", f"output={copy.parent}"]
    assert train.from_command_line(words).seed == 7
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    assert train.from_command_line(words).seed == 2
