"""Which code and which libraries made a result."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
LIBRARIES = ("clinit", *CUPY, "numpy", "polars", "scipy", "timm", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    return dict(_versions())


@cache  # a sweep writes thousands of records, and what is installed is read from disk
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Return the commit of the checkout that clinit runs from; None outside a checkout.

    A package installed into an environment inside someone else's repository is not tracked by
    it, so that repository's commit is not taken for ours.
    """
    source = Path(__file__).resolve()
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return None
    return _git(source.parent, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
