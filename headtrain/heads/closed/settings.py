"""Settings of closed forms, with the defaults of their papers or their code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from clinit.setting import Part, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SldaConfig(Part):
    """Deep SLDA: one covariance for all classes, updated row by row."""

    panel: ClassVar[str] = "Closed forms"
    shrinkage: float = setting(
        1e-4, "Deep SLDA: weight of the identity in the covariance.", above=0, most=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FecamConfig(Part):
    """FeCAM: a covariance for each class."""

    panel: ClassVar[str] = "Closed forms"
    beta: float = setting(
        0.5, "FeCAM: Tukey power of features, if none is negative; 1 is no change.", above=0
    )
    alpha1: float = setting(1.0, "FeCAM: shrinkage by the mean variance on the diagonal.", above=0)
    alpha2: float | Literal["auto"] = setting(
        "auto",
        "FeCAM: shrinkage by the mean covariance off the diagonal; auto: 1 if no feature is"
        " negative, otherwise 0.",
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KldaConfig(Part):
    """KLDA: linear discriminants of random Fourier features."""

    panel: ClassVar[str] = "Closed forms"
    width: int = setting(5_000, "KLDA: number of random Fourier features.", least=1, most=100_000)
    gamma: float | Literal["median"] = setting(
        "median",
        "KLDA: width of the kernel exp(-gamma |x - y|^2); median: 1 / median squared distance"
        " between rows of the first data seen.",
        above=0,
    )
    members: int = setting(
        1, "KLDA: number of random maps, whose probabilities are added.", least=1, most=100
    )
    shrinkage: float | Literal["oas"] = setting(
        "oas",
        "KLDA: weight of the identity, times the mean variance, in the covariance; oas: by"
        " oracle approximating shrinkage.",
        above=0,
        most=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RanpacConfig(Part):
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
class Closed(Part):
    """Closed forms over the stream, with the defaults of their papers or their code."""

    slda: SldaConfig = field(default_factory=SldaConfig)
    fecam: FecamConfig = field(default_factory=FecamConfig)
    klda: KldaConfig = field(default_factory=KldaConfig)
    ranpac: RanpacConfig = field(default_factory=RanpacConfig)
