"""Images of none of the classes: a score of the logits, and the threshold that it has to reach.

`energy` is the negative free energy, log sum_k exp z_k; `max-logit` is max_k z_k, with the logits z
of the head as it was trained. Both grow with how well a model knows what it sees. The threshold
turns away a given share of held-out images of known classes.

Sources: W. Liu, X. Wang, J. Owens, Y. Li, "Energy-based Out-of-distribution Detection", NeurIPS
2020. D. Hendrycks, S. Basart, M. Mazeika and others, "Scaling Out-of-Distribution Detection for
Real-World Settings", ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import ModelError
from clinit.extract.head import Head
from clinit.headtrain.export.memory import Memory

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "energy": lambda logits: logits.logsumexp(dim=1),
    "max-logit": lambda logits: logits.amax(dim=1),
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """When an image is of none of the classes: where its score is below a threshold."""

    rule: str
    """One of `SCORES`."""
    threshold: float

    def __post_init__(self) -> None:
        if self.rule not in SCORES:
            raise ValueError(f"rule must be one of {', '.join(SCORES)}, got {self.rule!r}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}")

    def scores(self, logits: Float[Tensor, "images classes"]) -> Float[Tensor, " images"]:
        """Return how well each image is known.

        Args:
            logits: Of the head as it was trained: those of a model times its temperature.
        """
        found: Tensor = SCORES[self.rule](logits)
        return found

    @classmethod
    def at_rate(cls, rule: str, rate: float, head: Head, memory: Memory) -> Rejection:
        """Return the rule that turns away at most a share of the held-out images of a memory.

        Args:
            rule: One of `SCORES`.
            rate: The share, in [0, 1).
            head: The classifier, as it was trained.
            memory: Of the same classes and features.

        Raises:
            ModelError: If no image was held out.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"rate must lie in [0, 1), got {rate}")
        remedy = (
            "Hold some out: `clinit remember MODEL IMAGES --out NEW`; or give --threshold VALUE."
        )
        rows = torch.from_numpy(memory.held_out.features).float()
        if not len(rows):
            raise ModelError("the model remembers no held-out image of its classes", remedy=remedy)
        weight, bias = torch.from_numpy(head.weight).float(), torch.from_numpy(head.bias).float()
        logits = rows @ weight.T + bias
        scores = SCORES[rule](logits).sort().values
        # As many scores as the share allows are below this one.
        return cls(rule, float(scores[math.floor(rate * len(scores))]))
