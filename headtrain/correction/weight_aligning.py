"""Weight aligning: the new rows take the mean norm of the old ones after training.

    w_k <- gamma w_k,    gamma = mean norm of the old rows / mean norm of the new rows

Biases stay as they are: the paper has none, and the code of PyCIL, whose layer has one, multiplies
the weights alone. The old rows are all those before the task, earlier corrections included. The
paper trains with distillation too and keeps weights positive; neither is part of this correction.

Source: B. Zhao, X. Xiao, G. Gan, B. Zhang, S.-T. Xia, "Maintaining discrimination and fairness in
class incremental learning", CVPR 2020, Section 4.2.
"""

from __future__ import annotations

from clinit.headtrain.correction.correction import Correction
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.calibrate import norm_ratio


def weight_aligned(head: Rows, start: int, stop: int) -> Correction:
    """Return the rows [start, stop) of a trained head at the mean norm of those before them."""
    new = head.between(start, stop)
    gamma = norm_ratio(head.weight[:start, :], new.weight)
    return Correction(Rows(gamma * new.weight, new.bias), gamma)
