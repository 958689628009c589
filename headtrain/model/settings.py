"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from clinit.headtrain.setting import Part, Setting
from clinit.headtrain.study.parts import LOSS, MAX_SEED, Init, Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(Part):
    """What a model in use keeps of images."""

    panel: ClassVar[str] = "What is kept"
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

    panel: ClassVar[str] = "How classes are added"
    init: Annotated[
        Init,
        # Before any training, fitted rows know 5 to 12 points more of classes of 20 images or more.
        Setting("Initialisation of the rows of added classes."),
    ] = "fitted"
    iterations: Annotated[
        int, Setting("Updates of the whole head; 0 takes the rows as computed.", least=0)
    ] = 0
    lr: Annotated[float, Setting("Learning rate of AdamW.", above=0)] = 1e-3
    loss: Annotated[Loss, LOSS] = "ce"
    old_rows: Annotated[
        Literal["auto", "kept", "pseudo", "head", "none"],
        Setting(
            "What stands for images of old classes: real rows (kept by the model, or of --old),"
            " rows drawn from the statistics that it remembers (pseudo), rows drawn from what its"
            " head says of them (head), or nothing; auto: the first of these that there is."
        ),
    ] = "auto"
