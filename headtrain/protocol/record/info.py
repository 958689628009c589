"""Types of the contents of run.json, for its readers.

Other fields are kept unchanged: a record contains more than the code reads.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Required, TypedDict

from clinit.errors import RecordError
from clinit.files.documents import Count, Digest, DocumentKind, Number, Seconds
from clinit.headtrain.protocol.study.rules import EARLIER, settings_of as all_settings
from clinit.headtrain.protocol.study.study import Study, study_of

DOCUMENT = DocumentKind(
    title="the record of a run",
    format="clinit-run/2",
    older=("clinit-run/1",),
    error=RecordError,
    remedy="Remove the folder of this record and run its command again.",
)


class SideInfo(TypedDict, total=False):
    """One of the two data sets."""

    path: Required[str]
    other_paths: list[str]
    """Further caches, if the side consists of several."""
    fingerprint: Required[dict[str, str]]
    manifest_digest: str | None
    val_manifest_digest: str | None
    features_digest: str | None
    """Digest of the file that training rows were imported from; absent for extracted rows."""
    val_features_digest: str | None
    groups_digest: str | None
    """Digest of the groups that `clinit cache group` recorded; absent without such groups."""


class BaseHeadInfo(TypedDict, total=False):
    """The head that the run started from."""

    path: str | None
    digest: str
    alignment: dict[str, Any] | None
    """How `clinit head align` trained the head."""


class StartInfo(TypedDict, total=False):
    """How the rows of new classes started."""

    factor: Number | None
    shift: Number | None
    loss_before: Number | None
    loss_after: Number | None
    steps: Count | None
    lam: Number | None
    shrinkage: Number
    """g of discriminants, with `quadratic` (rho)."""
    quadratic: Number
    library: str | None
    init: str
    """Only in the first task of a stream without base classes: kind of the first rows, which is the
    same for every `init` of the settings."""
    repeats: dict[str, Count]
    """Number of `images` that repeat each other, of their `groups` and of their `classes`; a group
    counts as one image. Absent if no image repeats another."""
    seconds: Seconds | None


class TaskInfo(TypedDict, total=False):
    """One task."""

    task: Required[Count]
    classes: Count | None
    train_rows: Count | None
    val_rows: Count | None
    buffer_rows: Count | None
    buffer_classes: Count | None
    init_old_rows: Count | None
    statistics_numbers: Count | None
    """Numbers from which old rows are drawn: C d + d^2; absent if old rows are stored."""
    anchor: dict[str, Any]
    """Strength of the anchor, its stored numbers, and the losses by which it was chosen."""
    initialisation: StartInfo | None
    lambda_curve: dict[str, Any] | None
    """The error or loss of each lambda."""
    diagnosis: dict[str, Any] | None
    """Neural collapse and the distance from least squares at the end of the task."""
    forward_transfer: dict[str, Any]
    """A linear probe on the classes of the next task."""


class RunInfo(TypedDict, total=False):
    """The fields of run.json that the code reads."""

    id: Required[str]
    config: Required[dict[str, Any]]
    """The settings of the run, including `init` or `method`."""
    base: Required[SideInfo | None]
    """None if the stream starts from nothing."""
    new: Required[SideInfo]
    head: BaseHeadInfo | None
    tasks: Required[list[TaskInfo]]
    notes: list[str]
    """Gaps of the data, and remarkable events."""
    seconds: Seconds | None
    """Seconds of this run: its initialisations, and an equal share of the shared time of a bank."""
    timings_s: dict[str, Any]
    """Seconds of each phase, of the whole bank."""
    bank_size: Count
    bank: list[dict[str, Any]]
    """The settings of all heads of the bank, in order, because last bits may depend on all of them.
    Absent for a single head, and for a bank of more than 100 heads."""
    loss_sample_rows: Count | None
    optimizer: dict[str, Any]
    versions: dict[str, Any]
    git_commit: str | None
    cpu: dict[str, Any]
    """Kernels and threads; absent in records of earlier versions."""
    device: str
    started: str
    command: list[str]
    """The command line of the user."""
    top: dict[str, Any]
    """Blocks and counts of parameters, if blocks of the backbone are trained."""
    feature_map: dict[str, Any]
    """The random features that the head reads, if it does not read the features themselves."""
    activations: list[dict[str, Any]]
    """The stored activations, and their cost."""
    files: dict[str, Digest]
    """SHA-256 of the other files of the record; absent in records of earlier versions."""


_ONLY: dict[str, Any] = {
    "a_init": "gaussian",
    "buffer_split": "balanced",
    "buffer_per_class": None,
    "compile": False,
    "ewc_mode": "task",
    "ewc_gamma": 1.0,
    "derpp_teacher": "snapshot",
    "derpp_distance": "mean",
}


def settings_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, including settings that its version did not record.

    Settings that had a choice then are left out, if they have the value that they have today.
    """
    recorded = info["config"].items()
    settings = {name: each for name, each in recorded if _ONLY.get(name, settings_of) != each}
    every = all_settings(top="top_blocks" in settings)
    later = {
        **{name: each for name, each in EARLIER.items() if name in every and every[name].recorded},
        "precision": "float32",
        "weighting": "class",
        "init_rows": "new" if settings.get("method") in ("naive", "ewc") else "buffer",
    }
    return {**later, **settings}


def study_of_run(info: Mapping[str, Any], origin: str) -> Study:
    """Return the resolved study of a record.

    Raises:
        RecordError: If this version does not accept one of its settings.
    """
    settings = settings_of(info)
    if "top_blocks" in settings:  # settings omit probes, which change no number of the run
        settings["probe"] = any("forward_transfer" in task for task in info["tasks"])
    try:
        return study_of(settings).resolved()
    except ValueError as error:
        raise RecordError(
            f"{origin} was recorded by another version: {error}",
            remedy="Read it with the version in its run.json.",
        ) from error


def damaged(origin: object, why: str) -> RecordError:
    """Return the error of a record that is not as it was written."""
    return RecordError(f"{origin} is damaged: {why}", remedy=DOCUMENT.remedy)


CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
LIBRARIES = ("clinit", *CUPY, "numpy", "polars", "scipy", "timm", "torch")


def provenance() -> dict[str, Any]:
    """Return what bits depend on besides settings and data: code, libraries and kernels."""
    return {"versions": dict(_versions()), "git_commit": _git_commit(), "cpu": _cpu()}


def _cpu() -> dict[str, Any]:
    """Return the kernels and threads, which determine the order in which sums are rounded.

    NumPy and SciPy each bring a BLAS library, usually with the same kernels.
    """
    import torch  # records are read without it
    from threadpoolctl import threadpool_info

    blas = [each for each in threadpool_info() if each["user_api"] == "blas"]
    kernels = {f"{each['internal_api']} {each.get('architecture', '')}".strip() for each in blas}
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "torch threads": torch.get_num_threads(),
        "blas": ", ".join(sorted(kernels)),
        "blas threads": max((each["num_threads"] for each in blas), default=1),
    }


@cache  # a sweep writes thousands of records, and the installed versions are read from disk
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def _git_commit() -> str | None:
    """Return the commit of the checkout that clinit runs from; None outside a checkout.

    A package in an environment inside another repository is not tracked by this repository, whose
    commit is therefore not returned.
    """
    source = Path(__file__).resolve()
    git = ["git", "-C", str(source.parent)]
    try:
        for words in (["ls-files", "--error-unmatch", source.name], ["rev-parse", "HEAD"]):
            done = subprocess.run(
                [*git, *words], capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


_HELD_OUT = re.compile(r"held-out:(\d+(?:\.\d+)?(?:e-\d+)?):\d+")


def held_out_manifest(share: float, seed: int) -> str:
    """Return the text that replaces the digest of the manifest of the test images."""
    return f"held-out:{share:g}:{seed}"


def is_held_out(manifest: str) -> bool:
    """Return whether a record's entry for its test images is from `held_out_manifest`."""
    return _HELD_OUT.fullmatch(manifest) is not None


def held_out_share(info: Mapping[str, Any]) -> float | None:
    """Return the held-out share of the training images, if a run was tested on it; else None."""
    for side in ("base", "new"):
        told = str((info.get(side) or {}).get("val_manifest_digest"))
        if found := _HELD_OUT.fullmatch(told):
            return float(found[1])
    return None
