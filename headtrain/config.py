"""What an experiment and its heads are asked to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from clinit.headtrain.bank.precision import PRECISIONS
from clinit.headtrain.init import InitConfig
from clinit.headtrain.init.solved import SOLVED
from clinit.headtrain.least_squares.statistics import Weighting
from clinit.headtrain.stream.batches import MIXES
from clinit.headtrain.stream.buffer import BUFFER_SPLITS, Balanced, PerClass, Quotas, Sgm
from clinit.headtrain.stream.seeds import MAX_SEED

METHODS = ("rehearsal", "naive", "joint", *SOLVED)
HEAD_WIDTHS = ("grow", "full")
DEVICES = ("auto", "cuda", "cpu")
DEFAULT_BUFFER = 24_000
INIT_ROWS = ("buffer", "new")
MOST = 10**12
"""Of whatever is counted: more than anybody has or waits for, and less than overflows."""
MOST_ROWS = 1_000_000
"""Of a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """One head of a bank: how its new rows start and how they are trained."""

    init: str = "least-square"
    """Initialisation of the rows of new classes."""
    scale: str = "calibrated"
    """Scale of the initialised rows; `none` for random rows, whatever is asked."""
    lam: float | Literal["auto"] = 0.05
    """Ridge parameter of the least-square initialisation, as in Eq. 1; >= 0. `auto`: that of
    the least error on held-out training rows."""
    weighting: Weighting = "class"
    """What an average is in the least squares and in LDA: over classes, or over rows."""
    class_mean: Literal["raw", "unit"] = "raw"
    """Class mean: of the features, or of the features scaled to unit length."""
    bias: Literal["write", "keep"] = "write"
    """Bias of a new row: from the initialisation, or the random one."""
    loss: str = "ce"
    """Training loss."""
    lr: float = 1e-3
    """Learning rate of AdamW, constant; > 0. The paper's value for ConvNeXtV2-Femto."""
    weight_decay: float = 0.05
    """Decoupled weight decay, on weight and bias alike; >= 0."""

    def __post_init__(self) -> None:
        if self.init == "random":
            object.__setattr__(self, "scale", "none")
        self.start()
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")

    def start(self) -> InitConfig:
        """Return the part that the initialisation reads."""
        return InitConfig(
            init=self.init,
            scale=self.scale,
            lam=self.lam,
            class_mean=self.class_mean,
            weighting=self.weighting,
            bias=self.bias,
            loss=self.loss,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig:
    """One class-incremental stream, shared by all heads of a call."""

    method: str = "rehearsal"
    """`rehearsal`, `naive` (new rows alone), `joint` (all rows of all classes seen), or a head
    solved from all rows of all classes seen: `ncm`, `ridge`, `lda`."""
    tasks: int = 5
    """Number of tasks that the new classes are split into; >= 1."""
    iterations: int = 600
    """Updates a task; 0 evaluates the initialised heads only. Always 0 for a solved head."""
    buffer: int | None = None
    """Rows of earlier classes kept for rehearsal; 0 trains on new rows alone. Default: 24,000
    for rehearsal without `buffer_per_class`, and for initialisation from a buffer; None for
    other methods, whatever is asked."""
    buffer_per_class: int | None = None
    """Rows kept of each earlier class, instead of a total: the buffer grows with the classes."""
    buffer_split: str = "balanced"
    """Total buffer: shared equally by all classes seen, or `sgm`: base and later apart."""
    mix: str = "text"
    """Batches of rehearsal: `text`, half new and half old, or `sgm`; see `stream.batches`."""
    batch_size: int = 256
    """Rows a batch; >= 2."""
    eval_every: int = 50
    """Updates between two evaluations; >= 1."""
    seed: int = 0
    """Seed of class order, buffer, batches and random rows."""
    class_order: tuple[str, ...] | None = None
    """The new classes by name in the order in which they arrive; None draws it by seed."""
    init_rows: str | None = None
    """What initialisation may look at beside the new rows: `buffer`, old rows as well (those that
    the method trains on; those of a buffer kept for nothing else with `naive`), as in the paper,
    or `new`, nothing. Default: `new` for naive, whose point is that it has nothing; `buffer` for
    all others. It is settled when the value is made: a copy with another method has to name it."""
    head_width: str = "grow"
    """`grow`: a row is added when its class arrives; `full`: all rows from the start, those
    of classes that have not arrived being negatives."""
    device: str = "auto"
    """`auto` takes a CUDA device where there is one."""
    precision: str = "float32"
    """Of the matrix products of an update: `float32`, `tf32` (CUDA) or `bf16`, see
    `clinit.headtrain.bank.precision`. Evaluations are those of float32 logits in any case."""

    def __post_init__(self) -> None:
        least = {
            "tasks": 1,
            "iterations": 0,
            "buffer": 0,
            "batch_size": 2,
            "eval_every": 1,
            "buffer_per_class": 0,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}")
            most = MOST_ROWS if name == "batch_size" else MOST
            if value is not None and value > most:
                raise ValueError(f"{name} must be at most {most:,}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        choices_of = {
            "method": METHODS,
            "buffer_split": BUFFER_SPLITS,
            "mix": MIXES,
            "head_width": HEAD_WIDTHS,
            "device": DEVICES,
            "precision": PRECISIONS,
            "init_rows": (None, *INIT_ROWS),
        }
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if self.buffer_per_class is not None:
            if self.buffer is not None:
                raise ValueError("buffer and buffer_per_class exclude each other: give one")
            if self.buffer_split != "balanced":
                raise ValueError(
                    f"buffer_split {self.buffer_split!r} needs a total buffer, not buffer_per_class"
                )
        self._drop_what_does_not_apply()

    def _drop_what_does_not_apply(self) -> None:
        """Leave settings without a meaning at one value, so that equal runs look equal."""
        if self.init_rows is None or self.is_closed:
            object.__setattr__(self, "init_rows", default_init_rows(self.method))
        idle: dict[str, str | None] = {} if self.method == "rehearsal" else {"mix": "text"}
        if not self.keeps_buffer:
            idle |= {"buffer": None, "buffer_per_class": None, "buffer_split": "balanced"}
        for name, value in idle.items():
            object.__setattr__(self, name, value)
        if self.keeps_buffer and self.buffer is None and self.buffer_per_class is None:
            object.__setattr__(self, "buffer", DEFAULT_BUFFER)
        if self.is_closed:  # over the classes seen, which other rows would only disturb
            object.__setattr__(self, "iterations", 0)
            object.__setattr__(self, "head_width", "grow")
            object.__setattr__(self, "precision", "float32")

    @property
    def is_closed(self) -> bool:
        """Whether heads are solved and not trained."""
        return self.method in SOLVED

    @property
    def keeps_buffer(self) -> bool:
        """Whether old rows are kept in a buffer: for rehearsal, or for initialisation alone."""
        return self.method == "rehearsal" or (self.method == "naive" and self.init_rows == "buffer")

    def quotas(self, num_base: int) -> Quotas:
        """Return how many rows of each class the buffer holds, after `num_base` base classes."""
        if self.buffer_per_class is not None:
            return PerClass(self.buffer_per_class)
        size = self.buffer or 0
        return Sgm(size, num_base) if self.buffer_split == "sgm" else Balanced(size)

    @property
    def evaluation_points(self) -> tuple[int, ...]:
        """Numbers of updates after which a task is evaluated; 0 is before the first step."""
        return tuple(sorted({*range(0, self.iterations, self.eval_every), self.iterations}))


def default_init_rows(method: str) -> str:
    """Return what initialisation may look at beside the new rows, where nothing is said."""
    return "new" if method == "naive" else "buffer"


def head_settings(head: HeadConfig, method: str = "rehearsal") -> dict[str, Any]:
    """Return the settings of a head that mean something to `method`."""
    settings = asdict(head)
    closed = SOLVED.get(method)
    return settings if closed is None else {name: settings[name] for name in closed.reads}


def head_ids(heads: Sequence[HeadConfig], method: str = "rehearsal") -> list[str]:
    """Name each head by its initialisation and scale, and by what else tells it apart.

    The method comes first where it is not rehearsal; a solved head has no initialisation.

    Raises:
        ValueError: If there is no head, or two are the same.
    """
    if not heads:
        raise ValueError("a bank needs at least one head")
    fields = [head_settings(head, method) for head in heads]
    if twice := [each for each in fields if fields.count(each) > 1]:
        raise ValueError(f"two heads of a bank are the same: {twice[0]}")
    named = ("init", "scale")
    varied = [
        name for name in fields[0] if name not in named and len({each[name] for each in fields}) > 1
    ]
    prefix = [] if method == "rehearsal" else [method]
    return ["-".join([*prefix, *_start_words(each), *_words(each, varied)]) for each in fields]


def _start_words(fields: dict[str, Any]) -> list[str]:
    if "init" not in fields:
        return []
    return [fields["init"]] if fields["init"] == "random" else [fields["init"], fields["scale"]]


def _words(fields: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{name.replace('_', '-')}={fields[name]}" for name in names]
