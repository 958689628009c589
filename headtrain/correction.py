"""Corrections of a head after the training of a task, each with its numbers.

    weight_aligning    one factor that gives new rows the mean norm of the old ones
    bias_correction    a factor and a shift of the new logits, by the loss of rows kept aside

Both are written into the rows of the head, and the next task starts from these. `norm` and
`calibrated` of `clinit.headtrain.start.scale` do the same to rows before they are trained.

Weight aligning

    w_k <- gamma w_k,    gamma = mean norm of the old rows / mean norm of the new rows

Biases stay as they are: the paper has none, and the code of PyCIL, whose layer has one, multiplies
the weights alone. The old rows are all those before the task, earlier corrections included. The
paper trains with distillation too and keeps weights positive; neither is part of this correction.

Source: B. Zhao, X. Xiao, G. Gan, B. Zhang, S.-T. Xia, "Maintaining discrimination and fairness in
class incremental learning", CVPR 2020, Section 4.2.

Bias correction

    u_k <- alpha u_k + beta    for the classes of the task,

which is the row (alpha w_k, alpha b_k + beta): the correction is written into the head, and the
next task starts from corrected rows. In PyCIL the correction of each task stays in the network,
fixed, while later tasks train below it: the same function, whose rows learn alpha times as fast.
mammoth trains on from uncorrected rows. Both distil from the corrected network.

alpha and beta minimise the cross entropy of the rows kept aside, in which each class seen counts
the same: old classes with a row kept aside represent those without one. Convex in
two numbers, and solved by Newton's method as in `headtrain.start.calibrate`, whose weak prior
holds alpha if these rows are separated; the original takes hundreds of steps of gradient descent
with a weight decay. Distillation, which the original trains with, is no part of this correction.

Source: Y. Wu et al., "Large scale incremental learning", CVPR 2019, Section 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.headtrain.rows import Rows
from clinit.headtrain.start.calibrate import calibrate, norm_ratio
from clinit.headtrain.start.calibration_set import CalibrationSet
from clinit.headtrain.start.left_out import in_sample
from clinit.headtrain.start.new_rows import NewClasses
from clinit.headtrain.train.losses import LOSSES


class Correction(NamedTuple):
    """New rows after their correction, and its facts for the record.

    factor         factor of the trained weights
    shift          shift of the biases
    rows_aside     rows that were kept aside to choose by
    loss_before    class-balanced cross entropy of these rows, and `loss_after`
    steps          Newton steps
    """

    rows: Rows
    facts: dict[str, Any]


def weight_aligned(head: Rows, start: int, stop: int) -> Correction:
    """Return the rows [start, stop) of a trained head at the mean norm of those before them."""
    new = head.between(start, stop)
    gamma = norm_ratio(head.weight[:start, :], new.weight)
    return Correction(Rows(gamma * new.weight, new.bias), {"factor": gamma, "shift": 0.0})


def bias_corrected(aside: NewClasses) -> Correction:
    """Return the new rows of a trained head with their logits corrected.

    Args:
        aside: The rows kept aside, of old and of new classes, and the trained head.
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
    """Return the weight of each row if all classes seen count the same; they add up to 1.

    The classes [0, start) that have rows share the weight of all of these, and so do the others.
    """
    counts = np.bincount(labels, minlength=stop)
    is_old = np.arange(stop) < start
    present = [np.maximum(1, (counts > 0)[side].sum()) for side in (is_old, ~is_old)]
    per_class = np.where(is_old, start / present[0], (stop - start) / present[1]) / stop
    return np.asarray((per_class / np.maximum(counts, 1))[labels])
