"""Which options of `clinit train-head` mean something to which method."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from clinit.cli.context import Context, given

KEPT = frozenset({"buffer", "buffer_per_class", "buffer_split"})
"""What a buffer for initialisation alone is described by."""
_BUFFER = KEPT | {"mix"}
_TRAINING = frozenset(
    {"init", "scale", "class_mean", "bias", "head_width", "iterations", "batch_size", "lr",
     "weight_decay", "eval_every", "precision", "init_rows"}
)  # fmt: skip
_LAMBDA = frozenset({"lam"})
MEANINGLESS: dict[str, frozenset[str]] = {
    "rehearsal": frozenset(),
    "naive": frozenset({"mix"}),
    "joint": _BUFFER,
    "ncm": _BUFFER | _TRAINING | _LAMBDA | {"weighting"},
    "ridge": _BUFFER | _TRAINING,
    "lda": _BUFFER | _TRAINING | _LAMBDA,
}
"""Parameters that a method does not read. Without rehearsal, those of the buffer are read where
initialisation looks at old rows."""
INIT_ROWS = {method: "new" if method == "naive" else "buffer" for method in MEANINGLESS}
BY_METHOD: dict[str, Mapping[str, object]] = {"init-rows": INIT_ROWS}
"""Options whose default depends on the method: a file gives them by method too."""
_WHY = {
    "naive": "it trains on new rows alone; with --init-rows buffer, one is kept for initialisation",
    "joint": "it trains on all rows of all classes seen",
    "ncm": "its head is solved, not trained, and has no lambda",
    "ridge": "its head is solved, not trained",
    "lda": "its head is solved, not trained, and has no lambda",
}


def reject_meaningless(context: Context, method: str, init_rows: str | None) -> None:
    """Refuse options that `method` would ignore; those of a file give way to the command line."""
    from_file = given(context, "method") != "commandline"
    meaningless = MEANINGLESS[method]
    if method == "naive" and init_rows != "buffer":
        meaningless |= KEPT
    for parameter in context.command.params:
        where = given(context, str(parameter.name))
        if parameter.name not in meaningless or where is None:
            continue
        if where == "commandline" or from_file:
            raise typer.BadParameter(
                f"{parameter.opts[0]} does not go with --method {method}: {_WHY[method]}"
            )
