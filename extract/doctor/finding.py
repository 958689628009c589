"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is."""

    ok = "ok"
    warning = "warning"
    """It works, but slower or with less than it could."""
    fault = "fault"
    """Something will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: State
    told: str
    """What was found."""
    remedy: str = ""
    """What mends it: a command where there is one. Empty where nothing is to be done."""


def ok(subject: str, told: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(subject, State.ok, told)


def warning(subject: str, told: str, remedy: str) -> Finding:
    """Return something that costs speed or comfort."""
    return Finding(subject, State.warning, told, remedy)


def fault(subject: str, told: str, remedy: str) -> Finding:
    """Return something that will not work."""
    return Finding(subject, State.fault, told, remedy)
