"""How the rows of new classes start: the settings of a start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from clinit.setting import Imported, SettingGroup, setting

Init = Literal[
    "random", "class-mean", "least-square", "discriminant", "fitted", "zero", "imprint", "lda"
]
Scale = Literal["none", "norm", "row-norm", "calibrated"]
Weighting = Literal["class", "sample"]
NewShare = float | Literal["auto", "classes"]

INITS: tuple[str, ...] = get_args(Init)
SCALES: tuple[str, ...] = get_args(Scale)
PAPER_INITS: tuple[Init, ...] = ("random", "class-mean", "least-square")

NEW_SHARE = (
    "Weight of all images of classes after the base, of a total of 1, when the loss chooses scale,"
    " lambda and fitted rows; classes: each class weighs the same; auto: 0.2, or the weight of"
    " classes if that is larger."
)
MAX_OLD_LOSS = (
    "Discriminants: points of accuracy that old classes may lose, judged by images or features of"
    " them that the rows were computed without."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(SettingGroup):
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
        " leave-one-out logits (calibrated). Random rows are not scaled.",
    )
    calibration: Literal["leave-one-out", "in-sample"] = setting(
        "leave-one-out",
        "Logits for `calibrated`: of rows computed without the image (leave-one-out), or of the"
        " rows themselves (in-sample).",
    )
    new_share: NewShare = setting("auto", NEW_SHARE, above=0, most=0.99, earlier="classes")
    lam: float | Literal["auto"] = setting(
        "auto",
        "Ridge parameter of least squares, as in Eq. 1; auto: by the leave-one-out loss of"
        " calibrated rows or, for a solved head, the leave-one-out error. The paper: 0.05"
        " (ConvNeXt), 1e-4 (ResNet).",
        least=0,
        alias="lambda",
    )
    # After 25 iterations, the best of 0.3 to 3000 or within 0.2 points of the best, with 5 to 200
    # rows per class. Before training, a weaker ridge does better with many rows.
    fit_ridge: float = setting(
        60.0,
        "Fitted rows: strength of the ridge that holds them near their start, counted in training"
        " rows.",
        least=0,
    )
    max_old_loss: float = setting(1.0, MAX_OLD_LOSS, least=0, most=100, earlier=1.0)
    # Only `class` makes Eq. 3 of the paper the minimiser of its Eq. 1 for unequal classes.
    weighting: Weighting = setting(
        "class",
        "Averages in least squares and LDA: over class averages (class), or over all rows"
        " (sample).",
    )
    class_mean: Literal["raw", "unit"] = setting(
        "raw", "Class mean of the features (the paper's), or of the features scaled to unit length."
    )
    bias: Literal["write", "keep"] = setting(
        "write", "Bias of a new row: written by the initialisation, or kept random."
    )
    init_rows: Literal["buffer", "new"] | None = setting(
        None,
        "Rows for the initialisation: new rows and the old rows of the buffer, as in the paper"
        " (naive keeps a buffer only for this), or new rows only.",
        otherwise="buffer; naive: new",
        shared=True,
        decides=True,
        top_help="Rows for the initialisation: new rows and the old rows of the buffer, as in"
        " the paper (naive and ewc keep a buffer only for this), or new rows only.",
    )
    head_width: Literal["grow", "full"] = setting(
        "grow",
        "Add rows when their classes arrive (grow), or all rows at the start (full), so that rows"
        " of later classes are trained as negatives.",
        shared=True,
    )

    @property
    def own(self) -> Imported | None:
        """The user's function that computes the rows; None if `init` is not a function."""
        return self.init if isinstance(self.init, Imported) else None

    @property
    def reads_lambda(self) -> bool:
        """Whether the rows depend on `lam`."""
        return self.init in ("least-square", "fitted")

    @property
    def holds_bias(self) -> bool:
        """Whether least squares hold the bias at 0, so that the unit of features is immaterial."""
        return self.init == "fitted"

    @property
    def is_calibrated(self) -> bool:
        """Whether the loss chooses factor and shift; fitted rows start from calibrated rows."""
        return self.scale == "calibrated" or self.init == "fitted"

    @property
    def ridge_parameter(self) -> float:
        """Lambda, if it is a number."""
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
        """Whether the rows depend on `weighting`."""
        return self.own is not None or self.init in ("least-square", "fitted", "lda")

    @property
    def reads_statistics(self) -> bool:
        """Whether the rows are a function of class statistics."""
        return (self.init == "class-mean" and self.class_mean == "raw") or self.reads_weighting
