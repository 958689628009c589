"""The settings of the paper next to the recorded settings of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from clinit.analysis.paper.tables import CHOSEN, CONTENT, METHODS, PaperTable
from clinit.analysis.report.run import RunSummary
from clinit.headtrain.protocol.study.parts import AUTO_EVERY
from clinit.headtrain.protocol.study.rules import settings_of

_PAPER: Mapping[str, Any] = CONTENT["paper"]
"""Data and settings as the paper gives them."""
_OF_LINES = {"method", "init", "loss", "seed", "device"}
"""Settings that are in the lines of a table, or affect no number."""
_OF_TRAINING = {"batch_size", "eval_every", "mix"}
_FACTOR = "alpha / rank"


@dataclass(frozen=True, slots=True)
class PaperSetting:
    """A setting of the paper and its value in the runs, as text."""

    name: str
    paper: str
    """Value in the paper; empty if the paper does not give it."""
    here: str
    differs: bool
    """Whether the runs deviate from the paper in this setting; False if the paper does not give
    it."""

    @property
    def why(self) -> str:
        """Our choice and the other reading, if the paper leaves the setting open."""
        return "" if self.paper else CHOSEN.get(self.name.partition(" (")[0], "")

    @classmethod
    def of(cls, name: str, paper: Iterable[Any], here: Iterable[Any]) -> PaperSetting:
        """Compare the paper's values (empty if the paper does not give the setting) with ours."""
        theirs, ours = ({*map(_words, each)} for each in (paper, here))
        by_size = partial(sorted, key=lambda word: (len(word), word))
        differs = bool(theirs) and not ours <= theirs
        return cls(name, " and ".join(by_size(theirs)), " and ".join(by_size(ours)), differs)


def settings_of_runs(
    table: PaperTable, runs: Sequence[RunSummary], paper: pl.DataFrame
) -> list[PaperSetting]:
    """Return every setting that the runs of a table read, next to the paper's settings.

    Args:
        table: A table of the paper.
        runs: All runs of the table.
        paper: The numbers of the table in the paper.
    """
    if not runs:
        return []
    heads = [run.record.info.get("head") or {} for run in runs if run.config["loss"] == "mse"]
    return [
        *_of_features(table, runs[0].record.info["new"]["fingerprint"]),
        *_of_data(runs[0]),
        *(each for each in _of_studies(table, runs, paper) if each.here != "-"),
        *(_aligned(heads[0].get("alignment")) if heads else ()),
        *_of_protocol(table, runs),
    ]


def settings_of_heads(
    table: PaperTable, collapse: Mapping[str, Mapping[str, Any]], features: Mapping[str, str]
) -> list[PaperSetting]:
    """Return settings of pretrained heads that are measured without runs, next to the paper's."""
    measured = next(iter(collapse.values()), {})
    return [
        *_of_features(table, features),
        PaperSetting.of("base classes (ImageNet-1K)", [1000], [measured.get("classes", 0)]),
        PaperSetting.of("features", [384], [measured.get("dim", 0)]),
        PaperSetting.of("training images", [_PAPER["train_images"]], [measured.get("rows", 0)]),
        PaperSetting.of("lambda", [0.05], [measured.get("lambda")]),
        *_aligned(collapse.get("mse", {}).get("alignment")),
    ]


def _of_features(table: PaperTable, features: Mapping[str, str]) -> Iterator[PaperSetting]:
    name = "resnet18.tv_in1k" if table.name == "resnet18" else "convnextv2_femto.fcmae_ft_in1k"
    yield PaperSetting.of("backbone", [name], [features.get("backbone")])
    paper, here = "resize 256x256, centre crop 224x224", features.get("transform") or "imported"
    differs = not ("256x256" in here and "224x224" in here)
    yield PaperSetting("transform", paper, here if differs else paper, differs)
    yield PaperSetting.of("precision of features", [], [features.get("dtype", "float16")])


def _of_data(run: RunSummary) -> Iterator[PaperSetting]:
    classes = run.record.classes
    for side, (name, count, images) in _PAPER["data"].items():
        own = classes.filter((classes["task"] == 0) == (side == "base"))
        yield PaperSetting.of(f"{side} classes ({name})", [count], [len(own)])
        yield PaperSetting.of(f"test images ({name})", [images], [int(own["val_rows"].sum())])
        if untested := int((own["val_rows"] == 0).sum()):
            yield PaperSetting.of(f"{side} classes without test image", [0], [untested])


def _of_studies(
    table: PaperTable, runs: Sequence[RunSummary], paper: pl.DataFrame
) -> Iterator[PaperSetting]:
    methods = dict.fromkeys(run.config["method"] for run in runs)
    theirs = {method: _paper(table, method, paper) for method in methods}
    ours = {m: _read([run for run in runs if run.config["method"] == m]) for m in methods}
    options = {name: each.option.removeprefix("--") for name, each in settings_of(top=True).items()}
    for name in dict.fromkeys(name for values in ours.values() for name in values):
        found = {
            method: PaperSetting.of(
                options.get(name, name), theirs[method].get(name, ()), values[name]
            )
            for method, values in ours.items()
            if name in values
        }
        if len({*found.values()}) == 1:
            yield next(iter(found.values()))
            continue
        for method, each in found.items():
            title = f"{each.name} ({METHODS[method]})"
            yield PaperSetting(title, each.paper, each.here, each.differs)


def _paper(table: PaperTable, method: str, paper: pl.DataFrame) -> dict[str, list[Any]]:
    """Return the paper's values of settings, by name."""
    own = paper.filter(method=method)
    found: dict[str, Any] = {"stop_after": None, "shots": None}
    parts = ("all", table.name, "top" if table.is_top else "", method)
    for part in parts:
        found |= _PAPER["settings"].get(part, {})
    budgets = {"iterations": [*own["iterations"]], "buffer": [*own["buffer"].drop_nulls()]}
    return budgets | {name: [value] for name, value in found.items()}


def _read(runs: Sequence[RunSummary]) -> dict[str, list[Any]]:
    """Return the values of all settings that affect at least one run, by name."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        config = dict(run.config)
        idle = run.idle if config["iterations"] else run.idle | _OF_TRAINING
        if config["eval_every"] == "auto":  # the further points count only in the gain
            config["eval_every"] = AUTO_EVERY
        if "alpha" in config and "alpha" not in idle:
            config[_FACTOR] = config.pop("alpha") / config["rank"]
        for name in config.keys() - idle - _OF_LINES:
            found.setdefault(name, []).append(config[name])
    return {name: found[name] for name in [*runs[0].config, _FACTOR, *found] if name in found}


def _aligned(facts: Mapping[str, Any] | None) -> Iterator[PaperSetting]:
    if facts is None:
        yield PaperSetting.of("head for squared error", ["aligned"], ["as pretrained"])
        return
    for name, value in _PAPER["alignment"].items():
        if facts.get(name) is not None:
            yield PaperSetting.of(f"alignment, {name.replace('_', '-')}", [value], [facts[name]])


def _of_protocol(table: PaperTable, runs: Sequence[RunSummary]) -> Iterator[PaperSetting]:
    """Yield settings of the whole table, which no single study contains."""
    seeds = len({run.config["seed"] for run in runs})
    printed = 5 if table.name == "data-orders" else 1
    yield PaperSetting("seeds", str(printed), str(seeds), seeds < printed)
    shown = ", ".join(map(str, sorted({run.config["seed"] for run in runs})))
    choices = {"random rows": "", "evaluations": "", "class order": f"seeds {shown}"}
    yield from (PaperSetting(name, "", here, False) for name, here in choices.items())
    if table.name == "cost":
        device = runs[0].record.info.get("device")
        yield PaperSetting("minutes", "on an RTX A5000", f"on {device}", False)


def _words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
