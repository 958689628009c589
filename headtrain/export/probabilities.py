"""Whether the softmax of a model's logits may be read as probabilities."""

from __future__ import annotations

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
    config = (facts.record.get("config") or {}) if last is None else last.settings
    if config.get("method") in NOT_PROBABILISTIC:
        origin = f"solved ({config['method']})"
    elif config.get("loss") == "mse":
        origin = "trained with squared error"
    else:
        return None
    return (
        f"the head was {origin}, not with cross entropy: the order of the classes counts,"
        " their probabilities do not"
    )
