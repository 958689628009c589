"""Which settings mean nothing to which run: refusals, records, identities and reports ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from clinit.headtrain.setting import fields_of
from clinit.headtrain.study.closed import FecamConfig, KldaConfig, RanpacConfig, SldaConfig
from clinit.headtrain.study.parts import Parts
from clinit.headtrain.study.settings import BUFFER, DERPP, EWC, LOW_RANK, settings_of
from clinit.headtrain.study.words import CLOSED_METHODS, SOLVED_METHODS

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
