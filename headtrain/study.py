"""A study: what one run is asked to do, as a frozen value.

    Study
      stream      which classes arrive when, what is kept of earlier ones, how long training takes
      start       how the rows of new classes start
      training    loss and optimizer, and what is corrected after a task
      closed      what closed forms over the stream need beyond that; heads alone
      top         which blocks of the backbone learn as well; None where the head learns alone

Nothing here imports PyTorch or NumPy: the command line is made from these fields. Values that
depend on other settings are None until `resolved` settles them. `RULES` says which settings mean
nothing to which run: refusals, records, the identity of runs and reports all ask it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args

from clinit.headtrain.setting import Field, Part, Setting, fields_of

ClosedMethod = Literal["slda", "simplecil", "fecam", "klda", "ranpac"]
HeadMethod = Literal["rehearsal", "naive", "joint", "ncm", "ridge", "lda", ClosedMethod]
TopMethod = Literal["rehearsal", "naive", "joint", "ewc", "derpp"]
Method = Literal[HeadMethod, "ewc", "derpp"]
Init = Literal["random", "class-mean", "least-square", "fitted", "zero", "imprint", "lda"]
Scale = Literal["none", "norm", "row-norm", "calibrated"]
Weighting = Literal["class", "sample"]
Loss = Literal["ce", "mse", "sqen"]
Device = Literal["auto", "cuda", "cpu"]
Precision = Literal["float32", "tf32", "bf16"]
Correct = Literal["none", "wa", "bic"]

HEAD_METHODS: tuple[str, ...] = get_args(HeadMethod)
TOP_METHODS: tuple[str, ...] = get_args(TopMethod)
SOLVED_METHODS = ("ncm", "ridge", "lda")
"""Methods whose head is solved as a whole from all rows of all classes seen."""
CLOSED_METHODS: tuple[str, ...] = get_args(ClosedMethod)
"""Methods that see each row once, when its class arrives, and keep statistics of it."""
INITS: tuple[str, ...] = get_args(Init)
SCALES: tuple[str, ...] = get_args(Scale)
PAPER_INITS: tuple[Init, ...] = ("random", "class-mean", "least-square")
PLACES = ("device",)
"""Settings that say where a run is computed; they are no part of its identity."""
DEFAULT_BUFFER = 24_000
MAX_SEED = 2**32 - 1


_SEED = Setting(
    "Seed of everything random: class order, buffer, batches, random rows, low-rank factors.",
    least=0,
    most=MAX_SEED,
)
_LOSS = Setting("Training loss: cross entropy, squared error or squentropy.")
_PRECISION = Setting(
    "Arithmetic of an update: float32, tf32 (CUDA) or bf16. Weights and evaluations are always"
    " float32.",
    top_help="Arithmetic of an update: float32 or bf16. Weights are always float32.",
)
_DEVICE = Setting("Device to compute on; auto takes CUDA where there is one.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream(Part):
    """Which classes arrive when, what is kept of earlier ones, and how long each task is learnt."""

    method: Annotated[
        Method,
        Setting(
            "How earlier classes are kept: with a buffer of old rows (rehearsal), not at all"
            " (naive), or with all rows of all classes seen (joint); or by solving the whole head"
            " from the rows of joint (nearest class mean, ridge, LDA); or by statistics alone, each"
            " row seen once (slda, simplecil, fecam, klda, ranpac).",
            top_help="How earlier classes are kept: with a buffer of old rows (rehearsal), not at"
            " all (naive), with all rows of all classes seen (joint), by EWC, without old rows, or"
            " by DER++, with a buffer.",
        ),
    ] = "rehearsal"
    tasks: Annotated[int, Setting("Number of tasks in which the new classes arrive.", least=1)] = 5
    stop_after: Annotated[
        int | None,
        Setting("Learn the first tasks only, of as many as are planned.", least=1, otherwise="all"),
    ] = None
    iterations: Annotated[
        int, Setting("Updates per task; 0 evaluates the initialised heads only.", least=0)
    ] = 600
    buffer: Annotated[
        int | None,
        Setting("Rows of earlier classes kept for rehearsal.", least=0, otherwise="24000"),
    ] = None
    buffer_per_class: Annotated[
        int | None, Setting("Rows kept per earlier class, instead of a total.", least=0)
    ] = None
    buffer_split: Annotated[
        Literal["balanced", "sgm"],
        Setting(
            "Share the buffer equally among all classes seen, or keep 22.5 % (20 % from 192,000"
            " rows on) for the classes after the base, as SGM does."
        ),
    ] = "balanced"
    mix: Annotated[
        Literal["text", "sgm"],
        Setting(
            "Batches: half new, half old rows, as in the paper's text; or sgm: the same in task 1,"
            " then 3/8 new, 1/2 base, 1/8 earlier new classes."
        ),
    ] = "text"
    batch_size: Annotated[
        int | None,
        Setting(
            "Rows per batch.",
            least=2,
            most=1_000_000,
            otherwise="256",
            top_otherwise="256; ewc: 128",
        ),
    ] = None
    shots: Annotated[
        int | None,
        Setting(
            "Training rows per new class, drawn by the seed: few-shot learning.",
            least=1,
            otherwise="all",
        ),
    ] = None
    eval_every: Annotated[int, Setting("Updates between two evaluations.", least=1)] = 50
    seed: Annotated[int, _SEED] = 0
    class_order: Annotated[
        tuple[str, ...] | None,
        Setting(
            "File with the name of every new class, one per line, in the order of arrival;"
            " replaces the order drawn by the seed.",
            file=True,
        ),
    ] = None

    @property
    def rows_per_batch(self) -> int:
        """The batch size of a resolved study."""
        assert self.batch_size is not None
        return self.batch_size

    @property
    def evaluation_points(self) -> tuple[int, ...]:
        """Numbers of updates after which a task is evaluated; 0 is before the first step."""
        return tuple(sorted({*range(0, self.iterations, self.eval_every), self.iterations}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(Part):
    """How the rows of new classes start."""

    init: Annotated[Init, Setting("Initialisation of the rows of new classes.")] = "least-square"
    scale: Annotated[
        Scale,
        # Raw least-square rows predict targets in [0, 1] and lose to the logits of the trained
        # rows; `calibrated` needs no tuning, `norm` is our reading of the paper.
        Setting(
            "Scale of initialised rows: as computed (none), one factor that matches the mean norm"
            " (norm), a factor per row (row-norm), or the factor and shift of the least loss on"
            " leave-one-out logits (calibrated). Random rows have none."
        ),
    ] = "calibrated"
    lam: Annotated[
        float | Literal["auto", "held-out"],
        Setting(
            "Ridge parameter of least squares, as in Eq. 1; auto: by the leave-one-out loss of"
            " calibrated rows; held-out: by the squared error on a fifth of the rows, as auto does"
            " for a solved head. The paper: 0.05 (ConvNeXt), 1e-4 (ResNet).",
            least=0,
            option="lambda",
        ),
    ] = "auto"
    calibration: Annotated[
        Literal["leave-one-out", "in-sample"],
        Setting(
            "Logits that `calibrated` looks at: those that an image gets from rows computed without"
            " it, or those of the rows themselves."
        ),
    ] = "leave-one-out"
    fit_ridge: Annotated[
        float,
        # Of 0.3 to 3000 the best or within 0.2 points of it after 25 iterations, from 5 to 200 rows
        # per class; before the first one, weaker ones do better with many rows.
        Setting(
            "Fitted rows: strength of the ridge towards the rows they start from, counted in"
            " training rows.",
            least=0,
        ),
    ] = 60.0
    weighting: Annotated[
        Weighting,
        # Only `class` makes Eq. 3 of the paper the minimiser of its Eq. 1 for unequal classes.
        Setting(
            "Averages in least squares and LDA: over classes, of the average of each, or over all"
            " rows."
        ),
    ] = "class"
    class_mean: Annotated[
        Literal["raw", "unit"],
        Setting(
            "Class mean of the features (the paper's), or of the features scaled to unit length."
        ),
    ] = "raw"
    bias: Annotated[
        Literal["write", "keep"],
        Setting("Bias of a new row: written by the initialisation, or kept random."),
    ] = "write"
    init_rows: Annotated[
        Literal["buffer", "new"] | None,
        Setting(
            "Rows that initialisation sees: the old ones of the buffer too, as in the paper (naive"
            " keeps a buffer for this alone), or new rows alone.",
            otherwise="buffer; naive: new",
            top_help="Rows that initialisation sees: the old ones of the buffer too, as in the"
            " paper (naive and ewc keep a buffer for this alone), or new rows alone.",
        ),
    ] = None
    head_width: Annotated[
        Literal["grow", "full"],
        Setting(
            "Add rows when their classes arrive, or have all from the start, where those of later"
            " classes are negatives."
        ),
    ] = "grow"

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
        return self.init in ("least-square", "fitted", "lda")

    @property
    def reads_statistics(self) -> bool:
        """Whether the rows are a function of class statistics."""
        means = self.init == "class-mean" and self.class_mean == "raw"
        return means or self.reads_weighting


@dataclass(frozen=True, kw_only=True, slots=True)
class Training(Part):
    """Loss, optimizer, arithmetic, and what is corrected afterwards."""

    loss: Annotated[Loss, _LOSS] = "ce"
    lr: Annotated[
        float | None,
        Setting(
            "Learning rate of AdamW; it is constant.",
            above=0,
            otherwise="1e-3",
            top_help="Learning rate of the head in AdamW, at the peak of one cycle per task.",
            top_otherwise="1.5e-3; ewc: 8e-4",
        ),
    ] = None
    weight_decay: Annotated[
        float,
        Setting(
            "Decoupled weight decay of the head.",
            least=0,
            top_help="Decoupled weight decay of the head and of matrices; norms and biases of"
            " blocks have none.",
        ),
    ] = 0.05
    correct: Annotated[
        Correct,
        Setting(
            "Correction of new rows after the training of a task: none; wa: one factor that gives"
            " them the mean norm of the old rows (weight aligning); bic: a factor and a shift of"
            " their logits, found on a tenth of the rows, which is kept aside (bias correction).",
            of_heads=True,
        ),
    ] = "none"
    precision: Annotated[Precision, _PRECISION] = "float32"
    device: Annotated[Device, _DEVICE] = "auto"

    @property
    def rate(self) -> float:
        """The learning rate of a resolved study."""
        assert self.lr is not None
        return self.lr


@dataclass(frozen=True, slots=True, kw_only=True)
class SldaConfig(Part):
    """Deep SLDA: one covariance for all classes, updated row by row."""

    shrinkage: Annotated[
        float,
        Setting("Deep SLDA: weight of the identity in the covariance.", above=0, most=1),
    ] = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class FecamConfig(Part):
    """FeCAM: a covariance for each class."""

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
        float,
        Setting(
            "KLDA: weight of the identity, times the mean variance, in the covariance.",
            above=0,
            most=1,
        ),
    ] = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class RanpacConfig(Part):
    """RanPAC: ridge regression on random ReLU features."""

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
            " task's classes."
        ),
    ] = True
    ewc: EwcConfig = field(default_factory=EwcConfig)
    derpp: DerppConfig = field(default_factory=DerppConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignConfig(Part):
    """The fine-tuning of a base head with another loss; the defaults are the paper's."""

    loss: Annotated[Loss, _LOSS] = "mse"
    epochs: Annotated[int, Setting("Passes over the training rows.", least=1)] = 50
    batch_size: Annotated[
        int,
        Setting(
            "Rows per batch; more than there are means all. Rows that do not fill a batch are left"
            " out of the epoch.",
            least=1,
            most=100_000_000,
        ),
    ] = 512
    lr: Annotated[
        float, Setting("Initial learning rate of AdamW; a cosine takes it to zero.", above=0)
    ] = 1e-3
    weight_decay: Annotated[float, Setting("Decoupled weight decay of the head.", least=0)] = 0.05
    seed: Annotated[int, _SEED] = 0
    device: Annotated[Device, _DEVICE] = "auto"
    precision: Annotated[Precision, _PRECISION] = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig(Part):
    """A linear probe: how its heads are trained, and what is tried."""

    by: Annotated[
        Literal["adamw", "lbfgs"],
        Setting(
            "Training: batches with AdamW and a cosine, all values of the grid side by side; or"
            " L-BFGS on all rows at once, to the minimum."
        ),
    ] = "adamw"
    lr: Annotated[
        tuple[float, ...] | None,
        Setting(
            "adamw: learning rates to try.", above=0, otherwise="1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2"
        ),
    ] = None
    weight_decay: Annotated[
        tuple[float, ...] | None,
        Setting("adamw: decoupled weight decays to try.", least=0, otherwise="0, 0.1, 1, 10"),
    ] = None
    epochs: Annotated[
        int | None, Setting("adamw: passes over the training rows.", least=1, otherwise="30")
    ] = None
    batch_size: Annotated[
        int | None,
        Setting(
            "adamw: rows per batch; more than there are means all. Rows that do not fill a batch"
            " are left out of the epoch.",
            least=1,
            most=100_000_000,
            otherwise="256",
        ),
    ] = None
    c: Annotated[
        tuple[float, ...] | None,
        Setting(
            "lbfgs: inverse strengths of the L2 penalty to try, as in scikit-learn.",
            above=0,
            otherwise="1e-6, 1e-5, …, 1e4",
        ),
    ] = None
    max_iterations: Annotated[
        int | None, Setting("lbfgs: most iterations per value of c.", least=1, otherwise="1000")
    ] = None
    held_out: Annotated[
        float,
        Setting(
            "Fraction of the training rows of each class that the values are chosen by; the chosen"
            " ones then train on all rows.",
            above=0,
            most=0.9,
        ),
    ] = 0.2
    standardise: Annotated[
        bool,
        Setting("Give each feature mean 0 and deviation 1 over the training rows; else as stored."),
    ] = False
    seed: Annotated[
        int, Setting("Seed of the held-out rows and of the batches.", least=0, most=MAX_SEED)
    ] = 0
    device: Annotated[Device, _DEVICE] = "auto"

    def __post_init__(self) -> None:
        """Check every field, and that none belongs to the other training.

        Raises:
            ValueError: If a field holds a value that it does not take, or that is not read.
        """
        Part.__post_init__(self)
        for by, defaults in PROBE_DEFAULTS.items():
            for name in defaults:
                if by != self.by and getattr(self, name) is not None:
                    raise ValueError(f"{name} goes with {by} alone, and by is {self.by}")
                values = getattr(self, name)
                if isinstance(values, tuple) and len(set(values)) < len(values):
                    raise ValueError(f"{name} names a value twice: {values}")

    def resolved(self) -> ProbeConfig:
        """Return the settings with the defaults of the training settled."""
        defaults = PROBE_DEFAULTS[self.by]
        return replace(
            self, **{name: each for name, each in defaults.items() if getattr(self, name) is None}
        )

    @property
    def grid(self) -> tuple[dict[str, float], ...]:
        """The combinations that are tried, by name: the simplest first, which wins of equals."""
        settled = self.resolved()
        if settled.by == "lbfgs":
            return tuple({"c": c} for c in sorted(settled.c or ()))
        return tuple(
            {"lr": lr, "weight_decay": decay}
            for lr in sorted(settled.lr or ())
            for decay in sorted(settled.weight_decay or (), reverse=True)
        )


PROBE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {
        "lr": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        "weight_decay": (0.0, 0.1, 1.0, 10.0),
        "epochs": 30,
        "batch_size": 256,
    },
    "lbfgs": {"c": tuple(10.0**power for power in range(-6, 5)), "max_iterations": 1000},
}
"""What a probe takes where nothing is said, by its training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(Part):
    """What a model in use keeps of images."""

    hold_out: Annotated[
        float,
        Setting(
            "Share of the images of each class of five or more that is kept aside to measure the"
            " model on; a folder val takes its place.",
            least=0,
            most=0.9,
        ),
    ] = 0.2
    keep: Annotated[
        int, Setting("Training rows per class that the model keeps for later.", least=0)
    ] = 0
    variances: Annotated[
        bool, Setting("Remember the variances of each class too, not its mean alone.")
    ] = False
    seed: Annotated[int, Setting("Seed of everything random.", least=0, most=MAX_SEED)] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AddConfig(RememberConfig):
    """How classes are added to a model in use."""

    init: Annotated[
        Init,
        # Before any training, fitted rows know 5 to 12 points more of classes of 20 images or more.
        Setting("Initialisation of the rows of added classes."),
    ] = "fitted"
    iterations: Annotated[
        int, Setting("Updates of the whole head; 0 takes the rows as computed.", least=0)
    ] = 0
    lr: Annotated[float, Setting("Learning rate of AdamW.", above=0)] = 1e-3
    loss: Annotated[Loss, _LOSS] = "ce"
    old_rows: Annotated[
        Literal["auto", "kept", "pseudo", "head", "none"],
        Setting(
            "What stands for images of old classes: real rows (kept by the model, or of --old),"
            " rows drawn from the statistics that it remembers (pseudo), rows drawn from what its"
            " head says of them (head), or nothing; auto: the first of these that there is."
        ),
    ] = "auto"


PARTS = {"stream": Stream, "start": Start, "training": Training, "closed": Closed, "top": Top}


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One run: which classes arrive, how their rows start, how they are trained."""

    stream: Stream = field(default_factory=Stream)
    start: Start = field(default_factory=Start)
    training: Training = field(default_factory=Training)
    closed: Closed = field(default_factory=Closed)
    top: Top | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, /, *, top: bool = False) -> Study:
        """Return the study with these settings, by name, and all others at their default.

        >>> Study.of({"init": "zero", "seed": 3}).start.init
        'zero'

        Args:
            settings: Values by name, as `settings` returns them.
            top: Whether blocks of the backbone learn as well.

        Raises:
            ValueError: If a name is unknown or a value is not one that its setting takes.
        """
        study = cls(top=Top() if top else None)
        values = dict(settings or {})
        unknown = [name for name in values if name not in settings_of(top=top)]
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r}")
        return study.changed(values)

    def changed(self, values: Mapping[str, Any]) -> Study:
        """Return the study with other values of some settings, by name.

        Raises:
            ValueError: If a value is not one that its setting takes.
        """
        every = settings_of(top=self.top is not None)
        by_path: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, value in values.items():
            setting = every[name]
            taken = setting.taken(value)
            setting.check(taken)  # here too: it knows the whole name
            *owner, attribute = setting.path
            by_path.setdefault(tuple(owner), {})[attribute] = taken
        study = self
        for path, changes in by_path.items():
            study = _replaced(study, path, changes)
        return study

    def value(self, name: str) -> Any:
        """Return the value of a setting."""
        found: Any = self
        for attribute in settings_of(top=self.top is not None)[name].path:
            found = getattr(found, attribute)
        return found

    @property
    def is_solved(self) -> bool:
        """Whether heads are solved instead of trained."""
        return self.stream.method in SOLVED_METHODS or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether heads are closed forms of statistics that rows are added to as they arrive."""
        return self.stream.method in CLOSED_METHODS

    @property
    def rehearses(self) -> bool:
        """Whether batches hold rows of a buffer."""
        return self.stream.method in ("rehearsal", "derpp")

    @property
    def keeps_buffer(self) -> bool:
        """Whether old rows are kept in a buffer: for rehearsal, or for initialisation alone."""
        method = self.stream.method
        rows = self.start.init_rows or default_init_rows(method)
        return self.rehearses or (method in ("naive", "ewc") and rows == "buffer")

    @property
    def shared(self) -> Study:
        """The study with the settings in which heads of one bank may differ at their default."""
        return self.changed({name: settings_of()[name].default for name in PER_HEAD})

    def resolved(self) -> Study:
        """Return the study with its defaults settled and what its method does not read dropped.

        A setting that means nothing to the method has its default: equal runs look equal.

        Raises:
            ValueError: If settings exclude each other.
        """
        check(self)
        every = settings_of(top=self.top is not None)
        study = self.changed({name: every[name].default for name in self.idle("method")})
        settled = {k: value for k, value in defaults(study).items() if study.value(k) is None}
        if study.is_solved:
            settled["iterations"] = 0
        if study.start.init == "random":
            settled["scale"] = "none"
        if study.start.init == "fitted":
            settled["scale"] = "calibrated"
        if study.top is not None and study.stream.method == "ewc":
            settled["full_rank"] = True
        return study.changed(settled)

    def reduced(self) -> Study:
        """Return the resolved study with every setting without an effect at its default.

        Of two runs with the same reduced study one is enough.
        """
        every = settings_of(top=self.top is not None)
        return self.changed(
            {name: every[name].default for name in self.resolved().idle()}
        ).resolved()

    def idle(self, *by: Literal["method", "start"]) -> dict[str, str]:
        """Return the settings that change nothing in the run, each with the reason why.

        Args:
            by: Only settings that the method makes idle, or the start of new rows; default: both.
        """
        every = settings_of(top=self.top is not None)
        return {
            name: rule.why.format(method=self.stream.method)
            for rule in reversed(RULES)
            if rule.by in (by or ("method", "start")) and rule.holds(self)
            for name in rule.names
            if name in every
        }

    def values(self) -> dict[str, Any]:
        """Return all settings by name, those first in which heads of one bank may differ.

        Names of runs have what varies in this order.
        """
        names = settings_of(top=self.top is not None)
        return {name: self.value(name) for name in dict.fromkeys((*PER_HEAD, *names))}

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as the record of a resolved run holds them.

        Settings are left out that mean nothing to a head that is solved, to blocks of full rank,
        or to any method but the one in their name.
        """
        absent = self.idle("method").keys() & {*PER_HEAD, *LOW_RANK, *EWC, *DERPP, *CLOSED}
        if self.stream.method == "ewc":
            absent -= {*EWC}  # gamma is told beside the mode that does not read it
        left_out = absent | {"probe"}
        return {name: value for name, value in self.values().items() if name not in left_out}

    @property
    def identity(self) -> str:
        """Text that is the same for the same run, wherever it is computed."""
        return _identity(self)


@cache
def _identity(study: Study) -> str:
    """Return the text; settings of closed forms are in it where they are read.

    So it is for other methods what it was before there were closed forms.
    """
    unread = {*CLOSED} & study.idle("method").keys()
    values = study.reduced().values()
    return identity_text({name: value for name, value in values.items() if name not in unread})


def identity_of(recorded: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded settings; what is missing has its default."""
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items()}
    try:
        return Study.of(as_of_today(settings), top="top_blocks" in settings).identity
    except ValueError:  # recorded by another version: equal to no run of this one
        return identity_text(settings)


def as_of_today(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings, those of earlier versions with what they meant there.

    Before there was `calibration`, rows were calibrated on their own logits, and `auto` chose
    lambda by held-out error.
    """
    found = dict(recorded)
    if "init" in found and "calibration" not in found:
        found["calibration"] = "in-sample"
        if found.get("lam") == "auto":
            found["lam"] = "held-out"
    return found


def identity_text(values: Mapping[str, Any]) -> str:
    """Return settings as a text, without those that do not distinguish runs."""
    kept = {name: value for name, value in values.items() if name not in (*PLACES, "probe")}
    return json.dumps(kept, sort_keys=True, default=str)


@cache
def settings_of(*, top: bool = False) -> Mapping[str, Field]:
    """Return the settings of a study by name, those of top blocks included where asked for.

    Their paths start with the part: `("stream", "seed")`.
    """
    parts = {name: part for name, part in PARTS.items() if name != ("closed" if top else "top")}
    return {
        name: replace(
            each,
            path=(part, *each.path),
            setting=each.setting.of_top if top else each.setting,
        )
        for part, owner in parts.items()
        for name, each in fields_of(owner).items()
        if not (top and each.setting.of_heads)
    }


PER_HEAD = (
    *("init", "scale", "calibration", "lam", "fit_ridge", "weighting", "class_mean", "bias"),
    *("loss", "lr", "weight_decay"),
)
"""Settings in which the heads of one bank may differ; they share all others."""
RIVALS = {"buffer": "buffer_per_class", "buffer_per_class": "buffer"}
"""Settings that exclude each other: the one that wins leaves the other unset."""
BUFFER = ("buffer", "buffer_per_class", "buffer_split")
LOW_RANK = ("rank", "alpha", "a_init")
EWC = tuple(f"ewc_{name}" for name in fields_of(EwcConfig))
DERPP = tuple(f"derpp_{name}" for name in fields_of(DerppConfig))
CLOSED = tuple(fields_of(Closed))
_OF_TRAINED_HEADS = (
    *("init", "scale", "calibration", "fit_ridge", "class_mean", "bias", "init_rows", "head_width"),
    *("iterations", "batch_size", "eval_every", "lr", "weight_decay", "precision", "correct"),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings that mean nothing to some runs."""

    names: tuple[str, ...]
    holds: Callable[[Study], bool]
    """Whether they mean nothing to a run."""
    why: str
    """The reason; `{method}` stands for the name of the method."""
    by: Literal["method", "start"] = "method"
    """What makes them idle. A user who gives those that the method makes idle is refused."""


def _method(*methods: str) -> Callable[[Study], bool]:
    return lambda study: study.stream.method in methods


def _not_of(method: str, config: type) -> Rule:
    return Rule(
        tuple(f"{method}_{name}" for name in fields_of(config)),
        lambda study: study.stream.method != method,
        f"--method {{method}}: it is a setting of {method}",
    )


RULES = (
    _not_of("slda", SldaConfig),
    _not_of("fecam", FecamConfig),
    _not_of("klda", KldaConfig),
    _not_of("ranpac", RanpacConfig),
    Rule(("lam",), _method("ranpac"), "--method ranpac: its lambda is --ranpac-lambda"),
    Rule(
        ("lam",),
        _method("ncm", "lda", *CLOSED_METHODS),
        "--method {method}: its head has no lambda",
    ),
    Rule(("weighting",), _method("ncm"), "--method {method}: its head is of class means alone"),
    Rule(
        ("weighting",),
        _method(*CLOSED_METHODS),
        "--method {method}: every row counts the same in its sums",
    ),
    Rule(
        _OF_TRAINED_HEADS,
        _method(*SOLVED_METHODS, *CLOSED_METHODS),
        "--method {method}: its head is solved, not trained",
    ),
    Rule(
        BUFFER,
        lambda study: not study.keeps_buffer and study.stream.method in ("naive", "ewc"),
        "--method {method}: it trains on new rows alone; with --init-rows buffer, one is kept for"
        " initialisation",
    ),
    Rule(
        BUFFER,
        lambda study: study.stream.method in ("joint", *SOLVED_METHODS),
        "--method {method}: it reads all rows of all classes seen",
    ),
    Rule(BUFFER, _method(*CLOSED_METHODS), "--method {method}: it keeps statistics, not rows"),
    Rule(
        ("mix",),
        lambda study: not study.rehearses,
        "--method {method}: its batches hold no rows of a buffer",
    ),
    Rule(
        ("correct",),
        lambda study: study.stream.method == "naive" and study.training.correct == "bic",
        "--method {method}: it trains on new rows alone, and keeps no old ones aside to correct by",
    ),
    Rule(
        ("correct",),
        lambda study: study.stream.iterations == 0,
        "--iterations 0: there is no training to correct",
    ),
    Rule(LOW_RANK, _method("ewc"), "--method {method}: it trains the blocks themselves"),
    Rule(
        LOW_RANK,
        lambda study: study.top is not None and study.top.full_rank,
        "--full-rank: the blocks themselves are trained",
    ),
    Rule(
        EWC,
        lambda study: study.stream.method != "ewc",
        "--method {method}: it does not hold parameters by springs",
    ),
    Rule(
        ("ewc_gamma",),
        lambda study: study.top is not None and study.top.ewc.mode == "task",
        "--ewc-mode task: each task keeps its own anchor",
    ),
    Rule(
        DERPP,
        lambda study: study.stream.method != "derpp",
        "--method {method}: it keeps no former logits",
    ),
    Rule(
        ("scale", "bias", "init_rows"),
        lambda study: study.start.init == "random",
        "--init random: it looks at nothing",
        by="start",
    ),
    Rule(
        ("scale",),
        lambda study: study.start.init == "fitted",
        "--init fitted: its rows start from calibrated ones",
        by="start",
    ),
    Rule(
        ("calibration",),
        lambda study: study.start.init in ("random", "zero"),
        "--init: random rows and zeros were computed from no image",
        by="start",
    ),
    Rule(
        ("calibration",),
        lambda study: not study.start.is_calibrated,
        "--scale: only calibrated rows look at logits",
        by="start",
    ),
    Rule(
        ("fit_ridge",),
        lambda study: study.start.init != "fitted",
        "--init: only fitted rows are held by a ridge",
        by="start",
    ),
    Rule(
        ("lam",),
        lambda study: not study.is_solved and not study.start.reads_lambda,
        "--init: only least-square rows have a lambda",
        by="start",
    ),
    Rule(
        ("weighting",),
        lambda study: not study.is_solved and not study.start.reads_weighting,
        "--init: only least squares and LDA average over classes",
        by="start",
    ),
    Rule(
        ("class_mean",),
        lambda study: study.start.init != "class-mean",
        "--init: only class means are means of features",
        by="start",
    ),
    Rule(
        ("lr", "weight_decay", "precision"),
        lambda study: study.stream.iterations == 0,
        "--iterations 0: nothing is trained",
        by="start",
    ),
)
"""Which settings mean nothing to which run; the more specific reason comes first."""


def refusals(asked: Iterable[str], studies: Sequence[Study]) -> list[str]:
    """Return a sentence for each setting that was asked for and that no study reads.

    Args:
        asked: Names of the settings that a user gave.
        studies: The studies that were asked for, not resolved.
    """
    idle = [study.idle("method") for study in studies]
    every = settings_of(top=studies[0].top is not None)
    return [
        f"{every[name].option} does not go with {idle[0][name]}"
        for name in asked
        if all(name in each for each in idle)
    ]


def default_init_rows(method: str) -> str:
    """Return the default of `init_rows`: what initialisation sees beside new rows."""
    return "new" if method == "naive" else "buffer"


def defaults(study: Study) -> dict[str, Any]:
    """Return the defaults that depend on other settings, by name."""
    ewc, top = study.stream.method == "ewc", study.top is not None
    found: dict[str, Any] = {
        "lr": (8e-4 if ewc else 1.5e-3) if top else 1e-3,
        "batch_size": 128 if ewc else 256,
        "init_rows": default_init_rows(study.stream.method),
    }
    if study.keeps_buffer and study.stream.buffer_per_class is None:
        found["buffer"] = DEFAULT_BUFFER
    return found


def check(study: Study) -> None:
    """Check that no settings exclude each other.

    Raises:
        ValueError: If some do.
    """
    method, stream = study.stream.method, study.stream
    methods = HEAD_METHODS if study.top is None else TOP_METHODS
    if method not in methods:
        raise ValueError(f"method must be one of {methods}, got {method!r}")
    if stream.stop_after is not None and stream.stop_after > stream.tasks:
        raise ValueError(
            f"stop_after must be at most the number of tasks, {stream.tasks}, got"
            f" {stream.stop_after}"
        )
    if stream.buffer_per_class is not None:
        if stream.buffer is not None:
            raise ValueError("buffer and buffer_per_class exclude each other: give one")
        if stream.buffer_split != "balanced":
            raise ValueError(
                f"buffer_split {stream.buffer_split!r} needs a total buffer, not buffer_per_class"
            )
    if study.top is not None and study.training.correct != "none":
        raise ValueError(f"correct must be none for top blocks, got {study.training.correct!r}")
    none_kept = 0 in (stream.buffer, stream.buffer_per_class)
    if study.training.correct == "bic" and study.rehearses and none_kept:
        raise ValueError("correct 'bic' needs old rows to correct by: keep a buffer")
    if study.top is not None and study.training.precision == "tf32":
        raise ValueError("precision must be float32 or bf16 for top blocks, got 'tf32'")


def names_of(studies: Sequence[Study]) -> list[str]:
    """Name resolved studies by initialisation and scale, and by what else tells them apart.

    The method comes first where it is not rehearsal; a solved head has no initialisation.

    Raises:
        ValueError: If there is no study, or two are the same.
    """
    if not studies:
        raise ValueError("a bank needs at least one head")
    every = [study.settings() for study in studies]
    if twice := [each for each in every if every.count(each) > 1]:
        raise ValueError(f"two heads of a bank are the same: {twice[0]}")
    varied = [
        name
        for name in every[0]
        if name not in ("method", "init", "scale")
        and len({str(each.get(name)) for each in every}) > 1
    ]
    return [run_name(each, varied) for each in every]


def run_name(settings: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """Name a run by its method, where it is not rehearsal, its start, and settings `varied`."""
    words = [] if settings["method"] == "rehearsal" else [settings["method"]]
    if "init" in settings:
        words.append(settings["init"])
        words += [] if settings["init"] == "random" else [settings["scale"]]
    named = [f"{name.replace('_', '-')}={settings[name]}" for name in varied if name in settings]
    return "-".join([*words, *named])


def _replaced(owner: Any, path: Sequence[str], changes: Mapping[str, Any]) -> Any:
    """Return a copy of a frozen value with other attributes, in the part that `path` leads to."""
    if not path:
        return replace(owner, **changes)
    inner = _replaced(getattr(owner, path[0]), path[1:], changes)
    return replace(owner, **{path[0]: inner})
