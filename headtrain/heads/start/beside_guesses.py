"""Lambda of least-square rows next to old rows that were drawn from a guess.

The guess contains how the new images deviate from the means of their classes, and so tells rows
which class a left-out image is of: by closed-form leave-one-out, all images of classes of two are
right at any lambda. Therefore, images are left out in `PARTS` parts, and a guess is made without
each (`without_parts`).

Left-out logits of few images hardly tell one lambda from another. Lambda minimises

    N F(lambda) / w + 1/2 log10(lambda / lambda_0)^2,
    lambda_0 = (1 + (`UNSURE` / n)^2) tr Sigma_T / d,

over `DECADES` around lambda_0, the mean of the d eigenvalues of Sigma_T, and more of it if the n
new images are so few that they hardly show how images vary. F is the least loss over factor and
shift, N the number of left-out new images, and w their weight in F; so the first term
counts each image once, and the second is a prior: a decade from lambda_0 is one standard deviation.
lambda_0 is no larger, for if a few directions hold most of the variance, as on audio, new classes
differ in the others. The only images of classes do not count: what their logits owe to themselves
is known too coarsely to compare lambdas. The search begins at lambda_0, and ends at the first
minimum on either side. Without left-out images, lambda is lambda_0.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from clinit.headtrain.heads.array import namespace
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibrate import Search, calibrate
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.left_out import (
    Fold,
    computed_again,
    of_other_images,
    without_parts,
)
from clinit.headtrain.heads.start.new_rows import raw_rows
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import LambdaCurve

PARTS = 5
"""Number of parts that are left out in turn for the leave-one-out logits of fitted rows."""
UNSURE = 3.0
"""Number of new images with which lambda_0 is twice the mean eigenvalue: with the mean alone, new
classes of one class of two images lost 2 to 4 points on text and photographs."""
DECADES = (-3, -2, -1, 0, 1)


def lambda_beside_guesses(
    start: Start,
    sample: CalibrationSet,
    statistics: ClassStatistics,
    known: dict[float | None, Tensor],
) -> Search[tuple[float, LambdaCurve | None, list[Rows]]]:
    """Choose lambda.

    Args:
        start: Kind of the rows.
        sample: The rows that can judge.
        statistics: Statistics of all data.
        known: Receives the left-out logits of the unscaled rows by lambda.

    Returns:
        Lambda, the losses, and the unscaled rows without each part; no losses and no rows if no
        class has two images.
    """
    middle = usual_lambda(statistics, int(sample.data.counts[sample.data.start :].sum()))
    alone = torch.from_numpy(sample.alone).to(sample.target.device)
    judges, singles = sample.judgeable, sample.subset(sample.alone)
    left_out = judges.target >= 0
    if not bool(left_out.any()):
        return middle, None, []
    images = int(left_out.sum()) / float(judges.weight[left_out].sum())
    without: list[dict[float, Rows]] = [{} for _ in range(PARTS)]

    def at_each(lams: list[float], part: Fold) -> Rows:
        """Return the rows for each lambda in turn as rows of one head."""
        of_part = part.data.statistics(start.weighting)
        rows = [raw_rows(start, part.data, of_part, lam) for lam in lams]
        without[part.number] |= zip(lams, rows, strict=True)
        concat = namespace(of_part.gram).concat
        return Rows(concat([each.weight for each in rows]), concat([each.bias for each in rows]))

    found, best, wanted = dict[int, tuple[float, float]](), 0, [-1, 0, 1]
    while wanted:
        now = [float(f"{middle * 10.0**power:.2g}") for power in wanted]
        parts, at_these = without_parts(sample, PARTS), partial(at_each, now)
        together = computed_again(sample, parts, at_these, len(now))
        for power, lam, logits in zip(wanted, now, together.chunk(len(now), dim=1), strict=True):
            known[lam] = logits.contiguous()
            really = known[lam][~alone]
            begin = np.array([1.0 / (float(really.std()) or 1.0), 0.0])
            fitted = yield from calibrate(judges, really, [begin])
            if fitted.factor <= 0:
                fitted = yield from calibrate(judges, torch.zeros_like(really), [begin])
            found[power] = lam, fitted.loss_after
        best = min(found, key=lambda power: images * found[power][1] + power**2 / 2)
        wanted = [each for each in (best - 1, best + 1) if each in DECADES and each not in found]
    lams, losses = zip(*(found[power] for power in sorted(found)), strict=True)
    lam, _ = found[best]
    if len(singles):
        rows = raw_rows(start, sample.data, statistics, lam)
        known[lam][alone] = of_other_images(start, rows, singles, statistics, lam)
    curve = LambdaCurve(lams, losses, "leave-one-out loss")
    return lam, curve, [rows[lam] for rows in without if rows]


def usual_lambda(statistics: ClassStatistics, images: int) -> float:
    """Return lambda_0 of so many new images, to two digits; 1 if the data do not vary."""
    covariance = statistics.total_covariance
    mean = float(namespace(covariance).linalg.trace(covariance)) / covariance.shape[0]
    return float(f"{(1 + (UNSURE / images) ** 2) * mean:.2g}") if mean > 0 else 1.0
