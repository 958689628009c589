"""Corrections of a head after the training of a task, each with its numbers.

    weight_aligning    one factor that gives new rows the mean norm of old rows
    bias_correction    a factor and a shift of the new logits, by the loss of held-out rows

Both corrections are written into the rows of the head, and the next task starts from corrected
rows. `norm` and `calibrated` of `clinit.headtrain.heads.start.scale` do the same to rows before
they are trained.

Weight aligning

    w_k <- gamma w_k,    gamma = mean norm of the old rows / mean norm of the new rows

Biases do not change: the layer of the paper has none, and PyCIL, whose layer has a bias, multiplies
only the weights. Old rows are all rows before the task, with earlier corrections. The paper also
trains with distillation and keeps weights positive; neither is part of this correction.

Source: B. Zhao, X. Xiao, G. Gan, B. Zhang, S.-T. Xia, "Maintaining discrimination and fairness in
class incremental learning", CVPR 2020, Section 4.2.

Bias correction

    u_k <- alpha u_k + beta    for the classes of the task,

which is the row (alpha w_k, alpha b_k + beta). In PyCIL, the correction of each task remains a
fixed layer, and later tasks train the rows below that layer. The logits are the same, but such rows
learn alpha times as fast. The code of mammoth continues from uncorrected rows. PyCIL and mammoth
distil from the corrected network.

alpha and beta minimise the cross entropy of held-out rows, in which all classes seen so far have
equal weight; old classes with held-out rows stand in for old classes without such rows. This
problem is convex, and solved by Newton's method as in `headtrain.heads.start.calibrate`, whose weak
prior bounds alpha if the held-out rows are separable. The original takes hundreds of steps of
gradient descent with weight decay, and trains with distillation, which is no part of this
correction.

Source: Y. Wu et al., "Large scale incremental learning", CVPR 2019, Section 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.calibrate import calibrate, norm_ratio
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.left_out import in_sample
from clinit.headtrain.heads.start.new_rows import NewClasses


class Correction(NamedTuple):
    """New rows after their correction, and its facts for the record.

    factor         factor of the trained weights
    shift          shift of the biases
    rows_aside     number of held-out rows
    loss_before    class-balanced cross entropy of the held-out rows; likewise `loss_after`
    steps          Newton steps
    """

    rows: Rows
    facts: dict[str, Any]


def weight_aligned(head: Rows, start: int, stop: int) -> Correction:
    """Return the rows [start, stop) of a trained head, scaled to the mean norm of the old rows."""
    new = head.between(start, stop)
    gamma = norm_ratio(head.weight[:start, :], new.weight)
    return Correction(Rows(gamma * new.weight, new.bias), {"factor": gamma, "shift": 0.0})


def bias_corrected(aside: NewClasses) -> Correction:
    """Return the new rows of a trained head with their logits corrected.

    Args:
        aside: The held-out rows of old and of new classes, and the trained head.
    """
    around, new = CalibrationSet.of(aside, LOSSES["ce"]), aside.stale
    weights = torch.from_numpy(class_weights(around.labels, aside.start, aside.stop))
    around = replace(around, weight=weights.to(around.weight.device))
    found = calibrate(around, around.logits(in_sample(new)))
    rows = Rows(found.factor * new.weight, found.factor * new.bias + found.shift)
    return Correction(rows, {**found._asdict(), "rows_aside": len(aside.labels)})


def class_weights(
    labels: Int[np.ndarray, " rows"], start: int, stop: int
) -> Float[np.ndarray, " rows"]:
    """Return weights of rows with which all classes seen count the same; the weights add up to 1.

    Classes in [0, start) that have rows share the weight of all classes in [0, start); likewise for
    [start, stop).
    """
    counts = np.bincount(labels, minlength=stop)
    is_old = np.arange(stop) < start
    present = [np.maximum(1, (counts > 0)[side].sum()) for side in (is_old, ~is_old)]
    per_class = np.where(is_old, start / present[0], (stop - start) / present[1]) / stop
    return np.asarray((per_class / np.maximum(counts, 1))[labels])
