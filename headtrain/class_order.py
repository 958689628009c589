"""An order of arrival that the user has written down: one class name a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from clinit.errors import ExperimentError
from clinit.extract.text_file import TextFileError, read_text
from clinit.headtrain.examples import examples


def read_class_order(path: Path) -> tuple[str, ...]:
    """Read class names, one a line; empty lines do not count.

    Raises:
        ExperimentError: If there is no such file, or it holds no name.
    """
    try:
        lines = read_text(path).splitlines()
    except TextFileError as error:
        raise ExperimentError(
            f"cannot read the class order {path}: {error}",
            remedy="Give a text file with the name of one new class a line.",
        ) from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise ExperimentError(
            f"the class order {path} names no class",
            remedy="Write the name of one new class a line.",
        )
    return names


def named_order(
    names: Sequence[str], class_names: Sequence[str], arriving: Int[np.ndarray, " classes"]
) -> Int[np.ndarray, " classes"]:
    """Return the classes `arriving` in the order of `names`.

    A name of a class without training rows is allowed and has no effect.

    Args:
        names: All new classes, each once.
        class_names: The classes of the new data.
        arriving: Those that have training rows.

    Raises:
        ExperimentError: If a name is unknown or comes twice, or a class is not named.
    """
    label_of = {name: label for label, name in enumerate(class_names)}
    expected = {class_names[label] for label in arriving}
    if unknown := [name for name in names if name not in label_of]:
        raise _refused(f"{_are(unknown)} not in the new data", unknown)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise _refused(f"{_are(twice)} named more than once", twice)
    if missing := sorted(expected - set(names)):
        raise _refused(f"{_are(missing)} not named", missing)
    return np.array([label_of[name] for name in names if name in expected], dtype=np.int64)


def _are(names: Sequence[str]) -> str:
    return f"{len(names):,} {'class is' if len(names) == 1 else 'classes are'}"


def _refused(what: str, names: Sequence[str]) -> ExperimentError:
    return ExperimentError(
        f"the class order does not fit: {what} ({examples(names)})",
        remedy="Name every new class once, one a line, as `clinit cache show` spells them.",
    )
