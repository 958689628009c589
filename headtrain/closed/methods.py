"""The closed form of a study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.headtrain.closed.fecam import Fecam
from clinit.headtrain.closed.interface import ClosedForm
from clinit.headtrain.closed.klda import Klda
from clinit.headtrain.closed.ranpac import Ranpac
from clinit.headtrain.closed.simplecil import SimpleCil
from clinit.headtrain.closed.slda import Slda
from clinit.headtrain.study import Study

LINEAR = frozenset({"slda", "simplecil"})
"""Methods whose scores are those of a linear head on the features themselves."""


def closed_form(
    study: Study,
    zeros: Float[Any, " dim"],
    place: Callable[[np.ndarray], Any] = np.asarray,
) -> ClosedForm:
    """Return the method of a study, which has seen nothing yet.

    Args:
        study: With one of the methods `CLOSED_METHODS`.
        zeros: As wide as a feature, in float64; it says the library and the device.
        place: Puts arrays where `zeros` are.
    """
    closed, seed = study.closed, study.stream.seed
    match study.stream.method:
        case "slda":
            return Slda(closed.slda, zeros)
        case "simplecil":
            return SimpleCil(zeros)
        case "fecam":
            return Fecam(closed.fecam, zeros)
        case "klda":
            return Klda(closed.klda, zeros, seed=seed, place=place)
        case "ranpac":
            return Ranpac(closed.ranpac, zeros, seed=seed, place=place)
    raise ValueError(f"{study.stream.method!r} is no closed form")
