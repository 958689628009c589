"""Settings of a search; nothing here imports PyTorch: the command line is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from clinit.headtrain.setting import Part, Setting

LESS_IS_BETTER = ("forgetting", "loss_new")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig(Part):
    """How many trials a search makes, and what they are judged by."""

    panel: ClassVar[str] = "Search"
    trials: Annotated[int, Setting("Trials of the search.", least=1)] = 50
    objective: Annotated[
        Literal[
            "acc_all",
            "acc_new",
            "acc_old",
            "acc_pre",
            "average_incremental_accuracy",
            "forgetting",
            "loss_new",
        ],
        Setting("What the search improves."),
    ] = "acc_all"
    direction: Annotated[
        Literal["maximize", "minimize"] | None,
        Setting("Which direction is better.", otherwise="that of the objective"),
    ] = None
    held_out: Annotated[
        float,
        Setting(
            "Share of the training rows of each class that the search judges by.",
            least=0.001,
            most=0.9,
        ),
    ] = 0.1
    seed: Annotated[
        int,
        Setting(
            "Seed of the proposals and of the held-out rows.",
            least=0,
            most=2**32 - 1,
            option="search-seed",
        ),
    ] = 0

    @property
    def maximises(self) -> bool:
        """Whether a larger value is better."""
        default = "minimize" if self.objective in LESS_IS_BETTER else "maximize"
        return (self.direction or default) == "maximize"
