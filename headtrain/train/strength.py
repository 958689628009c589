"""The strength of an anchor, chosen by the loss on rows that are set aside, or by a formula.

By the loss: a fifth of the rows of each new class (never its last row) and a fifth of the stored
old rows are set aside, in whole groups of rows that repeat each other. For each of `STRENGTHS`, the
head starts from the remaining rows and is trained on them, always on the same batches. The strength
with the least training loss on the set-aside rows, the *judges*, is used to train the head on all
rows. In this loss, each class seen counts the same; classes with set-aside rows represent old
classes without any. If no old row is stored, rows drawn from the statistics of the old classes are
the judges of old classes. No test row is used.

By a formula (`by_images`): with C classes seen so far, and n the mean number of images of a new
class or, if that is smaller, of stored images of an old class, s = 20 / (20 + n) if some old class
has no stored row. If every old class has one,

    s = 20 / ((20 + n) sqrt(C)) min(1, 100 / C).

If no old row is stored, nothing else holds old classes, and s = (1 + 1000 / n^2) / sqrt(C), where n
counts images of new classes only. These formulas are empirical. On photographs and digits, with 10
to 60 classes, s = 0.3 kept heads from falling below their start if images were few, but cost up to
1.5 points if each class had 200. With 1,050 classes and all rows stored, 0.002 was 4 points better
than 0.03; with 600 rows, 1 kept the heads of two networks above their start, 0.03 only one head.
"""

from __future__ import annotations

import math

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


def by_images(data: TaskRows, start: int, stop: int) -> float:
    """Return the strength of `moments` for a task with the new classes `start` to `stop` - 1."""
    new = (len(data.labels) - data.num_old) / (stop - start)
    if not data.num_old:
        return (1 + 1000 / new**2) / math.sqrt(stop)
    strength = 20 / (20 + min(new, data.num_old / start))
    if len(np.unique(data.labels[: data.num_old])) < start:
        return strength
    return strength * min(1.0, 100 / stop) / math.sqrt(stop)


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
