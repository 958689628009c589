"""Versions of Python and of the packages that clinit needs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from clinit.extract.doctor.finding import Finding, fault, ok

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(>=\s*(?P<least>[\d.]+))?(?P<extra>.*extra ==)?")
_LEAST_PYTHON = (3, 11)


def check_versions() -> Iterator[Finding]:
    """Compare what is installed with what clinit asks for."""
    found, least = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, _LEAST_PYTHON))
    told = f"Python {found} on {platform.platform(terse=True)}"
    if tuple(sys.version_info[:2]) < _LEAST_PYTHON:
        yield fault("Python", f"{told}, expected {least} or newer", f"Install Python {least}.")
    else:
        yield ok("Python", told)
    yield from compare(requires("clinit") or ())


def compare(requirements: Sequence[str]) -> Iterator[Finding]:
    """Yield the packages that are missing or too old, then those that are as they should be.

    Args:
        requirements: As a package's metadata have them: `numpy>=1.26`; those of an extra are
            listed where they are installed.
    """
    present = [f"clinit {version('clinit')}"]
    for text in requirements:
        match = _REQUIREMENT.match(text)
        assert match is not None
        name, least, optional = match["name"], match["least"], match["extra"] is not None
        try:
            found = version(name)
        except PackageNotFoundError:
            if not optional:
                yield fault("packages", f"{name} is not installed", f"pip install '{name}'")
            continue
        if least and _numbers(found) < _numbers(least):
            told = f"{name} {found} is installed, expected {least} or newer"
            yield fault("packages", told, f"pip install '{name}>={least}'")
        else:
            present.append(f"{name} {found}")
    yield ok("packages", ", ".join(dict.fromkeys(present)))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])
