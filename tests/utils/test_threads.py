"""utils/threads.py: the hint on a CPU that other programs use."""

import torch

from utils.threads import busy_hint


def test_a_busy_cpu_is_a_hint_unless_the_user_chose_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    cpu = torch.device("cpu")
    assert "OMP_NUM_THREADS=1 " in busy_hint(cpu, 3.2, 4)
    assert "OMP_NUM_THREADS=1 " in busy_hint(cpu, 9.0, 4)
    assert busy_hint(cpu, 0.3, 4) == busy_hint(torch.device("cuda"), 3.2, 4) == ""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert busy_hint(cpu, 3.2, 4) == ""
