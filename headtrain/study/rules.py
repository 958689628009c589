"""All settings by name, which of them mean nothing to which run, and which exclude each other.

Refusals, records, identities and reports ask the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from clinit.headtrain.setting import Field, fields_of
from clinit.headtrain.study.methods import (
    Closed,
    DerppConfig,
    EwcConfig,
    FecamConfig,
    KldaConfig,
    RanpacConfig,
    SldaConfig,
)
from clinit.headtrain.study.parts import (
    CLOSED_METHODS,
    HEAD_METHODS,
    SOLVED_METHODS,
    TOP_METHODS,
    Parts,
    default_init_rows,
)
from clinit.words import did_you_mean, listed

PARTS: Mapping[str, type] = {
    name: kind
    for name, hint in get_type_hints(Parts).items()
    for kind in (hint, *get_args(hint))  # Top | None
    if isinstance(kind, type) and is_dataclass(kind)
}
PER_HEAD = (
    *("init", "scale", "calibration", "lam", "fit_ridge", "weighting", "class_mean", "bias"),
    *("loss", "lr", "weight_decay"),
)
"""Settings in which the heads of one bank may differ; they share all others."""
PLACES = ("device",)
"""Settings that say where a run is computed; they are no part of its identity."""
RIVALS = {"buffer": "buffer_per_class", "buffer_per_class": "buffer"}
"""Settings that exclude each other: the one that wins leaves the other unset."""
BUFFER = ("buffer", "buffer_per_class", "buffer_split")
LOW_RANK = ("rank", "alpha", "a_init")
EWC = tuple(f"ewc_{name}" for name in fields_of(EwcConfig))
DERPP = tuple(f"derpp_{name}" for name in fields_of(DerppConfig))
CLOSED = tuple(fields_of(Closed))


@cache
def settings_of(*, top: bool = False) -> Mapping[str, Field]:
    """Return the settings of a study by name, those of top blocks included where asked for.

    Their paths start with the part: `("stream", "seed")`.
    """
    parts = {name: part for name, part in PARTS.items() if name != ("closed" if top else "top")}
    return {
        name: replace(
            each,
            path=(part, *each.path),
            setting=each.setting.of_top if top else each.setting,
        )
        for part, owner in parts.items()
        for name, each in fields_of(owner).items()
        if not (top and each.setting.of_heads)
    }


_OF_TRAINED_HEADS = (
    *("init", "scale", "calibration", "fit_ridge", "class_mean", "bias", "init_rows", "head_width"),
    *("iterations", "batch_size", "eval_every", "lr", "weight_decay", "precision", "correct"),
)


By = Literal["method", "start"]
"""What makes settings mean nothing: the method, or the start of new rows."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings that mean nothing to some runs."""

    names: tuple[str, ...]
    holds: Callable[[Parts], bool]
    """Whether they mean nothing to a run."""
    why: str
    """The reason; `{method}` stands for the name of the method."""
    by: By = "method"
    """What makes them idle. A user who gives those that the method makes idle is refused."""


def _method(*methods: str) -> Callable[[Parts], bool]:
    return lambda study: study.stream.method in methods


def _not_of(method: str, config: type) -> Rule:
    return Rule(
        tuple(f"{method}_{name}" for name in fields_of(config)),
        lambda study: study.stream.method != method,
        f"--method {{method}}: it is a setting of {method}",
    )


RULES = (
    _not_of("slda", SldaConfig),
    _not_of("fecam", FecamConfig),
    _not_of("klda", KldaConfig),
    _not_of("ranpac", RanpacConfig),
    Rule(("lam",), _method("ranpac"), "--method ranpac: its lambda is --ranpac-lambda"),
    Rule(
        ("lam",),
        _method("ncm", "lda", *CLOSED_METHODS),
        "--method {method}: its head has no lambda",
    ),
    Rule(("weighting",), _method("ncm"), "--method {method}: its head is of class means alone"),
    Rule(
        ("weighting",),
        _method(*CLOSED_METHODS),
        "--method {method}: every row counts the same in its sums",
    ),
    Rule(
        _OF_TRAINED_HEADS,
        _method(*SOLVED_METHODS, *CLOSED_METHODS),
        "--method {method}: its head is solved, not trained",
    ),
    Rule(
        BUFFER,
        lambda study: not study.keeps_buffer and study.stream.method in ("naive", "ewc"),
        "--method {method}: it trains on new rows alone; with --init-rows buffer, one is kept for"
        " initialisation",
    ),
    Rule(
        BUFFER,
        lambda study: study.stream.method in ("joint", *SOLVED_METHODS),
        "--method {method}: it reads all rows of all classes seen",
    ),
    Rule(BUFFER, _method(*CLOSED_METHODS), "--method {method}: it keeps statistics, not rows"),
    Rule(
        ("mix",),
        lambda study: not study.rehearses,
        "--method {method}: its batches hold no rows of a buffer",
    ),
    Rule(
        ("correct",),
        lambda study: study.stream.method == "naive" and study.training.correct == "bic",
        "--method {method}: it trains on new rows alone, and keeps no old ones aside to correct by",
    ),
    Rule(
        ("correct",),
        lambda study: study.stream.iterations == 0,
        "--iterations 0: there is no training to correct",
    ),
    Rule(LOW_RANK, _method("ewc"), "--method {method}: it trains the blocks themselves"),
    Rule(
        LOW_RANK,
        lambda study: study.top is not None and study.top.full_rank,
        "--full-rank: the blocks themselves are trained",
    ),
    Rule(
        EWC,
        lambda study: study.stream.method != "ewc",
        "--method {method}: it does not hold parameters by springs",
    ),
    Rule(
        ("ewc_gamma",),
        lambda study: study.top is not None and study.top.ewc.mode == "task",
        "--ewc-mode task: each task keeps its own anchor",
    ),
    Rule(
        DERPP,
        lambda study: study.stream.method != "derpp",
        "--method {method}: it keeps no former logits",
    ),
    Rule(
        ("scale", "bias", "init_rows"),
        lambda study: study.start.init == "random",
        "--init random: it looks at nothing",
        by="start",
    ),
    Rule(
        ("scale",),
        lambda study: study.start.init == "fitted",
        "--init fitted: its rows start from calibrated ones",
        by="start",
    ),
    Rule(
        ("calibration",),
        lambda study: study.start.init in ("random", "zero"),
        "--init: random rows and zeros were computed from no image",
        by="start",
    ),
    Rule(
        ("calibration",),
        lambda study: not study.start.is_calibrated,
        "--scale: only calibrated rows look at logits",
        by="start",
    ),
    Rule(
        ("fit_ridge",),
        lambda study: study.start.init != "fitted",
        "--init: only fitted rows are held by a ridge",
        by="start",
    ),
    Rule(
        ("lam",),
        lambda study: not study.is_solved and not study.start.reads_lambda,
        "--init: only least-square rows have a lambda",
        by="start",
    ),
    Rule(
        ("weighting",),
        lambda study: not study.is_solved and not study.start.reads_weighting,
        "--init: only least squares and LDA average over classes",
        by="start",
    ),
    Rule(
        ("class_mean",),
        lambda study: study.start.init != "class-mean",
        "--init: only class means are means of features",
        by="start",
    ),
    Rule(
        ("lr", "weight_decay", "precision"),
        lambda study: study.stream.iterations == 0,
        "--iterations 0: nothing is trained",
        by="start",
    ),
)
"""Which settings mean nothing to which run; the more specific reason comes first."""


def idle(study: Parts, *by: By) -> dict[str, str]:
    """Return the settings that change nothing in the run, each with the reason why.

    Args:
        study: What the run is asked to do.
        by: Only settings that the method makes idle, or the start of new rows; default: both.
    """
    every = settings_of(top=study.top is not None)
    return {
        name: rule.why.format(method=study.stream.method)
        for rule in reversed(RULES)
        if rule.by in (by or get_args(By)) and rule.holds(study)
        for name in rule.names
        if name in every
    }


def refusals(asked: Iterable[str], studies: Sequence[Parts]) -> list[str]:
    """Return a sentence for each setting that was asked for and that no study reads.

    Args:
        asked: Names of the settings that a user gave.
        studies: The studies that were asked for, not resolved.
    """
    unread = [idle(study, "method") for study in studies]
    every = settings_of(top=studies[0].top is not None)
    return [
        f"{every[name].option} does not go with {unread[0][name]}"
        for name in asked
        if all(name in each for each in unread)
    ]


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
