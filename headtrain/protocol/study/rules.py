"""All settings by name, and rules: which settings are idle in a run, which exclude each other.

Refusals, records, identities and reports use the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from clinit.headtrain.heads.closed.settings import Closed
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.protocol.study import parts
from clinit.setting import Setting, fields_of
from clinit.words import did_you_mean, listed

PARTS: Mapping[str, type] = {
    name: kind
    for name, hint in get_type_hints(parts.Parts).items()
    for kind in (hint, *get_args(hint))  # Top | None
    if isinstance(kind, type) and is_dataclass(kind)
}
LOW_RANK = ("rank", "alpha")
EWC = tuple(f"ewc_{name}" for name in fields_of(parts.EwcConfig))
DERPP = tuple(f"derpp_{name}" for name in fields_of(parts.DerppConfig))
CLOSED = tuple(fields_of(Closed))
_OF_TRAINED_HEADS = (
    *({*fields_of(Start), *fields_of(parts.Training)} - {"lam", "weighting", "loss", "device"}),
    *("iterations", "batch_size", "eval_every", "mistakes"),
)


@cache
def settings_of(*, top: bool = False) -> Mapping[str, Setting]:
    """Return the settings of a study by name, if `top` with the settings of top blocks.

    Their paths start with the part: `("stream", "seed")`.
    """
    chosen = {name: part for name, part in PARTS.items() if name != ("closed" if top else "top")}
    return {
        name: replace(each.of_top if top else each, path=(part, *each.path))
        for part, owner in chosen.items()
        for name, each in fields_of(owner).items()
        if not (top and each.of_heads)
    }


_EVERY = {**settings_of(), **settings_of(top=True)}
PER_HEAD = tuple(name for name, each in fields_of(Start, parts.Training).items() if not each.shared)
"""Settings in which the heads of one bank may differ; all other settings are the same."""
EARLIER = {name: each.earlier for name, each in _EVERY.items() if each.earlier is not None}
"""Settings that earlier versions lacked, with their values in records and identities that omit
them."""
PLACES = tuple(name for name, each in _EVERY.items() if not each.identifies)
"""Settings that do not change the identity of a run."""
DECIDING = tuple(name for name, each in _EVERY.items() if each.decides)
"""Settings that decide which other settings are read."""
By = Literal["method", "start"]
"""Why settings are idle: by the method, or by the start of new rows."""
Rules = Iterator[tuple[tuple[str, ...], str]]


def _idle_by_method(study: parts.Parts) -> Rules:
    """Yield settings that the method makes idle, and why; the more specific reason first."""
    method, top = study.stream.method, study.top
    named = f"--method {method}"
    for closed in ("slda", "ranpac"):
        if method != closed:
            own = tuple(name for name in CLOSED if name.startswith(closed))
            yield own, f"{named}: it is a setting of {closed}"
    if method == "ranpac":
        yield ("lam",), f"{named}: its lambda is --ranpac-lambda"
    if method in ("ncm", "lda", *parts.CLOSED_METHODS):
        yield ("lam",), f"{named}: its head has no lambda"
    if method == "ncm":
        yield ("weighting",), f"{named}: its head consists of class means"
    if study.is_closed:
        yield ("weighting",), f"{named}: every row counts the same in its sums"
        yield ("buffer",), f"{named}: it keeps statistics, not rows"
    if study.is_solved:
        yield _OF_TRAINED_HEADS, f"{named}: its head is solved, not trained"
    if not study.rehearses:
        yield ("old_rows",), f"{named}: its batches contain no rows of a buffer"
    if study.draws_old_rows:
        yield ("buffer",), "--old-rows statistics: no row is stored"
    if method in ("naive", "ewc") and not study.keeps_buffer:
        new_only = "it trains on new rows only; --init-rows buffer keeps a buffer for"
        yield ("buffer",), f"{named}: {new_only} initialisation"
    if method in ("joint", *parts.SOLVED_METHODS):
        yield ("buffer",), f"{named}: it reads all rows of all classes seen"
    if not study.rehearses and (method, study.stream.mix) != ("joint", "uniform"):
        yield ("mix",), f"{named}: its batches contain no rows of a buffer"
    if study.anchor == "none":
        yield ("anchor_strength",), "--anchor none: there is no penalty"
    if study.training.step != "loss":
        yield ("precision",), "--step: a function computes as it is written"
    if method == "ewc":
        yield LOW_RANK, f"{named}: it trains the blocks themselves"
    if top is not None and top.full_rank:
        yield LOW_RANK, "--full-rank: the blocks themselves are trained"
    if method != "ewc":
        yield EWC, f"{named}: it is a setting of ewc"
    if method != "derpp":
        yield DERPP, f"{named}: it keeps no former logits"


def _idle_by_start(study: parts.Parts) -> Rules:
    start, init = study.start, study.start.init
    if init == "random":
        yield ("scale", "bias", "init_rows"), "--init random: random rows depend on no data"
    if init == "fitted":
        yield ("scale",), "--init fitted: its rows start from calibrated rows"
    if init == "discriminant":
        own = "--init discriminant: one objective chooses its scale, balance and covariance"
        yield ("scale", "calibration", "new_share", "bias", "weighting"), own
    else:
        yield ("max_old_loss",), "--init: only discriminants use this setting"
    if init in ("random", "zero"):
        yield ("calibration",), "--init: random and zero rows are not computed from images"
    if not start.is_calibrated:
        yield ("calibration",), "--scale: only calibrated rows depend on logits"
    if init == "random" or not start.looks_around:
        yield ("new_share",), "--init, --scale, --lambda: the loss fits neither scale nor lambda"
    if init != "fitted":
        yield ("fit_ridge",), "--init: only fitted rows use this setting"
    if not study.is_solved and not start.reads_lambda:
        yield ("lam",), "--init: only least-square rows have a lambda"
    if not study.is_solved and not start.reads_weighting:
        yield ("weighting",), "--init: only least squares and LDA average over classes"
    if init != "class-mean":
        yield ("class_mean",), "--init: only class-mean rows use this setting"
    if study.stream.iterations == 0:
        trained = ("step", "lr", "schedule", "weight_decay", "precision", "mix", "anchor")
        yield (*trained, "anchor_strength"), "--iterations 0: nothing is trained"


def idle(study: parts.Parts, *by: By) -> dict[str, str]:
    """Return the settings that change nothing in the run, each with the reason.

    Args:
        study: The settings of the run.
        by: Only settings that are idle for this cause; default: for any cause.
    """
    every = settings_of(top=study.top is not None)
    rules = {"method": _idle_by_method, "start": _idle_by_start}
    found: dict[str, str] = {}
    for each in by or rules:
        for names, why in rules[each](study):
            found |= {name: why for name in names if name in every and name not in found}
    return found


def refusals(asked: Iterable[str], studies: Sequence[parts.Parts]) -> list[str]:
    """Return a sentence for each requested setting that no study reads.

    Args:
        asked: Names of the settings that a user gave.
        studies: The requested studies, not resolved.
    """
    unread = [idle(study, "method") for study in studies]
    every = settings_of(top=studies[0].top is not None)
    return [
        f"{every[name].option} does not go with {unread[0][name]}"
        for name in asked
        if all(name in each for each in unread)
    ]


def defaults(study: parts.Parts) -> dict[str, Any]:
    """Return the defaults that depend on other settings, by name."""
    method, top = study.stream.method, study.top is not None
    ewc, joint = method == "ewc", method == "joint"
    found: dict[str, Any] = {
        "mix": "uniform" if study.keeps and (study.rehearses or joint) else "text",
        "anchor": study.anchor,
        "schedule": "linear" if study.keeps else "constant",
        "lr": (8e-4 if ewc else 1.5e-3) if top else 1e-3,
        "batch_size": 128 if ewc else 256,
        "init_rows": parts.default_init_rows(method),
    }
    if study.keeps_buffer:
        found["buffer"] = 24_000
    return found


def check(study: parts.Parts) -> None:
    """Check that no settings exclude each other.

    Raises:
        ValueError: If two settings do.
    """
    method, stream, training = study.stream.method, study.stream, study.training
    methods = parts.HEAD_METHODS if study.top is None else parts.TOP_METHODS
    if method not in methods:
        near = did_you_mean(method, methods, lead=". ")
        if method in (*parts.HEAD_METHODS, *parts.TOP_METHODS):
            near = f". `clinit train-{'top' if study.top is None else 'head'}` has this method"
        raise ValueError(f"method must be one of {listed(methods, 'or')}, got {method!r}{near}")
    if stream.stop_after is not None and stream.stop_after > stream.tasks:
        most = f"the number of tasks, {stream.tasks}"
        raise ValueError(f"stop_after must be at most {most}, got {stream.stop_after}")
    if study.top is not None and training.precision == "tf32":
        raise ValueError("precision must be float32 or bf16 for top blocks, got 'tf32'")
