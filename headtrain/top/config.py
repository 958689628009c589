"""What a top-block run is asked to do, beside its stream and its head."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from clinit.headtrain.config import ExperimentConfig, HeadConfig, head_settings
from clinit.headtrain.top.methods import TOP_METHODS, DerppConfig, EwcConfig
from clinit.headtrain.top.network.lora import A_INITS

PRECISIONS = ("float32", "bf16")
MOST_RANK = 100_000
"""More than the width of any layer."""
DATA_METHOD = {"ewc": "naive", "derpp": "rehearsal"}
"""Which rows a method reads, where it is not one of train-head's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopConfig:
    """How the top blocks of a backbone learn; the defaults are the paper's."""

    method: str = "rehearsal"
    """One of TOP_METHODS."""
    top_blocks: int = 2
    """Plastic blocks, counted from the end; >= 1."""
    full_rank: bool = False
    """Train the blocks themselves, and not low-rank updates of their linear layers."""
    rank: int = 48
    """Of the updates; >= 1."""
    alpha: float = 1.0
    """Scale of the updates, alpha / rank; > 0. The rank gives the W + B A of the paper's text; 1 is
    loralib's, and forgets less from computed rows (measured: `docs/train-top.md`)."""
    a_init: str = "gaussian"
    """How the factor A starts: `gaussian`, or `kaiming` (uniform, as in loralib)."""
    layer_decay: float = 0.9
    """Ratio of a layer's learning rate to that of the layer above it; in (0, 1]."""
    precision: str = "float32"
    """`bf16` computes the top and the head by autocast; parameters stay in float32."""
    compile: bool = False
    """Run the top through torch.compile."""
    probe: bool = True
    """Measure forward transfer by a linear probe after each task but the last."""
    ewc: EwcConfig = field(default_factory=EwcConfig)
    derpp: DerppConfig = field(default_factory=DerppConfig)

    def __post_init__(self) -> None:
        choices_of = {"method": TOP_METHODS, "a_init": A_INITS, "precision": PRECISIONS}
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        for name in ("top_blocks", "rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.rank > MOST_RANK:
            raise ValueError(f"rank must be at most {MOST_RANK:,}, got {self.rank:,}")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must lie in (0, 1], got {self.layer_decay}")
        if self.method == "ewc" and self.ewc.lam and not self.full_rank:
            raise ValueError("ewc holds the blocks themselves: it needs full_rank")

    @property
    def data_method(self) -> str:
        """Name of the method that chooses the rows of a task."""
        return DATA_METHOD.get(self.method, self.method)

    def settings(self, stream: ExperimentConfig) -> dict[str, Any]:
        """Return what a record says about it: without what means nothing to the run.

        Raises:
            ValueError: If `stream` reads other rows than the method.
        """
        if stream.method != self.data_method:
            raise ValueError(f"method {self.method!r} needs a stream of {self.data_method!r}")
        low_rank = {"rank": self.rank, "alpha": self.alpha, "a_init": self.a_init}
        extra: dict[str, Any] = {}
        if self.method == "ewc":
            extra = _prefixed("ewc", self.ewc)
        elif self.method == "derpp":
            extra = _prefixed("derpp", self.derpp)
        return {
            "method": self.method,
            "top_blocks": self.top_blocks,
            "full_rank": self.full_rank,
            **({} if self.full_rank else low_rank),
            "layer_decay": self.layer_decay,
            "precision": self.precision,
            "compile": self.compile,
            **extra,
        }


def run_settings(head: HeadConfig, stream: ExperimentConfig, top: TopConfig) -> dict[str, Any]:
    """Return what the record of a run says about what it was asked to do."""
    return {**head_settings(head), **asdict(stream), **top.settings(stream)}


def run_name(head: HeadConfig, top: TopConfig) -> str:
    """Name a run by its method, where it is not rehearsal, its initialisation and its scale."""
    words = [head.init] if head.init == "random" else [head.init, head.scale]
    if top.method != "rehearsal":
        words.insert(0, top.method)
    return "-".join(words)


def _prefixed(prefix: str, config: Any) -> dict[str, Any]:
    names = type(config).__dataclass_fields__
    return {f"{prefix}_{name}": getattr(config, name) for name in names}
