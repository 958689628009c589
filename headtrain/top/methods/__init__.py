"""Methods that train the top of a backbone together with its classifier, by name.

rehearsal   new rows and a buffer of old ones      mean loss
naive       new rows alone                         mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows alone                         mean loss + springs to former parameters
derpp       new rows and a buffer of old ones      weighted losses + distance to former logits
"""

from __future__ import annotations

from clinit.headtrain.study import Study, Top
from clinit.headtrain.top.methods.derpp import Derpp
from clinit.headtrain.top.methods.ewc import Ewc
from clinit.headtrain.top.methods.interface import TopMethod, TopModel
from clinit.headtrain.top.methods.rehearsal import TRAINED_METHODS, Rehearsal


def top_method(study: Study) -> TopMethod:
    """Return a fresh method of a resolved study; only its own settings are read."""
    name, loss = study.stream.method, study.training.loss
    top = study.top or Top()
    if name in TRAINED_METHODS:
        return Rehearsal(loss_name=loss, data_method=name)
    if name == "ewc":
        return Ewc(top.ewc, loss_name=loss, seed=study.stream.seed)
    assert name == "derpp"
    return Derpp(top.derpp, loss_name=loss)


__all__ = [
    "Derpp",
    "Ewc",
    "Rehearsal",
    "TopMethod",
    "TopModel",
    "top_method",
]
