"""Tracking: each object in a video gets a number that it keeps from frame to frame, by ByteTrack of the package trackers."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from deploy.result import Result
from utils.config import ConfigError
from utils.text import pip

WEAK = 0.1  # minimum score of a detection that may continue a track; new tracks need the confidence threshold
NEW = -1  # the number of an object that was not detected in two frames yet


def require_trackers() -> None:
    """Raises ConfigError with the pip command if the package trackers is missing."""
    try:
        import trackers  # noqa: F401  loads trackers, supervision and scipy
    except ImportError as error:
        raise ConfigError(f"track=true needs the package trackers ({error}): {pip('install trackers')}") from error


class Tracker:
    """Adds track numbers to the Results of the frames of one video, in their order.

    `rate`: frames per second. `confidence`: the threshold, or the thresholds of the classes, from which on a detection begins a
    track. Raises ConfigError with the pip command if the package trackers is missing.
    """

    def __init__(self, rate: float, confidence: float | Tensor):
        require_trackers()
        import supervision  # loads supervision
        import trackers  # loads trackers, supervision and scipy

        self._detections = supervision.Detections
        # The scores below are 1 for detections from the threshold on, and 0 for weaker ones.
        limits = {"track_activation_threshold": 0.5, "high_conf_det_threshold": 0.5}
        self._tracker = trackers.ByteTrackTracker(frame_rate=rate, **limits)
        self._confidence = np.asarray(confidence, np.float32)

    def update(self, result: Result) -> Result:
        """Returns the Result of the next frame with `tracks`, without weak detections that belong to no track."""
        threshold = self._confidence if self._confidence.ndim == 0 else self._confidence[result.labels]
        strong = result.scores >= threshold
        rows = {"row": np.arange(len(result))}
        found = self._detections(result.boxes, confidence=strong.astype(np.float32), data=rows)
        tracked = self._tracker.update(found)
        tracks = np.full(len(result), NEW, np.int64)
        if len(tracked):
            tracks[tracked.data["row"]] = tracked.tracker_id
        tracks[tracks >= 0] += 1  # numbers from 1 on
        return replace(result, tracks=tracks)[strong | (tracks != NEW)]
