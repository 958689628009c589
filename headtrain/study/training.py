"""Loss, optimizer, arithmetic, and what is corrected afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from clinit.headtrain.setting import Part, Setting
from clinit.headtrain.study.words import DEVICE, LOSS, PRECISION, Correct, Device, Loss, Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Training(Part):
    """Loss, optimizer, arithmetic, and what is corrected afterwards."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[Loss, LOSS] = "ce"
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
    precision: Annotated[Precision, PRECISION] = "float32"
    device: Annotated[Device, DEVICE] = "auto"

    @property
    def rate(self) -> float:
        """The learning rate of a resolved study."""
        assert self.lr is not None
        return self.lr
