"""benchmarks/gpu.py, rehearsed on the simulated GPU: every part makes rows, and a part that fails leaves the others alone."""

from unittest.mock import patch

import pytest
import torch
from refused import refused
from simulated_gpu import simulated_gpu
from toys import detector

import nets
from benchmarks import gpu, gpu_parts

TINY = {"models": ("yolox_nano",), "compiled": ("yolox_nano",), "amps": ("fp16",), "size": 64, "batch_size": 2}


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
        ("evaluation", "images/s"),
        pytest.param("waits", "waits", marks=pytest.mark.slow),
        pytest.param("memory", "probe / peak", marks=pytest.mark.slow),
    ],
)
def test_part_measures_on_the_simulated_gpu(tiny, part, column, monkeypatch):
    rows = rehearse(tiny, part, monkeypatch)
    assert rows and all("error" not in row and row[column] >= 0 for row in rows), rows


@pytest.mark.slow
@pytest.mark.parametrize("part, count", [("loader", 3), ("ranks", 2), ("runs", 3)])
def test_part_trains_runs(tiny, part, count, monkeypatch):
    """The processes of the part `ranks` see no simulated GPU and train on the CPU."""
    monkeypatch.setitem(gpu.PARTS, part, (600, "without a narrow budget"))
    rows = [row for row in rehearse(tiny, part, monkeypatch) if "peers=PYTHON" not in row.get("error", "")]
    assert len(rows) == count and not any("error" in row for row in rows), rows
    if part == "ranks":
        assert float(rows[0]["loss"]) == pytest.approx(float(rows[1]["loss"]), rel=1e-4)


def test_error_becomes_a_row_and_the_next_row_is_measured(tiny, monkeypatch):
    def steps(cfg, model, amp, graphs):
        if amp == "fp16" and graphs:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nMore lines")
        return {"images/s": 7}

    monkeypatch.setattr(gpu_parts, "steps", steps)
    rows = list(gpu_parts.speed(gpu.Config(models=("yolox_s",)), float("inf")))
    assert [row.get("images/s") for row in rows] == [7, None, 7, 7]
    assert [row["CUDA graphs"] for row in rows] == ["yes", "yes", "no", "yes"]
    assert rows[1] == {
        "model": "yolox_s",
        "amp": "fp16",
        "CUDA graphs": "yes",
        "error": "OutOfMemoryError: CUDA out of memory.",
    }


def test_no_row_begins_after_the_time_budget(tiny):
    rows = list(gpu_parts.speed(gpu.Config(), 0.0))
    assert len(rows) == 16 and all("budget" in row["error"] for row in rows)


def test_peers_that_are_not_installed_are_rows_with_the_error(tiny, monkeypatch):
    monkeypatch.setattr(gpu_parts, "steps", lambda *_: {})
    monkeypatch.setitem(gpu.PARTS, "peers", (60, "Other trainers"))
    absent = list(gpu.rows(tiny, "peers"))
    assert [row["trainer"] for row in absent] == ["this one", "this one", "ultralytics", "libreyolo"]
    assert all("peers=PYTHON" in row["error"] for row in absent[2:])


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


def test_all_parts_take_at_most_sixteen_minutes():
    assert sum(gpu.PARTS[part][0] for part in gpu.Config().parts) <= 960
    assert set(gpu.PARTS) - set(gpu.Config().parts) == {"compiled"}  # compiling alone takes minutes
    assert all(callable(getattr(gpu_parts, part)) for part in gpu.PARTS)


def test_without_a_gpu_the_program_says_so_in_one_sentence(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(SystemExit, "benchmarks.gpu", "GPU"):
        gpu.main(tiny)


def test_unknown_part_lists_the_known_ones(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with refused(SystemExit, "parts=sped", "tests, speed"):
        gpu.main(gpu.Config(parts=("sped",)))
