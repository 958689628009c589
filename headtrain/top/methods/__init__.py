"""Methods that train the top of a backbone together with its classifier, by name.

rehearsal   new rows and a buffer of old ones      mean loss
naive       new rows alone                         mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows alone                         mean loss + springs to former parameters
derpp       new rows and a buffer of old ones      weighted losses + distance to former logits
"""

from __future__ import annotations

from clinit.headtrain.top.methods.derpp import Derpp, DerppConfig
from clinit.headtrain.top.methods.ewc import Ewc, EwcConfig
from clinit.headtrain.top.methods.interface import TopMethod, TopModel
from clinit.headtrain.top.methods.rehearsal import TRAINED_METHODS, Rehearsal

TOP_METHODS: tuple[str, ...] = (*TRAINED_METHODS, "ewc", "derpp")


def top_method(
    name: str,
    *,
    loss_name: str = "ce",
    seed: int = 0,
    ewc: EwcConfig | None = None,
    derpp: DerppConfig | None = None,
) -> TopMethod:
    """Return a fresh method of that name; only its own settings are read."""
    if name in TRAINED_METHODS:
        return Rehearsal(loss_name=loss_name, data_method=name)
    if name == "ewc":
        return Ewc(ewc or EwcConfig(), loss_name=loss_name, seed=seed)
    if name == "derpp":
        return Derpp(derpp or DerppConfig(), loss_name=loss_name)
    raise ValueError(f"method is {name!r}, expected one of {TOP_METHODS}")


__all__ = [
    "TOP_METHODS",
    "Derpp",
    "DerppConfig",
    "Ewc",
    "EwcConfig",
    "Rehearsal",
    "TopMethod",
    "TopModel",
    "top_method",
]
