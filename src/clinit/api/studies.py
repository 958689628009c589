"""What may be asked of a run from Python: a study, a mapping of settings, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clinit.headtrain.study import PAPER_INITS, Study, refusals

Studies = Study | Mapping[str, Any] | Sequence[Study | Mapping[str, Any]]
"""One run or several; a mapping holds settings by name."""


def studies_of(asked: Studies | None, *, top: bool) -> list[Study]:
    """Return the studies that are asked for, resolved.

    Where nothing is: random, class-mean and least-square rows.

    Raises:
        ValueError: If a setting is wrong or means nothing, there is no study, or one has a part
            `top` where it should not, or lacks it.
    """
    if asked is None:
        asked = [{"init": init} for init in PAPER_INITS]
    several = [asked] if isinstance(asked, Study | Mapping) else asked
    found = []
    for each in several:
        if isinstance(each, Mapping):
            study = Study.of(each, top=top)
            if idle := refusals([*each], [study]):
                raise ValueError(idle[0])
            found.append(study)
        else:
            found.append(each)
    if not found:
        raise ValueError("there is no study: give at least one")
    for study in found:
        if (study.top is not None) != top:
            raise ValueError(
                "the study has no settings of top blocks. Give it a part `top`."
                if top
                else "the study has settings of top blocks. Call `clinit.train_top` for them."
            )
    return list(dict.fromkeys(study.resolved() for study in found))
