"""A progress bar that only a terminal shows."""

import os
from typing import Any

from tqdm import tqdm


def progress_bar(batches: Any, title: str, visible: bool, begun: int = 0) -> tqdm:
    """Returns a progress bar over batches, of which an earlier start of the run has done `begun`.

    Only a terminal shows it, and a log file if the environment has THAW_PROGRESS=1.
    """
    hidden = None if visible else True  # None: tqdm hides the bar where standard error is no terminal
    if os.environ.get("THAW_PROGRESS") == "1":
        hidden = not visible
    return tqdm(batches, title, initial=begun, total=len(batches), dynamic_ncols=True, leave=False, disable=hidden)
