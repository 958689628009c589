"""How the rows of new classes start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from clinit.headtrain.setting import Part, Setting
from clinit.headtrain.study.words import Init, Scale, Weighting


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(Part):
    """How the rows of new classes start."""

    panel: ClassVar[str] = "Start"
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
