"""What a batch of rehearsal is made of, by name.

    text    half new rows (rounded down), the rest from the buffer: the paper's text
    sgm     the first task as `text`; later 3/8 new, 1/2 base, 1/8 earlier new classes: of 256 rows
            96, 128 and 32, as in the authors' related code (SGM)

A batch is all new where the buffer is empty. `sgm` is `text` as long as the buffer lacks base
rows or rows of earlier new classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from clinit.headtrain.schedule import Share
from clinit.headtrain.task_rows import TaskRows

MIXES = ("text", "sgm")


def mixed(mix: str, rows: TaskRows, batch_size: int) -> Sequence[Share]:
    """Return the shares of a batch, the new rows first."""
    half = batch_size // 2
    if not rows.num_old:
        return (_new(rows, batch_size),)
    if mix == "text" or rows.num_base in (0, rows.num_old):
        return (_new(rows, half), Share(0, rows.num_old, batch_size - half))
    earlier = batch_size // 8
    return (
        _new(rows, half - earlier),
        Share(0, rows.num_base, batch_size - half),
        Share(rows.num_base, rows.num_old, earlier),
    )


def _new(rows: TaskRows, count: int) -> Share:
    return Share(rows.num_old, len(rows.labels), count)
