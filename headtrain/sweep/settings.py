"""Settings of a search; nothing here imports PyTorch: the command line is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.headtrain.setting import Part, setting

LESS_IS_BETTER = ("forgetting", "loss_new")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig(Part):
    """How many trials a search makes, and what they are judged by."""

    panel: ClassVar[str] = "Search"
    trials: int = setting(50, "Trials of the search.", least=1)
    objective: Literal[
        "acc_all",
        "acc_new",
        "acc_old",
        "acc_pre",
        "average_incremental_accuracy",
        "forgetting",
        "loss_new",
    ] = setting("acc_all", "What the search improves.")
    held_out: float = setting(
        0.1,
        "Share of the training rows of each class that the search judges by.",
        least=0.001,
        most=0.9,
    )

    @property
    def maximises(self) -> bool:
        """Whether a larger value is better."""
        return self.objective not in LESS_IS_BETTER
