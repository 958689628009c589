"""Top blocks at the paper's setting: seconds of a step and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_setting import Lines, Setting, peak_gigabytes
from harness import settle
from top_blocks_clinit import clinit
from top_blocks_contenders import limits
from top_blocks_workload import TopBlocksWorkload, make_workload

ROUNDS = 3
HEADINGS = (
    *("top blocks", "precision", "steps/s", "images/s", "of the blocks alone", "GFLOP a step"),
    *("TFLOP/s", "peak GB"),
)
NOTE = """\
Low-rank updates of the last two blocks and a head over all classes. *stored activations* are in the
host's memory; *JPEG files* are read, decoded and sent through the frozen part at each step. *the
blocks alone*: forward and backward pass of the trained blocks (and, for JPEG files, forward pass of
the frozen part) on a batch on the device, in the same precision. *peak*: peak memory of tensors on
the device."""


def measure(setting: Setting) -> Lines:
    """Yield a line for each source of activations and precision."""
    for precision in ("float32", "bf16"):
        if precision == "bf16" and setting.device.type != "cuda":
            continue
        for rows, parts in (("stored", ("low rank",)), ("files", ("trunk", "low rank"))):
            setting.say(f"top blocks, {rows}, {precision}")
            work = TopBlocksWorkload(setting.folder, _options(setting, precision, rows))
            step_s, peak = _step(setting, clinit(work).train, work.steps)
            alone = limits(work)
            alone.train()  # warms up
            found = alone.train() or {}
            flop = sum(alone.facts["flop"][part] for part in parts)
            limit_s = sum(found[part] for part in parts)
            title = {"stored": "stored activations", "files": "JPEG files"}[rows]
            line = [title, precision, f"{1 / step_s:,.2f}", f"{work.batch / step_s:,.0f}"]
            line += [f"{limit_s / step_s:.0%}", f"{flop / 1e9:,.1f}"]
            yield [*line, f"{flop / step_s / 1e12:.3g}", peak]


def _step(setting: Setting, train: Callable[[], Any], steps: int) -> tuple[float, str]:
    """Return the median seconds of a step and the peak memory; the first round warms up."""
    times = []
    for number in range(ROUNDS + 1):
        if number == 1 and setting.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(setting.device)
        started = time.perf_counter()
        train()
        settle(str(setting.device))
        if number:
            times.append((time.perf_counter() - started) / steps)
    return statistics.median(times), peak_gigabytes(setting.device)


def _options(setting: Setting, precision: str, rows: str) -> dict[str, Any]:
    scale = setting.scale
    return {
        **{"kind": "clinit", "method": "rehearsal", "full_rank": False, "lr": 1.5e-3, "seed": 0},
        **{"model": scale.model, "batch": scale.rows, "steps": scale.top_steps},
        **{"rank": scale.rank, "buffer": scale.photographs.buffer, "workers": setting.workers},
        **{"total": scale.top_steps * (ROUNDS + 1), "device": str(setting.device)},
        **{"precision": precision, "rows": rows},
    }


def prepare(setting: Setting) -> Iterator[list[str]]:
    """Make photographs, weights and caches, without printing."""
    setting.say("making photographs and their features")
    make_workload(
        setting.folder,
        setting.scale.photographs,
        model=setting.scale.model,
        top_blocks=2,
        seed=0,
        device=str(setting.device),
        workers=setting.workers,
        with_pixels=False,
    )
    return iter(())
