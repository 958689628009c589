"""The settings of a run, part by part: its stream, the start of new rows, their training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from clinit.headtrain.setting import Imported, Part, setting
from clinit.headtrain.study.methods import Closed, Top

ClosedMethod = Literal["slda", "simplecil", "fecam", "klda", "ranpac"]
HeadMethod = Literal["rehearsal", "naive", "joint", "ncm", "ridge", "lda", ClosedMethod]
TopMethod = Literal["rehearsal", "naive", "joint", "ewc", "derpp"]
Method = Literal[HeadMethod, "ewc", "derpp"]
Init = Literal["random", "class-mean", "least-square", "fitted", "zero", "imprint", "lda"]
Scale = Literal["none", "norm", "row-norm", "calibrated"]
Weighting = Literal["class", "sample"]
NewShare = float | Literal["auto", "classes"]
Loss = Literal["ce", "mse", "sqen"]
Device = Literal["auto", "cuda", "cpu"]
Precision = Literal["float32", "tf32", "bf16"]
Correct = Literal["none", "wa", "bic"]
RateSchedule = Literal["constant", "linear", "one-cycle"]
AnchorKind = Literal["none", "l2", "moments"]

HEAD_METHODS: tuple[str, ...] = get_args(HeadMethod)
TOP_METHODS: tuple[str, ...] = get_args(TopMethod)
SOLVED_METHODS = ("ncm", "ridge", "lda")
"""Methods whose head is solved as a whole from all rows of all classes seen."""
CLOSED_METHODS: tuple[str, ...] = get_args(ClosedMethod)
"""Methods that see each row once, when its class arrives, and keep statistics of it."""
INITS: tuple[str, ...] = get_args(Init)
SCALES: tuple[str, ...] = get_args(Scale)
PAPER_INITS: tuple[Init, ...] = ("random", "class-mean", "least-square")
MAX_SEED = 2**32 - 1
"""Larger seeds would take two words and could meet the draws of another seed."""

LOSS = "Training loss: cross entropy, squared error or squentropy."
NEW_SHARE = (
    "Weight of the images of all classes after the base together when scale, lambda and fitted"
    " rows are chosen by the loss; classes: each class weighs the same; auto: 0.1, or as with"
    " classes if that is more."
)
DEVICE = "Device to compute on; auto takes CUDA if there is one."
PRECISION = (
    "Arithmetic of an update: float32, tf32 (CUDA) or bf16. Weights and evaluations are always"
    " float32."
)
AUTO_EVERY = 50
"""Updates between two evaluations by default, as in the paper."""
EARLY_POINTS = (1, 2, 5, 10, 20)
"""More evaluations by default: the gain of a good start shows there or nowhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream(Part):
    """Which classes arrive when, which rows of earlier ones are kept, how long a task takes."""

    panel: ClassVar[str] = "Stream"
    method: Method = setting(
        "rehearsal",
        "How earlier classes are kept: with a buffer of old rows (rehearsal), not at all"
        " (naive), or with all rows of all classes seen (joint); or by solving the whole head"
        " from the rows of joint (nearest class mean, ridge, LDA); or by statistics alone, each"
        " row seen once (slda, simplecil, fecam, klda, ranpac).",
        top_help="How earlier classes are kept: with a buffer of old rows (rehearsal), not at"
        " all (naive), with all rows of all classes seen (joint), by EWC, without old rows, or"
        " by DER++, with a buffer.",
    )
    tasks: int = setting(5, "Number of tasks in which the new classes arrive.", least=1)
    stop_after: int | None = setting(
        None, "Learn the first tasks only, of as many as are planned.", least=1, otherwise="all"
    )
    iterations: int = setting(
        600, "Updates per task; 0 evaluates the initialised heads only.", least=0, panel="Training"
    )
    buffer: int | None = setting(
        None, "Rows of earlier classes kept for rehearsal.", least=0, otherwise="24000"
    )
    buffer_per_class: int | None = setting(
        None, "Rows kept per earlier class, instead of a total.", least=0
    )
    buffer_split: Literal["balanced", "sgm"] = setting(
        "balanced",
        "Share the buffer equally among all classes seen, or keep 22.5 % (20 % from 192,000"
        " rows on) for the classes after the base, as SGM does.",
    )
    old_rows: Literal["stored", "statistics"] = setting(
        "stored",
        "Old rows of rehearsal: those stored in the buffer; or drawn anew for each batch from the"
        " class means and one covariance of all rows of earlier classes, of which none is stored.",
        of_heads=True,
    )
    mix: Literal["text", "sgm", "uniform"] | None = setting(
        None,
        "Batches: half new, half old rows, as in the paper's text; sgm: the same in task 1, then"
        " 3/8 new, 1/2 base, 1/8 earlier new classes; uniform: each class seen so far equally"
        " likely.",
        otherwise="uniform; joint: all rows as they come",
        top_otherwise="text",
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
class Start(Part):
    """How the rows of new classes start."""

    panel: ClassVar[str] = "Start"
    init: Init | Imported | Callable[..., Any] = setting(
        "least-square",
        "Initialisation of the rows of new classes, or a function that returns them.",
        group="clinit.starts",
    )
    # Raw least-square rows predict targets in [0, 1] and lose to the logits of the trained
    # rows; `calibrated` needs no tuning, `norm` is our reading of the paper.
    scale: Scale = setting(
        "calibrated",
        "Scale of initialised rows: as computed (none), one factor that matches the mean norm"
        " (norm), a factor per row (row-norm), or the factor and shift of the least loss on"
        " leave-one-out logits (calibrated). Random rows have none.",
    )
    lam: float | Literal["auto", "held-out"] = setting(
        "auto",
        "Ridge parameter of least squares, as in Eq. 1; auto: by the leave-one-out loss of"
        " calibrated rows; held-out: by the squared error on a fifth of the rows, as auto does"
        " for a solved head. The paper: 0.05 (ConvNeXt), 1e-4 (ResNet).",
        least=0,
        alias="lambda",
    )
    calibration: Literal["leave-one-out", "in-sample"] = setting(
        "leave-one-out",
        "Logits that `calibrated` looks at: of each image, from rows computed without it, or of"
        " the rows themselves.",
    )
    new_share: NewShare = setting("auto", NEW_SHARE, above=0, most=0.99)
    # Of 0.3 to 3000 the best or within 0.2 points of it after 25 iterations, from 5 to 200 rows
    # per class; before the first one, weaker ones do better with many rows.
    fit_ridge: float = setting(
        60.0,
        "Fitted rows: strength of the ridge towards the rows they start from, counted in"
        " training rows.",
        least=0,
    )
    # Only `class` makes Eq. 3 of the paper the minimiser of its Eq. 1 for unequal classes.
    weighting: Weighting = setting(
        "class",
        "Averages in least squares and LDA: over classes, of the average of each, or over all"
        " rows.",
    )
    class_mean: Literal["raw", "unit"] = setting(
        "raw", "Class mean of the features (the paper's), or of the features scaled to unit length."
    )
    bias: Literal["write", "keep"] = setting(
        "write", "Bias of a new row: written by the initialisation, or kept random."
    )
    init_rows: Literal["buffer", "new"] | None = setting(
        None,
        "Rows that initialisation sees: the old ones of the buffer too, as in the paper (naive"
        " keeps a buffer for this alone), or new rows alone.",
        otherwise="buffer; naive: new",
        top_help="Rows that initialisation sees: the old ones of the buffer too, as in the"
        " paper (naive and ewc keep a buffer for this alone), or new rows alone.",
    )
    head_width: Literal["grow", "full"] = setting(
        "grow",
        "Add rows when their classes arrive, or have all from the start, with rows of later"
        " classes as negatives.",
    )

    @property
    def own(self) -> Imported | None:
        """The function of the user that returns the rows, if they are not ours."""
        return self.init if isinstance(self.init, Imported) else None

    @property
    def reads_lambda(self) -> bool:
        """Whether the rows depend on `lam`."""
        return self.init in ("least-square", "fitted")

    @property
    def is_calibrated(self) -> bool:
        """Whether factor and shift of the rows are chosen by the loss; fitted ones start so."""
        return self.scale == "calibrated" or self.init == "fitted"

    @property
    def ridge_parameter(self) -> float:
        """The lambda of a study that gives it as a number."""
        assert isinstance(self.lam, float | int)
        return self.lam

    @property
    def chooses_lambda(self) -> bool:
        """Whether lambda is chosen from the data."""
        return self.reads_lambda and not isinstance(self.lam, float | int)

    @property
    def looks_around(self) -> bool:
        """Whether the rows depend on the loss, and so on the logits of other rows."""
        return self.is_calibrated or self.chooses_lambda

    @property
    def reads_weighting(self) -> bool:
        """Whether the rows depend on how averages over several classes are weighted."""
        return self.own is not None or self.init in ("least-square", "fitted", "lda")

    @property
    def reads_statistics(self) -> bool:
        """Whether the rows are a function of class statistics."""
        means = self.init == "class-mean" and self.class_mean == "raw"
        return means or self.reads_weighting


@dataclass(frozen=True, kw_only=True, slots=True)
class Training(Part):
    """Loss, optimizer, arithmetic, and the correction afterwards."""

    panel: ClassVar[str] = "Training"
    loss: Loss | Imported = setting(
        "ce",
        f"{LOSS[:-1]}; or a function of logits and labels that returns the loss of each row.",
        group="clinit.losses",
    )
    lr: float | None = setting(
        None,
        "Learning rate of AdamW, the largest of its schedule.",
        above=0,
        otherwise="1e-3",
        top_help="Learning rate of the head in AdamW, at the peak of one cycle per task.",
        top_otherwise="1.5e-3; ewc: 8e-4",
    )
    schedule: RateSchedule = setting(
        "constant",
        "Learning rate over the updates of a task: constant, falling to 0 (linear), or rising over"
        " the first 30 % and falling to 0 by cosines (one-cycle).",
        of_heads=True,
    )
    weight_decay: float = setting(
        0.05,
        "Decoupled weight decay of the head.",
        least=0,
        top_help="Decoupled weight decay of the head and of matrices; norms and biases of"
        " blocks have none.",
    )
    correct: Correct = setting(
        "none",
        "Correction of new rows after the training of a task: none; wa: one factor that gives"
        " them the mean norm of the old rows (weight aligning); bic: a factor and a shift of"
        " their logits, found on a tenth of the rows, which is kept aside (bias correction).",
        of_heads=True,
    )
    anchor: AnchorKind | None = setting(
        None,
        "Penalty that holds a head near its start while it learns a task: none; l2: the squared"
        " change of its weights (L2-SP); moments: the mean squared change of all logits on features"
        " of earlier classes, whose second moment is kept.",
        otherwise="moments; with --mix, --old-rows statistics or another method: none",
        top_otherwise="none",
        top_help="Penalty that holds blocks and head near their start while they learn a task:"
        " none, or the squared change of all trained parameters (l2: L2-SP).",
    )
    anchor_strength: float | Literal["auto", "images"] | None = setting(
        None,
        "Weight of the anchor in the loss; auto: the one of five that leaves the least loss on a"
        " fifth of the rows of the task, which takes five more heads to train; images (moments):"
        " the less, the more images a class has; random rows, zeros, squared error and"
        " squentropy are free.",
        otherwise="images; with --anchor: auto",
        top_otherwise="none",
        above=0,
        top_help="Weight of the anchor in the loss, a number.",
    )
    precision: Precision = setting(
        "float32",
        PRECISION,
        top_help="Arithmetic of an update: float32 or bf16. Weights are always float32.",
    )
    device: Device = setting("auto", DEVICE)

    @property
    def rate(self) -> float:
        """The learning rate of a resolved study."""
        assert self.lr is not None
        return self.lr


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
        """Whether heads are closed forms of statistics that rows are added to as they arrive."""
        return self.stream.method in CLOSED_METHODS

    @property
    def reads_share(self) -> bool:
        """Whether anything is chosen by a loss in which new images have a weight."""
        return self.start.looks_around and not self.is_solved

    @property
    def rehearses(self) -> bool:
        """Whether batches hold rows of earlier classes, as many as `mix` sets."""
        return self.stream.method in ("rehearsal", "derpp")

    @property
    def draws_old_rows(self) -> bool:
        """Whether these rows are drawn from statistics."""
        return self.rehearses and self.stream.old_rows == "statistics"

    @property
    def keeps_statistics(self) -> bool:
        """Whether training looks at statistics of all rows of earlier classes."""
        return self.draws_old_rows or (self.is_held and self.anchor == "moments")

    @property
    def anchor(self) -> AnchorKind:
        """The anchor that was asked for, or the default."""
        is_usual = self.rehearses and self.top is None and not self.draws_old_rows
        usual: AnchorKind = "moments" if is_usual and self.stream.mix is None else "none"
        return self.training.anchor or usual

    @property
    def is_held(self) -> bool:
        """Whether a resolved study has an anchor.

        With the strength `images`, rows that know nothing are free, and so are heads of losses
        that want other logits than the pretrained head gives.
        """
        is_free = self.start.init in ("random", "zero") or self.training.loss in ("mse", "sqen")
        by_images = self.training.anchor_strength == "images"
        return self.stream.iterations > 0 and self.anchor != "none" and not (by_images and is_free)

    @property
    def keeps_buffer(self) -> bool:
        """Whether old rows are kept in a buffer: for rehearsal, or for initialisation alone."""
        method = self.stream.method
        rows = self.start.init_rows or default_init_rows(method)
        if self.rehearses:
            return not self.draws_old_rows
        return method in ("naive", "ewc") and rows == "buffer"


def default_init_rows(method: str) -> str:
    """Return the default of `init_rows`: the rows that initialisation sees."""
    return "new" if method == "naive" else "buffer"
