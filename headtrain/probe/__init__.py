"""The linear probe: how well a linear head on frozen features can tell classes apart.

protocol      split, grid, choice, refit, measurement: `probe` does all of it
points        heads of a grid: by AdamW in a bank, or by L-BFGS one after the other
lbfgs         multinomial logistic regression on rows of any number
standardise   mean 0 and deviation 1, and heads that do without
accuracy      top-1, top-5 and the mean over classes
result        what comes out
"""

from __future__ import annotations

from clinit.headtrain.probe.protocol import probe
from clinit.headtrain.probe.result import Probe

__all__ = ["Probe", "probe"]
