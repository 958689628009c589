"""What settings take in words, and the settings that are the same for several commands."""

from __future__ import annotations

from typing import Literal, get_args

from clinit.headtrain.setting import Setting

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
MAX_SEED = 2**32 - 1

SEED = Setting(
    "Seed of everything random: class order, buffer, batches, random rows, low-rank factors.",
    least=0,
    most=MAX_SEED,
)
LOSS = Setting("Training loss: cross entropy, squared error or squentropy.")
PRECISION = Setting(
    "Arithmetic of an update: float32, tf32 (CUDA) or bf16. Weights and evaluations are always"
    " float32.",
    top_help="Arithmetic of an update: float32 or bf16. Weights are always float32.",
)
DEVICE = Setting("Device to compute on; auto takes CUDA where there is one.")
