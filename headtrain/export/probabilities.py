"""Whether the softmax of a model's logits may be read as probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clinit.extract.head import Head
from clinit.headtrain.export.model_file import ModelFacts

NOT_PROBABILISTIC = frozenset({"ncm", "ridge", "simplecil"})
"""Methods whose logits are scores: their order counts, not their softmax."""


def caution(facts: ModelFacts) -> str | None:
    """Return why probabilities are not to be taken at their word, None where they are.

    The last change that trained the head counts; a temperature makes probabilities of any scores.
    """
    if facts.temperature is not None:
        return None
    trained = (each for each in reversed(facts.history) if each.settings.get("iterations"))
    last = next((each for each in trained if each.action in ("add", "replace")), None)
    return _of_settings((facts.record.get("config") or {}) if last is None else last.settings)


def caution_of_head(head: Head) -> str | None:
    """Return the same of a head alone, as far as its file says how it came about."""
    origin = head.origin or {}
    if origin.get("temperature") is not None:
        return None
    return _of_settings({"method": origin.get("fitted"), **origin})


def trained_by(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that `caution_of_head` asks for."""
    return {name: settings[name] for name in ("method", "loss") if settings.get(name) is not None}


def _of_settings(settings: Mapping[str, Any]) -> str | None:
    method = settings.get("method")
    if isinstance(method, str) and method in NOT_PROBABILISTIC:
        origin = f"solved ({method})"
    elif settings.get("loss") == "mse":
        origin = "trained with squared error"
    else:
        return None
    return (
        f"the head was {origin}, not with cross entropy: the order of the classes counts,"
        " their probabilities do not"
    )
