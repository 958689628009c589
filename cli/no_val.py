"""What is said of a data set without a split to evaluate on."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from clinit.errors import ClinitError


def no_val(dataset: str, root: Path) -> str:
    """Say that no class can be evaluated, and ask whether the root is one folder too deep."""
    from clinit.extract.dataset.containers import split_folders
    from clinit.extract.dataset.known import FOLDER
    from clinit.extract.dataset.scan import available_splits

    parent = Path(os.path.normpath(root / ".."))
    told = f"{root} has no val split: none of its classes can be evaluated"
    if dataset == FOLDER and split_folders([root.absolute().name], "val"):
        with suppress(ClinitError):
            if "val" in available_splits(dataset, parent):
                return f"{told}. {parent} has one: was --root {shlex.quote(str(parent))} meant?"
    return told
