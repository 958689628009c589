"""The strength of an anchor, chosen by the loss on rows that are set aside.

A fifth of the rows of each new class (never its last row) and a fifth of the stored
old rows are set aside, in whole groups of rows that repeat each other. For each of `STRENGTHS`, the
head starts from the remaining rows and is trained on them, always on the same batches. The strength
with the least training loss on the set-aside rows, the *judges*, is used to train the head on all
rows. In this loss, each class seen counts the same; classes with set-aside rows represent old
classes without any. If no old row is stored, rows drawn from the statistics of the old classes are
the judges of old classes. No test row is used.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool

from clinit.headtrain.groups import held_out_rows
from clinit.headtrain.stream.buffer import TaskRows
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.train.heads import LabelledRows
from clinit.headtrain.train.past import Past

STRENGTHS = (0.0, 0.01, 0.1, 1.0, 10.0)
"""For `l2`, multiples of the mean square of a feature, because larger features need smaller
weights."""
ASIDE = 0.2


def set_aside(data: TaskRows, past: Past, seed: int) -> Bool[np.ndarray, " rows"]:
    """Mark the stored rows of a task that are set aside as judges."""
    num_drawn, is_old = int((data.rows < 0).sum()), np.arange(len(data.labels)) < data.num_old
    groups = past.groups(data)
    groups = np.arange(len(is_old)) if groups is None else groups
    classes, random = np.where(is_old, -1, data.labels), generator(seed, Draw.ANCHOR, data.number)
    aside = held_out_rows(classes[num_drawn:], groups[num_drawn:], ASIDE, random)
    return np.concatenate([np.zeros(num_drawn, dtype=bool), aside])


def judges(
    data: TaskRows, rows: LabelledRows, aside: Bool[np.ndarray, " rows"], past: Past, seed: int
) -> LabelledRows:
    """Return the judges: old rows first.

    Args:
        data: The rows of a task.
        rows: Features and labels of the stored rows of the task.
        aside: Which rows of the task are set aside.
        past: Draws old rows if no old row is set aside.
        seed: Seed of the stream.
    """
    num_drawn = len(aside) - len(rows)
    stored = rows.take(torch.from_numpy(np.flatnonzero(aside[num_drawn:])))
    old = None if aside[: data.num_old].any() else past.before(data.number)
    if old is None:
        return stored
    (random,) = generator(seed, Draw.ANCHOR, data.number).spawn(1)
    drawn = LabelledRows.on(stored.labels.device, *old.draw(random))
    features = torch.cat([drawn.features.to(stored.features.device), stored.features.float()])
    return LabelledRows(features, torch.cat([drawn.labels, stored.labels]))
