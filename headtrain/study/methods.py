"""Settings that belong to a method: closed forms, top blocks, EWC and DER++."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from clinit.headtrain.setting import Part, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SldaConfig(Part):
    """Deep SLDA: one covariance for all classes, updated row by row."""

    panel: ClassVar[str] = "Closed forms"
    shrinkage: Annotated[
        float,
        Setting("Deep SLDA: weight of the identity in the covariance.", above=0, most=1),
    ] = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class FecamConfig(Part):
    """FeCAM: a covariance for each class."""

    panel: ClassVar[str] = "Closed forms"
    beta: Annotated[
        float,
        Setting("FeCAM: Tukey power of features that are nowhere negative; 1 is none.", above=0),
    ] = 0.5
    alpha1: Annotated[
        float,
        Setting("FeCAM: shrinkage by the mean variance on the diagonal.", above=0),
    ] = 1.0
    alpha2: Annotated[
        float | Literal["auto"],
        Setting(
            "FeCAM: shrinkage by the mean covariance off the diagonal; auto: 1 where features are"
            " nowhere negative, otherwise 0.",
            least=0,
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class KldaConfig(Part):
    """KLDA: linear discriminants of random Fourier features."""

    panel: ClassVar[str] = "Closed forms"
    width: Annotated[
        int, Setting("KLDA: number of random Fourier features.", least=1, most=100_000)
    ] = 5_000
    gamma: Annotated[
        float | Literal["median"],
        Setting(
            "KLDA: width of the kernel exp(-gamma |x - y|^2); median: 1 / median squared distance"
            " between rows of the first data seen.",
            above=0,
        ),
    ] = "median"
    members: Annotated[
        int, Setting("KLDA: maps of other seeds whose probabilities are added.", least=1, most=100)
    ] = 1
    shrinkage: Annotated[
        float | Literal["oas"],
        Setting(
            "KLDA: weight of the identity, times the mean variance, in the covariance; oas: by"
            " oracle approximating shrinkage.",
            above=0,
            most=1,
        ),
    ] = "oas"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanpacConfig(Part):
    """RanPAC: ridge regression on random ReLU features."""

    panel: ClassVar[str] = "Closed forms"
    width: Annotated[
        int, Setting("RanPAC: number of random ReLU features.", least=1, most=100_000)
    ] = 10_000
    lam: Annotated[
        float | Literal["auto"],
        Setting(
            "RanPAC: ridge beside sums over rows; auto: by the squared error on a fifth of the task"
            " at hand, from 1e-8 to 1e8.",
            above=0,
            option="ranpac-lambda",
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Part):
    """Closed forms over the stream; the defaults are those of their papers or their code."""

    slda: SldaConfig = field(default_factory=SldaConfig)
    fecam: FecamConfig = field(default_factory=FecamConfig)
    klda: KldaConfig = field(default_factory=KldaConfig)
    ranpac: RanpacConfig = field(default_factory=RanpacConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class EwcConfig(Part):
    """Strength and memory of the springs of EWC."""

    panel: ClassVar[str] = "EWC"
    lam: Annotated[
        float,
        Setting(
            "EWC: strength (default: the paper's); 0 is plain fine-tuning of the blocks.",
            least=0,
            option="ewc-lambda",
        ),
    ] = 1e6
    samples: Annotated[
        int,
        Setting(
            "EWC: most rows that the Fisher information is measured on.",
            least=1,
            option="ewc-samples",
        ),
    ] = 2048
    mode: Annotated[
        Literal["task", "online"],
        Setting("EWC: one anchor per task, or a single one that moves on.", option="ewc-mode"),
    ] = "task"
    gamma: Annotated[
        float,
        Setting(
            "EWC online: share of the older Fisher information that is kept.",
            above=0,
            most=1,
            option="ewc-gamma",
        ),
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DerppConfig(Part):
    """Weights of the two terms of old rows in DER++, and the source of the former logits."""

    panel: ClassVar[str] = "DER++"
    alpha: Annotated[
        float,
        Setting(
            "DER++: weight of squared differences to former logits (default: the paper's).",
            least=0,
            option="derpp-alpha",
        ),
    ] = 0.1
    beta: Annotated[
        float,
        Setting(
            "DER++: weight of the loss of old rows (default: the paper's); 0 is DER.",
            least=0,
            option="derpp-beta",
        ),
    ] = 0.9
    teacher: Annotated[
        Literal["snapshot", "stored"],
        Setting(
            "DER++: former logits from the network as it was at the task's start (as in related"
            " code of the paper's authors), or stored with the buffer when a class was"
            " learnt (Eq. 6 of DER++, which the paper names).",
            option="teacher",
        ),
    ] = "snapshot"
    distance: Annotated[
        Literal["mean", "sum"],
        Setting(
            "DER++: the mean over classes of squared differences, as in the code of its authors,"
            " so that alpha does not depend on the number of classes; or their sum, as in Eq. 6"
            " of DER++.",
            option="derpp-distance",
        ),
    ] = "mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Top(Part):
    """How the top blocks of a backbone learn; the defaults are the paper's."""

    panel: ClassVar[str] = "Top blocks"
    top_blocks: Annotated[
        int, Setting("Number of plastic blocks, from the end; everything below is frozen.", least=1)
    ] = 2
    full_rank: Annotated[
        bool,
        Setting(
            "Train the blocks themselves, not low-rank updates of their two linear layers; EWC"
            " always does."
        ),
    ] = False
    rank: Annotated[int, Setting("Rank of the updates.", least=1, most=100_000)] = 48
    alpha: Annotated[
        float,
        Setting(
            "Scale of the updates: W + (alpha / rank) B A. The paper's text has no factor, as with"
            " alpha = rank; loralib's default is 1, a factor of 1/48 at rank 48. With alpha ="
            " rank, random rows learn more, and with computed rows more is forgotten.",
            above=0,
        ),
    ] = 1.0
    a_init: Annotated[
        Literal["gaussian", "kaiming"],
        Setting(
            "Distribution of A at the start: normal, or uniform as in loralib; B starts at zero."
        ),
    ] = "gaussian"
    layer_decay: Annotated[
        float,
        Setting("Ratio of a layer's learning rate to that of the layer above it.", above=0, most=1),
    ] = 0.9
    compile: Annotated[
        bool, Setting("Run the top through torch.compile; needs a C++ compiler.")
    ] = False
    probe: Annotated[
        bool,
        Setting(
            "Measure forward transfer after each task but the last: a linear probe on the next"
            " task's classes.",
            panel="Evaluation",
        ),
    ] = True
    ewc: EwcConfig = field(default_factory=EwcConfig)
    derpp: DerppConfig = field(default_factory=DerppConfig)
