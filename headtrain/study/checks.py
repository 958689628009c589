"""Defaults that depend on other settings, and settings that exclude each other."""

from __future__ import annotations

from typing import Any

from clinit.headtrain.study.parts import Parts, default_init_rows
from clinit.headtrain.study.words import HEAD_METHODS, TOP_METHODS
from clinit.words import did_you_mean, listed

DEFAULT_BUFFER = 24_000


def defaults(study: Parts) -> dict[str, Any]:
    """Return the defaults that depend on other settings, by name."""
    ewc, top = study.stream.method == "ewc", study.top is not None
    found: dict[str, Any] = {
        "lr": (8e-4 if ewc else 1.5e-3) if top else 1e-3,
        "batch_size": 128 if ewc else 256,
        "init_rows": default_init_rows(study.stream.method),
    }
    if study.keeps_buffer and study.stream.buffer_per_class is None:
        found["buffer"] = DEFAULT_BUFFER
    return found


def check(study: Parts) -> None:
    """Check that no settings exclude each other.

    Raises:
        ValueError: If some do.
    """
    method, stream = study.stream.method, study.stream
    methods = HEAD_METHODS if study.top is None else TOP_METHODS
    if method not in methods:
        raise ValueError(
            f"method must be one of {listed(methods, 'or')}, got {method!r}"
            + did_you_mean(method, methods, lead=". ")
        )
    if stream.stop_after is not None and stream.stop_after > stream.tasks:
        raise ValueError(
            f"stop_after must be at most the number of tasks, {stream.tasks}, got"
            f" {stream.stop_after}"
        )
    if stream.buffer_per_class is not None:
        if stream.buffer is not None:
            raise ValueError("buffer and buffer_per_class exclude each other: give one")
        if stream.buffer_split != "balanced":
            raise ValueError(
                f"buffer_split {stream.buffer_split!r} needs a total buffer, not buffer_per_class"
            )
    if study.top is not None and study.training.correct != "none":
        raise ValueError(f"correct must be none for top blocks, got {study.training.correct!r}")
    none_kept = 0 in (stream.buffer, stream.buffer_per_class)
    if study.training.correct == "bic" and study.rehearses and none_kept:
        raise ValueError("correct 'bic' needs old rows to correct by: keep a buffer")
    if study.top is not None and study.training.precision == "tf32":
        raise ValueError("precision must be float32 or bf16 for top blocks, got 'tf32'")
