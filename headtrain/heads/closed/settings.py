"""Settings of closed forms, with the defaults of their papers or their code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from clinit.setting import SettingGroup, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SldaConfig(SettingGroup):
    """Deep SLDA: one covariance for all classes, updated row by row."""

    panel: ClassVar[str] = "Closed forms"
    shrinkage: float = setting(
        1e-4, "Deep SLDA: weight of the identity in the covariance.", above=0, most=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RanpacConfig(SettingGroup):
    """RanPAC: ridge regression on random ReLU features."""

    panel: ClassVar[str] = "Closed forms"
    width: int = setting(10_000, "RanPAC: number of random ReLU features.", least=1, most=100_000)
    lam: float | Literal["auto"] = setting(
        "auto",
        "RanPAC: ridge added to sums over rows; auto: from 1e-8 to 1e8, by the squared error on a"
        " fifth of the task.",
        above=0,
        alias="ranpac-lambda",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(SettingGroup):
    """Closed forms over the stream, with the defaults of their papers or their code."""

    slda: SldaConfig = field(default_factory=SldaConfig)
    ranpac: RanpacConfig = field(default_factory=RanpacConfig)
