"""study.toml of a record: the settings of the run, as the command line reads them."""

from __future__ import annotations

import json
from typing import Any

from clinit.headtrain.study import Study, settings_of

STUDY = "study.toml"


def study_toml(study: Study) -> str:
    """Return a resolved study as a file for `--config`; what means nothing to it is left out.

    >>> print(study_toml(Study.of({"method": "ridge", "seed": 3}).resolved()))
    # The settings of this run. `clinit rerun` with the folder of the run repeats it;
    # `clinit train-head --config` with this file trains the same on other caches.
    <BLANKLINE>
    [train-head]
    method = "ridge"
    tasks = 5
    seed = 3
    lambda = "auto"
    weighting = "class"
    loss = "ce"
    device = "auto"
    <BLANKLINE>
    """
    top = study.top is not None
    command = "train-top" if top else "train-head"
    idle = study.idle("method")
    lines = [
        f"{field.key} = {_text(study.value(name))}"
        for name, field in settings_of(top=top).items()
        if name not in idle and study.value(name) is not None and not field.setting.file
    ]
    return "\n".join(
        [
            "# The settings of this run. `clinit rerun` with the folder of the run repeats it;",
            f"# `clinit {command} --config` with this file trains the same on other caches.",
            *_order(study),
            "",
            f"[{command}]",
            *lines,
            "",
        ]
    )


def _order(study: Study) -> list[str]:
    """Return the class order as a comment: the option takes a file of its own."""
    order = study.stream.class_order
    return [f"# class order: {', '.join(map(_text, order))}"] if order else []


def _text(value: Any) -> str:
    """Return a value as TOML; a JSON string is one, with its control characters escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    return str(value)
