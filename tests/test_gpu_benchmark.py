"""benchmarks/gpu.py, rehearsed on the simulated GPU: every part makes rows, and a part that fails leaves the others alone."""

from unittest.mock import patch

import pytest
import torch
from refused import refused
from simulated_gpu import simulated_gpu
from toys import detector

import nets
from benchmarks import gpu, gpu_parts

TINY = {"models": ("yolox_nano",), "amps": ("fp16",), "size": 64, "batch_size": 2}


@pytest.fixture
def tiny(demo_images, tmp_path):
    data = str(demo_images / "train.txt")
    return gpu.Config(**TINY, seconds=0.0, data=data, workers=0, results=str(tmp_path / "gpu.json"))


def rehearse(cfg, part, monkeypatch):
    monkeypatch.setattr(nets, "build", lambda name, num_classes, *_: detector(num_classes=num_classes))
    with simulated_gpu(), patch.object(torch.cuda, "set_sync_debug_mode", lambda _: None):
        return list(gpu.rows(cfg, part))


@pytest.mark.parametrize(
    "part, column",
    [
        pytest.param("speed", "ms per step", marks=pytest.mark.slow),
        pytest.param("memory", "probe / peak", marks=pytest.mark.slow),
    ],
)
def test_part_measures_on_the_simulated_gpu(tiny, part, column, monkeypatch):
    rows = rehearse(tiny, part, monkeypatch)
    assert rows and all("error" not in row and row[column] >= 0 for row in rows), rows


@pytest.mark.slow
def test_part_trains_runs(tiny, monkeypatch):
    monkeypatch.setitem(gpu.PARTS, "runs", (600, "without a narrow budget"))
    rows = rehearse(tiny, "runs", monkeypatch)
    assert [row["trainer"] for row in rows] == ["this one"] * 3 + ["ultralytics", "libreyolo"]
    assert not any("error" in row for row in rows[:3]) and all("peers=PYTHON" in row["error"] for row in rows[3:]), rows


def test_error_becomes_a_row_and_the_next_row_is_measured(tiny, monkeypatch):
    def steps(cfg, model, amp):
        if amp == "fp16":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nMore lines")
        return {"images/s": 7}

    monkeypatch.setattr(gpu_parts, "steps", steps)
    rows = list(gpu_parts.speed(gpu.Config(models=("yolox_s",)), float("inf")))
    assert [row.get("images/s") for row in rows] == [7, None, 7]
    assert rows[1] == {"model": "yolox_s", "amp": "fp16", "error": "OutOfMemoryError: CUDA out of memory."}


def test_no_row_begins_after_the_time_budget(tiny):
    rows = list(gpu_parts.speed(gpu.Config(), 0.0))
    assert len(rows) == 12 and all("budget" in row["error"] for row in rows)


@pytest.mark.slow  # a new process imports torch
def test_failing_process_of_a_part_is_a_row(tiny):
    """Without a GPU the child process ends with an error; with one it measures."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert gpu.run_part(tiny, "memory") == [{"error": gpu.NO_GPU}]


def test_process_that_takes_too_long_is_stopped(tiny, monkeypatch):
    monkeypatch.setitem(gpu.PARTS, "memory", (0.1, "Memory"))
    assert gpu.run_part(tiny, "memory") == [{"error": "the time limit of 0.1 s ended"}]


def test_page_keeps_the_parts_that_are_not_measured_again(tiny):
    gpu.save(tiny, "memory", [{"model": "a|b", "peak GiB": 1.5}], 3.2)
    gpu.save(tiny, "speed", [{"model": "nano", "images/s": 5}, {"model": "s", "error": "out of memory"}], 1.0)
    gpu.save(tiny, "speed", [{"model": "nano", "images/s": 6}], 1.0)
    text = open(tiny.results.replace(".json", ".md"), encoding="utf-8").read()
    assert text.index(gpu.PARTS["speed"][1]) < text.index(gpu.PARTS["memory"][1])
    assert "| nano | 6 |" in text and "| a/b | 1.5 |" in text and "out of memory" not in text


def test_all_parts_take_at_most_twelve_minutes():
    assert sum(gpu.PARTS[part][0] for part in gpu.Config().parts) <= 720
    assert all(callable(getattr(gpu_parts, part)) for part in gpu.PARTS)


def test_without_a_gpu_the_program_says_so_in_one_sentence(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(SystemExit, "benchmarks.gpu", "GPU"):
        gpu.main(tiny)


def test_unknown_part_lists_the_known_ones(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with refused(SystemExit, "parts=sped", "tests, speed"):
        gpu.main(gpu.Config(parts=("sped",)))
