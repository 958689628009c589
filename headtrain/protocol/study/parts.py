"""The settings of a run, part by part: its stream, the training of new rows, top blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from clinit.headtrain.heads.closed.settings import Closed
from clinit.headtrain.heads.start.settings import Start
from clinit.setting import Imported, SettingGroup, setting

ClosedMethod = Literal["slda", "simplecil", "ranpac"]
HeadMethod = Literal["rehearsal", "naive", "joint", "ncm", "ridge", "lda", ClosedMethod]
MethodName = Literal[HeadMethod, "ewc", "derpp"]
Loss = Literal["ce", "mse", "sqen", "bce"]
Precision = Literal["float32", "tf32", "bf16"]
RateSchedule = Literal["constant", "linear", "one-cycle"]
AnchorKind = Literal["none", "moments"]
Protocol = Literal["paper", "keep"]

HEAD_METHODS: tuple[str, ...] = get_args(HeadMethod)
TOP_METHODS = ("rehearsal", "naive", "joint", "ewc", "derpp")
SOLVED_METHODS = ("ncm", "ridge", "lda")
"""Methods whose head is solved as a whole from all rows of all classes seen."""
CLOSED_METHODS: tuple[str, ...] = get_args(ClosedMethod)
"""Methods that see each row once, when its class arrives, and keep statistics of it."""
MAX_SEED = 2**32 - 1
"""A larger seed would take two words, and could repeat the draws of another seed."""

LOSS = "Training loss: cross entropy, squared error, squentropy, or binary cross entropy."
DEVICE = "Device to compute on: auto (CUDA if available), cpu, cuda or cuda:N."
PRECISION = "Arithmetic of an update: float32, tf32 (CUDA) or bf16. Weights, evaluations: float32."
AUTO_EVERY = 50
"""Updates between two evaluations by default, as in the paper."""
EARLY_POINTS = (1, 2, 5, 10, 20)
"""Further evaluations by default: the gain of a good start shows early or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream(SettingGroup):
    """Which classes arrive when, which old rows are kept, how long a task is trained."""

    panel: ClassVar[str] = "Stream"
    method: MethodName = setting(
        "rehearsal",
        "How earlier classes are kept: with a buffer of old rows (rehearsal), not at all"
        " (naive), or with all rows of all classes seen (joint); or by solving the whole head"
        " from the rows of joint (nearest class mean, ridge, LDA); or by statistics alone, each"
        " row seen once (slda, simplecil, ranpac).",
        top_help="How earlier classes are kept: with a buffer of old rows (rehearsal), not at"
        " all (naive), with all rows of all classes seen (joint), by EWC, without old rows, or"
        " by DER++, with a buffer.",
        decides=True,
    )
    tasks: int = setting(5, "Number of tasks in which the new classes arrive.", least=1)
    stop_after: int | None = setting(
        None, "Number of tasks to learn, if not all planned tasks.", least=1, otherwise="all"
    )
    iterations: int = setting(
        600, "Updates per task; 0 evaluates the initialised heads only.", least=0, panel="Training"
    )
    buffer: int | None = setting(
        None, "Rows of earlier classes kept for rehearsal.", least=0, otherwise="24000"
    )
    old_rows: Literal["stored", "statistics"] = setting(
        "stored",
        "Old rows of rehearsal: rows stored in the buffer; or, without stored rows, drawn anew for"
        " each batch from class means and one covariance of all rows of earlier classes.",
        of_heads=True,
        earlier="stored",
        decides=True,
    )
    mix: Literal["text", "uniform"] | None = setting(
        None,
        "Rows of a batch. text: half new, half old, as in the paper's text; uniform: each"
        " class seen so far is equally likely.",
        otherwise="text; --protocol keep: uniform; joint: all rows as they come",
        top_otherwise="text",
        decides=True,
    )
    batch_size: int | None = setting(
        None,
        "Rows per batch.",
        panel="Training",
        least=2,
        most=1_000_000,
        otherwise="256",
        top_otherwise="256; ewc: 128",
    )
    shots: int | None = setting(
        None,
        "Training rows per new class, drawn by the seed: few-shot learning.",
        least=1,
        otherwise="all",
    )
    eval_every: int | Literal["auto"] = setting(
        "auto",
        "Updates between two evaluations; auto: 50, and at 1, 2, 5, 10 and 20 too, when new"
        " rows change most. Averages are over every 50.",
        least=1,
        panel="Evaluation",
    )
    mistakes: Literal["end", "all"] = setting(
        "end",
        "Evaluations of which the record lists every wrongly classified test image: the last of"
        " each task, or all.",
        panel="Evaluation",
        earlier="end",
    )
    seed: int = setting(
        0,
        "Seed of everything random: class order, buffer, batches, random rows, low-rank factors.",
        least=0,
        most=MAX_SEED,
    )
    class_order: tuple[str, ...] | None = setting(
        None,
        "File with the name of every new class, one per line, in the order of arrival;"
        " replaces the order drawn by the seed.",
        file=True,
    )

    @property
    def rows_per_batch(self) -> int:
        """The batch size of a resolved study."""
        assert self.batch_size is not None
        return self.batch_size

    def lists_mistakes(self, iteration: int) -> bool:
        """Whether an evaluation lists the wrongly classified images."""
        return self.mistakes == "all" or iteration == self.iterations

    @property
    def evaluation_points(self) -> tuple[int, ...]:
        """Numbers of updates after which a task is evaluated; 0 is before the first step."""
        return evaluation_points(self.iterations, self.eval_every)


def evaluation_points(iterations: int, every: int | Literal["auto"]) -> tuple[int, ...]:
    """Return the numbers of updates after which a task of `iterations` is evaluated, ascending.

    >>> evaluation_points(120, "auto")
    (0, 1, 2, 5, 10, 20, 50, 100, 120)
    >>> evaluation_points(120, 50)
    (0, 50, 100, 120)
    """
    early = EARLY_POINTS if every == "auto" else ()
    regular = range(0, iterations, AUTO_EVERY if every == "auto" else every)
    return tuple(sorted({*(point for point in early if point < iterations), *regular, iterations}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Training(SettingGroup):
    """Loss, optimizer and arithmetic."""

    panel: ClassVar[str] = "Training"
    protocol: Protocol = setting(
        "paper",
        "Batches, anchor and schedule by default. paper: half of each batch new, no anchor, a"
        " constant rate; keep: every class equally likely, anchor moments, a falling rate.",
        of_heads=True,
        decides=True,
        earlier="paper",
        recorded=False,
        shared=True,
    )
    loss: Loss | Imported = setting(
        "ce",
        f"{LOSS[:-1]}; or a function of logits and labels that returns the loss of each row.",
        group="clinit.losses",
    )
    step: Literal["loss"] | Imported = setting(
        "loss",
        "Gradient of an update: of the loss; or by a function of batch, head and state that returns"
        " a loss or the gradients.",
        group="clinit.steps",
        of_heads=True,
        earlier="loss",
    )
    lr: float | None = setting(
        None,
        "Learning rate of AdamW, the largest of its schedule.",
        above=0,
        otherwise="1e-3",
        top_help="Learning rate of the head in AdamW, at the peak of one cycle per task.",
        top_otherwise="1.5e-3; ewc: 8e-4",
    )
    schedule: RateSchedule | None = setting(
        None,
        "Learning rate over the updates of a task: constant, falling to 0 (linear), or rising over"
        " the first 30 % and falling to 0 by cosines (one-cycle).",
        otherwise="constant; --protocol keep: linear",
        of_heads=True,
        shared=True,
        earlier="constant",
    )
    weight_decay: float = setting(
        0.05,
        "Decoupled weight decay of the head.",
        least=0,
        top_help="Decoupled weight decay of the head and of matrices; norms and biases of"
        " blocks have none.",
    )
    anchor: AnchorKind | None = setting(
        None,
        "Penalty that holds a head near its start while it learns a task: none; moments: the mean"
        " squared change of all logits on features of earlier classes, whose second moment is"
        " kept.",
        otherwise="none; --protocol keep: moments",
        earlier="none",
        decides=True,
        of_heads=True,
    )
    anchor_strength: float | Literal["auto"] = setting(
        "auto",
        "Weight of the anchor in the loss; auto: the best of five by the loss on a fifth of the"
        " rows of the task, for which five more heads are trained.",
        above=0,
        earlier="auto",
        of_heads=True,
    )
    precision: Precision = setting(
        "float32",
        PRECISION,
        top_help="Arithmetic of an update: float32 or bf16. Weights are always float32.",
        shared=True,
    )
    device: str = setting("auto", DEVICE, identifies=False, shared=True)

    @property
    def rate(self) -> float:
        """The learning rate of a resolved study."""
        assert self.lr is not None
        return self.lr


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The settings of one run, by part."""

    stream: Stream = field(default_factory=Stream)
    start: Start = field(default_factory=Start)
    training: Training = field(default_factory=Training)
    closed: Closed = field(default_factory=Closed)
    top: Top | None = None

    @property
    def is_solved(self) -> bool:
        """Whether heads are solved instead of trained."""
        return self.stream.method in SOLVED_METHODS or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether heads are closed forms of statistics, which arriving rows are added to."""
        return self.stream.method in CLOSED_METHODS

    @property
    def reads_share(self) -> bool:
        """Whether the run depends on `new_share`."""
        return self.start.looks_around and not self.is_solved

    @property
    def rehearses(self) -> bool:
        """Whether batches contain rows of earlier classes, as many as `mix` sets."""
        return self.stream.method in ("rehearsal", "derpp")

    @property
    def draws_old_rows(self) -> bool:
        """Whether the old rows of batches are drawn from statistics."""
        return self.rehearses and self.stream.old_rows == "statistics"

    @property
    def keeps_statistics(self) -> bool:
        """Whether training uses statistics of all rows of earlier classes."""
        return self.draws_old_rows or self.is_held

    @property
    def keeps(self) -> bool:
        """Whether training has the defaults of `--protocol keep`."""
        return self.training.protocol == "keep" and not self.is_solved

    @property
    def anchor(self) -> AnchorKind:
        """The requested anchor, or the default."""
        return self.training.anchor or ("moments" if self.keeps else "none")

    @property
    def is_held(self) -> bool:
        """Whether training holds a head near its start."""
        return self.stream.iterations > 0 and self.anchor != "none"

    @property
    def keeps_buffer(self) -> bool:
        """Whether a buffer keeps old rows, for rehearsal or only for initialisation."""
        method = self.stream.method
        rows = self.start.init_rows or default_init_rows(method)
        if self.rehearses:
            return not self.draws_old_rows
        return method in ("naive", "ewc") and rows == "buffer"


def default_init_rows(method: str) -> str:
    """Return the default of `init_rows`."""
    return "new" if method == "naive" else "buffer"
