"""Corrections of a head after the training of a task, each with its numbers.

    weight_aligning    one factor that gives new rows the mean norm of the old ones
    bias_correction    a factor and a shift of the new logits, by the loss of rows kept aside

Both are written into the rows of the head, and the next task goes on from these. `norm` and
`calibrated` of `clinit.headtrain.start.scale` do the same to rows before they are trained.
"""

from __future__ import annotations

from clinit.headtrain.correction.bias_correction import bias_corrected
from clinit.headtrain.correction.correction import Correction
from clinit.headtrain.correction.weight_aligning import weight_aligned

__all__ = ["Correction", "bias_corrected", "weight_aligned"]
