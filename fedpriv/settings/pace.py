"""Delays results, so that the time at which a result is sent does not reveal its computation time.

The pace is a fixed time. A result is sent at a whole multiple of the pace after its computation began: after one pace
if it was ready by then, otherwise after two, and so on. If every computation takes less than the pace, the times reveal
nothing about secret batches and cohorts. A computation that takes longer reveals this fact (Askarov, Zhang and Myers
2010, predictive mitigation with a fixed schedule).
"""

from __future__ import annotations

import math
import time


def wait_for_pace(start: float, pace: float | None) -> None:
    """Waits until a whole multiple of `pace` seconds after `start`, a value of `time.monotonic`; None does not wait."""
    if pace is None:
        return
    turns = max(math.ceil((time.monotonic() - start) / pace), 1)
    due = start + turns * pace
    time.sleep(max(due - time.monotonic(), 0.0))
