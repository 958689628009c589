"""Settings that belong to a method of top blocks: EWC and DER++."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from clinit.setting import SettingGroup, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EwcConfig(SettingGroup):
    """Strength of EWC, whose penalties hold parameters near earlier values."""

    panel: ClassVar[str] = "EWC"
    lam: float = setting(
        1e6,
        "EWC: strength (default: the paper's); 0 is plain fine-tuning of the blocks.",
        least=0,
        alias="ewc-lambda",
    )
    samples: int = setting(
        2048, "EWC: maximum number of rows on which the Fisher information is measured.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DerppConfig(SettingGroup):
    """Weights of the two terms of old rows in DER++."""

    panel: ClassVar[str] = "DER++"
    alpha: float = setting(
        0.1,
        "DER++: weight of squared differences to the logits of the network at the start of the"
        " task, averaged over classes (default: the paper's).",
        least=0,
    )
    beta: float = setting(
        0.9, "DER++: weight of the loss of old rows (default: the paper's); 0 is DER.", least=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Top(SettingGroup):
    """Training of the top blocks of a backbone; the defaults are the paper's."""

    panel: ClassVar[str] = "Top blocks"
    top_blocks: int = setting(
        2, "Number of trained blocks, from the end; everything below is frozen.", least=1
    )
    full_rank: bool = setting(
        False,
        "Train the blocks themselves, not low-rank updates of their two linear layers; EWC"
        " always does.",
        decides=True,
    )
    rank: int = setting(48, "Rank of the updates.", least=1, most=100_000)
    alpha: float = setting(
        1.0,
        "Scale of the updates: W + (alpha / rank) B A. The paper's text has no factor, as with"
        " alpha = rank; loralib's default is 1, a factor of 1/48 at rank 48. With alpha ="
        " rank, random rows learn more, and with computed rows more is forgotten.",
        above=0,
    )
    layer_decay: float = setting(
        0.9, "Ratio of a layer's learning rate to the rate of the layer above it.", above=0, most=1
    )
    probe: bool = setting(
        True,
        "Measure forward transfer after each task but the last: a linear probe on the next"
        " task's classes.",
        panel="Evaluation",
        recorded=False,
        identifies=False,
    )
    ewc: EwcConfig = field(default_factory=EwcConfig)
    derpp: DerppConfig = field(default_factory=DerppConfig)
