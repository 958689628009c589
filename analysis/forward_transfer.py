"""Forward transfer: how well the features tell apart the classes of a task that is still to come.

After each task but the last, `clinit train-top --probe` trains a linear probe on the classes of
the next task. The value is the best top-1 on the images that it is measured on, an upper estimate.
It can be read at either of the two tasks:

    forward_transfer        of the task that was just learnt
    forward_transfer_into   of the task that was probed, as the paper's Table 7 has it; the first
                            task has none

Source: the paper's appendix on linear probing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def mean_transfer(tasks: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the mean top-1 (percent) of the linear probes after `tasks`, each on the next one.

    None where nothing was probed: in runs of `clinit train-head`, and after the last task.
    """
    probed = [_top1(task) for task in tasks if "forward_transfer" in task]
    return sum(probed) / len(probed) if probed else None


def transfer_into(tasks: Iterable[Mapping[str, Any]], probed: int) -> float | None:
    """Return the top-1 (percent) of the probe on the classes of task number `probed`."""
    for task in tasks:
        if "forward_transfer" in task:
            target = task["forward_transfer"].get("task", task["task"] + 1)
            if target == probed:
                return _top1(task)
    return None


def _top1(task: Mapping[str, Any]) -> float:
    return 100 * float(task["forward_transfer"]["top1"])
