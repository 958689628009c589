"""Methods, by name: which data a task may look at, and whether its head is trained or solved.

rehearsal   new rows and a buffer of old ones      trained
naive       new rows alone                         trained
joint       all rows of all classes seen so far    trained
ncm, ridge, lda   those of joint                   solved: the whole head, no iterations
"""

from __future__ import annotations

from clinit.headtrain.methods.interface import ClosedMethod, Method
from clinit.headtrain.methods.joint import Joint
from clinit.headtrain.methods.lda import Lda
from clinit.headtrain.methods.naive import Naive
from clinit.headtrain.methods.ncm import NearestClassMean
from clinit.headtrain.methods.rehearsal import Rehearsal
from clinit.headtrain.methods.ridge import Ridge

TRAINED_METHODS: tuple[str, ...] = ("rehearsal", "naive", "joint")
CLOSED_METHODS: dict[str, ClosedMethod] = {
    "ncm": NearestClassMean(),
    "ridge": Ridge(),
    "lda": Lda(),
}
METHODS: tuple[str, ...] = (*TRAINED_METHODS, *CLOSED_METHODS)


def method_named(name: str, mix: str = "text") -> Method:
    """Return the method of that name; `mix` is that of rehearsal."""
    if name == "rehearsal":
        return Rehearsal(mix)
    if name == "naive":
        return Naive()
    if name == "joint":
        return Joint()
    if name in CLOSED_METHODS:
        return CLOSED_METHODS[name]
    raise ValueError(f"method is {name!r}, expected one of {METHODS}")


__all__ = ["CLOSED_METHODS", "METHODS", "TRAINED_METHODS", "ClosedMethod", "Method", "method_named"]
