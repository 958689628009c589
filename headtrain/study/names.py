"""Names of runs: what tells them apart from the others of their bank or sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clinit.headtrain.study.study import Study


def names_of(studies: Sequence[Study]) -> list[str]:
    """Name resolved studies by initialisation and scale, and by what else tells them apart.

    The method comes first where it is not rehearsal; a solved head has no initialisation.

    Raises:
        ValueError: If there is no study, or two are the same.
    """
    if not studies:
        raise ValueError("a bank needs at least one head")
    every = [study.settings() for study in studies]
    if twice := [each for each in every if every.count(each) > 1]:
        raise ValueError(f"two heads of a bank are the same: {twice[0]}")
    varied = [
        name
        for name in every[0]
        if name not in ("method", "init", "scale")
        and len({str(each.get(name)) for each in every}) > 1
    ]
    return [run_name(each, varied) for each in every]


def run_name(settings: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """Name a run by its method, where it is not rehearsal, its start, and settings `varied`."""
    words = [] if settings["method"] == "rehearsal" else [settings["method"]]
    if "init" in settings:
        words.append(settings["init"])
        words += [] if settings["init"] == "random" else [settings["scale"]]
    named = [f"{name.replace('_', '-')}={settings[name]}" for name in varied if name in settings]
    return "-".join([*words, *named])
