"""Whether timm can download weights from the Hub, before timm and PyTorch are imported."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import constants, get_session

from clinit.errors import BackboneError
from clinit.files.paths import is_folder

_PAUSES_S = (0.0, 1.0, 1.0)
"""Seconds before each request; the Hub is out of reach if all requests fail."""


def check_download(name: str | None, weights: Path | None) -> None:
    """Check that weights are given, or are in the cache of downloads, or can be downloaded.

    Raises:
        BackboneError: If timm has such weights, but the Hub is out of reach.
    """
    source = None if name is None or weights is not None else repository_of(name)
    cached = f"models--{(source or '').replace('/', '--')}"
    if source is None or is_folder(Path(constants.HF_HUB_CACHE, cached)):
        return
    if (why := _unreachable(constants.ENDPOINT)) is not None:
        raise not_there(str(name), why)


def repository_of(name: str) -> str | None:
    """Return the repository on the Hub that timm's source gives for a network; None if none."""
    spec = find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    tagged = re.escape(name) + ("" if "." in name else r"(?:\.\w+)?")  # else the first tag
    entry = re.compile(rf"""['"]({tagged})['"]: \w*cfg\w*\((.*?)\n    (?=['"}}])""", re.DOTALL)
    for file in sorted((Path(spec.origin).parent / "models").glob("*.py")):
        if (found := entry.search(file.read_text(encoding="utf-8"))) is not None:
            place = re.search(r"""hf_hub_id=['"]([^'"]+)['"]""", found[2])
            return place and (place[1] + found[1] if place[1].endswith("/") else place[1])
    return None


def not_there(name: str, why: str) -> BackboneError:
    """Return the error for weights that are not in the cache if the Hub is out of reach."""
    return BackboneError(
        f"no weights of {name}: {why}, and its cache {constants.HF_HUB_CACHE} does not contain"
        " them",
        remedy=f"On a machine with a network, `hf download {repository_of(name) or 'REPOSITORY'}"
        " model.safetensors --local-dir .` gets the file; give it with"
        " `--weights model.safetensors`.",
    )


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Let downloads search only the cache if the Hub is out of reach; yield the reason, or None."""
    set_by_user, why = constants.HF_HUB_OFFLINE, _unreachable(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = why is not None
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = set_by_user


def _unreachable(endpoint: str) -> str | None:
    return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _tried(endpoint)


@cache
def _tried(endpoint: str) -> str | None:
    """Return why a request fails; None if it succeeds.

    It uses the library's proxies, certificates and time limit (HF_HUB_ETAG_TIMEOUT, ten seconds).
    """
    why = None
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        try:
            get_session().head(endpoint, timeout=float(constants.HF_HUB_ETAG_TIMEOUT))
        except Exception as error:  # the HTTP client depends on the version of the library
            words = " ".join(str(error).split()) or type(error).__name__
            why = f"{endpoint} cannot be reached ({words})"
        else:
            return None
    return why
