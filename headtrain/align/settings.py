"""The settings of `clinit align`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from clinit.headtrain.setting import Part, Setting
from clinit.headtrain.study.parts import DEVICE, LOSS, MAX_SEED, PRECISION, Device, Loss, Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignConfig(Part):
    """The fine-tuning of a base head with another loss; the defaults are the paper's."""

    panel: ClassVar[str] = "Training"
    loss: Annotated[Loss, LOSS] = "mse"
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
    seed: Annotated[int, Setting("Seed of the batches.", least=0, most=MAX_SEED)] = 0
    device: Annotated[Device, DEVICE] = "auto"
    precision: Annotated[Precision, PRECISION] = "float32"
