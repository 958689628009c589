"""The strength of an anchor, chosen by rows that are set aside.

A fifth of the rows of each new class (never its last one) and a fifth of the stored old rows are
set aside, by whole groups of rows that repeat each other. The head starts anew from the other rows
and is trained on them, as often as there are `STRENGTHS`, all on the same batches. The strength of
the least training loss on the rows aside is chosen, and the task is learnt with it from all rows.
In that loss each class seen counts the same; old classes of which no row is aside are stood for by
the others. If no old row is stored, rows drawn from the statistics of the old classes judge in
their place. No test row is looked at.

`by_images` looks at no loss: with n the mean number of images of a new class or, if that is less,
of stored images of an old one, and C classes seen so far, s = 20 / (20 + n) if an old class has no
stored row, else

    s = 20 / ((20 + n) sqrt(C)) min(1, 100 / C),

and if no old row is stored, with n of new classes, s = (1 + 1000 / n^2) / sqrt(C), because then
nothing else holds old classes. The forms are empirical. On photographs and digits, with 10 to 60
classes, 0.3 kept heads from falling below their start if images were few, and cost up to 1.5 points
if each class had 200. With 1,050 classes, all rows stored, 0.002 was 4 points better than 0.03;
with 600 rows, 1 kept heads of two networks above their start, and 0.03 one.
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
"""Strengths of `l2` are multiples of the mean square of a feature: weights are as large as
features are small."""
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
    """Mark the stored rows of a task to judge by."""
    num_drawn, is_old = int((data.rows < 0).sum()), np.arange(len(data.labels)) < data.num_old
    groups = past.groups(data)
    groups = np.arange(len(is_old)) if groups is None else groups
    classes, random = np.where(is_old, -1, data.labels), generator(seed, Draw.ANCHOR, data.number)
    aside = held_out_rows(classes[num_drawn:], groups[num_drawn:], ASIDE, random)
    return np.concatenate([np.zeros(num_drawn, dtype=bool), aside])


def judges(
    data: TaskRows, rows: LabelledRows, aside: Bool[np.ndarray, " rows"], past: Past, seed: int
) -> LabelledRows:
    """Return the rows that judge, the old ones first.

    Args:
        data: The rows of a task.
        rows: Features and labels of those that are stored.
        aside: Those that are set aside.
        past: Draws old rows if none is aside.
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
