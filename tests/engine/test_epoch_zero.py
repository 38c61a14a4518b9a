"""Epoch 0: initial weights that were trained on classes of the data are evaluated before the first step."""

import os

import pytest
from small import TINY_WEIGHTS, assert_same_run, config, log_of, only_run, same, train_quietly

import nets
import train
from utils import checkpoint

CHOSEN = ("no_aug_epochs", "warmup_epochs", "weight_decay", "learning_rate", "min_learning_rate")
NO_TRAINING = {"learning_rate": 0.0, "min_learning_rate": 0.0}


def own(images, output, **changes) -> train.Config:
    """The constants of a run that starts from a checkpoint of this program with the same classes."""
    return config(images, output, **{"weights": str(TINY_WEIGHTS), "freeze_epochs": 0, **changes})


def test_a_run_that_does_not_improve_hands_back_its_initial_weights(demo_images, tmp_path):
    cfg = own(demo_images, tmp_path, epochs=2, patience=2, save_every=1, **NO_TRAINING)
    folder, best, _ = train_quietly(cfg)
    rows = log_of(folder)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert rows[0]["loss"] == rows[0]["learning_rate"] == "" and float(rows[0]["AP"]) == best > 0
    kept = checkpoint.load(folder / "best.pt")
    assert kept["epoch"] == 0 and kept["metrics"]["AP"] == best
    assert same(kept["model"], checkpoint.load(TINY_WEIGHTS)["model"])
    assert not (folder / "epoch_0000.pt").exists() and (folder / "epoch_0001.pt").exists()


def test_training_that_is_better_replaces_the_initial_weights(demo_images, tmp_path):
    parts = train.Parts(validate=lambda *args: {"AP": 0.9, "AP50": 0.9, "val_loss": 1.0})
    rows = []
    cfg = own(demo_images, tmp_path, epochs=1)
    folder, best, _ = train_quietly(cfg, on_row=lambda row, run: rows.append(row["epoch"]), parts=parts)
    assert best == 0.9 and checkpoint.load(folder / "best.pt")["epoch"] == 1
    assert rows == [0, 1]


@pytest.mark.parametrize(
    "killed_at", [1, pytest.param(2, marks=pytest.mark.slow)]
)  # saves of last.pt: of epoch 0, then of epoch 1
def test_a_killed_run_resumes_after_epoch_0_with_the_same_bits(demo_images, tmp_path, monkeypatch, killed_at):
    expected, *_ = train_quietly(own(demo_images, tmp_path / "expected", epochs=2))
    replace, saves = os.replace, []

    def killed(source, target):
        replace(source, target)
        saves.append(os.path.basename(target))
        if saves.count("last.pt") == killed_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        train.main(own(demo_images, tmp_path / "killed", epochs=2))
    monkeypatch.setattr(os, "replace", replace)
    train_quietly(own(demo_images, tmp_path / "killed", epochs=2, resume=True))
    assert_same_run(only_run(tmp_path / "killed"), expected)


def test_weights_of_other_classes_and_weights_without_names_are_not_evaluated(demo_images, tmp_path):
    renamed = checkpoint.load(TINY_WEIGHTS) | {"classes": ["a", "b", "c", "d", "e"]}
    checkpoint.save(tmp_path / "renamed.pt", renamed)
    for number, weights in enumerate([str(tmp_path / "renamed.pt"), config(demo_images, tmp_path).weights]):
        folder, *_ = train_quietly(config(demo_images, tmp_path / str(number), epochs=1, weights=weights))
        assert [row["epoch"] for row in log_of(folder)] == ["1"]


def test_continuing_a_checkpoint_has_the_usual_rate(demo_images, tmp_path):
    folder, _, text = train_quietly(own(demo_images, tmp_path, epochs=1, **dict.fromkeys(CHOSEN)))
    assert checkpoint.load(folder / "last.pt")["config"]["learning_rate"] == 4e-3
    assert "epoch 0" in text and "usual" in text


def test_the_lower_rate_is_printed_with_its_reason_and_the_usual_one(demo_images, tmp_path, monkeypatch):
    read = nets.read_weights
    monkeypatch.setattr(nets, "read_weights", lambda *args: read(*args)._replace(official=True))
    monkeypatch.setattr(nets, "expected_ap", lambda *_: 0.1)
    folder, _, text = train_quietly(own(demo_images, tmp_path, epochs=1, **dict.fromkeys(CHOSEN)))
    assert checkpoint.load(folder / "last.pt")["config"]["learning_rate"] == pytest.approx(4e-3 / 32)
    assert "the usual one is 0.004" in text
