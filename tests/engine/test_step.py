"""benchmarks/step.py: how many operations a training step dispatches."""

import pytest

from benchmarks.step import Config, operations

# Upper limits, a little above the counts of the day on which they were set. A GPU waits for the host to launch the operations
# of a small model: whoever raises a limit makes its training slower.
LIMITS = {
    "yolox_nano": {"frozen": 1050, "thawed": 1260},
    "yolov9_t": {"frozen": 2020, "thawed": 2450},
    "ppyoloe_s": {"frozen": 1045, "thawed": 1255},
    "picodet_s": {"frozen": 1130, "thawed": 1260},
}


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=() if name == "yolox_nano" else pytest.mark.slow) for name in LIMITS]
)
def test_step_dispatches_few_operations(model):
    for phase, counter in operations(Config(model=model, size=64, batch_size=2, boxes=5)).items():
        assert counter.count <= LIMITS[model][phase], phase
        assert not counter.mixed, "a foreach operation on several dtypes launches one kernel per tensor"
