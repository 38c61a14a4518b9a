"""Draws the learning rate of a run and its phases, for docs/how_it_works.md.

The run has 205 images and the defaults of train.py, but freeze_epochs=10 to show the frozen phase.
"""

from pathlib import Path

from matplotlib.figure import Figure

import train
from engine.course import Course
from engine.rates import Rates
from engine.schedule import Schedule
from engine.time_budget import TimeBudget

IMAGES, FREEZE_EPOCHS = 205, 10
COLORS = ("#d5e3f0", "#f6e3c5", "#e9ecef")


def main(output: Path) -> None:
    """Writes the drawing."""
    cfg = train.Config(freeze_epochs=FREEZE_EPOCHS)
    rates = Rates(cfg, pretrained=True, domain_similarity=0.0)
    course = Course(cfg, IMAGES, rates, TimeBudget(hours=0), Schedule)
    plan, schedule = course.plan, course.schedule

    figure = Figure((10, 3), layout="constrained")
    axes = figure.subplots()
    steps = range(plan.total_steps)
    axes.plot([plan.position(step) for step in steps], [schedule(step) for step in steps], color="#2f6fab", linewidth=2)
    last = course.first_no_aug
    borders = [0, FREEZE_EPOCHS, last, cfg.epochs]
    phases = ("frozen, 16 images per step", "thawed, 8 images per step", "no augmentation")
    for start, end, phase, color in zip(borders[:-1], borders[1:], phases, COLORS, strict=True):
        axes.axvspan(start, end, color=color, zorder=0)
        axes.text((start + end) / 2, axes.get_ylim()[1] * 1.05, phase, ha="center", fontsize=9)
    axes.text(0.4, axes.get_ylim()[1] * 0.55, "warm-up", fontsize=9)
    axes.set(
        xlim=(0, cfg.epochs), ylim=(0, axes.get_ylim()[1] * 1.15), xlabel="epoch", ylabel="learning rate of a step"
    )
    figure.savefig(output, dpi=100)
