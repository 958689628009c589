"""One run as a frozen value: its settings by name, its identity, its name next to other runs."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from clinit.headtrain.protocol.study import rules
from clinit.headtrain.protocol.study.parts import Parts, Top
from clinit.headtrain.protocol.study.rules import EARLIER, PER_HEAD, PLACES, settings_of
from clinit.setting import check_known


@dataclass(frozen=True, kw_only=True, slots=True)
class Study(Parts):
    """One run: which classes arrive, how their rows start, how they are trained."""

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, /, *, top: bool = False) -> Study:
        """Return the study with these settings, by name; all other settings have defaults.

        >>> Study.of({"init": "zero", "seed": 3}).start.init
        'zero'

        Args:
            settings: Values by name, as `settings` returns them.
            top: Whether blocks of the backbone are trained, too.

        Raises:
            ValueError: If a name is unknown, or a setting does not take its value.
        """
        return cls(top=Top() if top else None).changed(settings or {})

    def changed(self, values: Mapping[str, Any]) -> Study:
        """Return the study with other values of some settings, by name.

        Raises:
            ValueError: If a name is unknown, or a setting does not take its value.
        """
        every = settings_of(top=self.top is not None)
        check_known(values, every)
        by_path: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, value in values.items():
            setting = every[name]
            taken = setting.taken(value)
            setting.check(taken)  # here, too, because this error contains the full name
            *owner, attribute = setting.path
            by_path.setdefault(tuple(owner), {})[attribute] = taken
        study = self
        for path, changes in by_path.items():
            study = _replaced(study, path, changes)
        return study

    def value(self, name: str) -> Any:
        """Return the value of a setting."""
        found: Any = self
        for attribute in settings_of(top=self.top is not None)[name].path:
            found = getattr(found, attribute)
        return found

    @property
    def shared(self) -> Study:
        """The study with defaults for all settings in which heads of one bank may differ."""
        every = settings_of(top=self.top is not None)
        return self.changed({name: every[name].default for name in PER_HEAD if name in every})

    def resolved(self) -> Study:
        """Return the study with all defaults filled in.

        Settings that the method does not read get their default, so that equal runs are equal.

        Raises:
            ValueError: If settings exclude each other.
        """
        rules.check(self)
        every = settings_of(top=self.top is not None)
        study = self.changed({name: every[name].default for name in self.idle("method")})
        filled = rules.defaults(study)
        settled = {n: filled[n] for n in filled if n in every and study.value(n) is None}
        if study.top is None:
            settled["protocol"] = every["protocol"].default  # what it stands for is filled in
        if study.is_solved:
            settled["iterations"] = 0
        if study.start.init == "random":
            settled["scale"] = "none"
        if study.start.init == "fitted":
            settled["scale"] = "calibrated"
        if study.top is not None and study.stream.method == "ewc":
            settled["full_rank"] = True
        study = study.changed(settled)
        return study if study.reads_share else study.changed({"new_share": EARLIER["new_share"]})

    def reduced(self) -> Study:
        """Return the resolved study with every idle setting at its default.

        Runs with equal reduced studies give equal results.
        """
        every, study = settings_of(top=self.top is not None), self.resolved()
        return study.changed({name: every[name].default for name in study.idle()}).resolved()

    @property
    def telling(self) -> dict[str, Any]:
        """The settings that decide the results of a run."""
        return {k: value for k, value in self.reduced().values().items() if k not in PLACES}

    def idle(self, *by: rules.By) -> dict[str, str]:
        """Return the idle settings, each with the reason, as `rules.idle`."""
        return rules.idle(self, *by)

    def values(self) -> dict[str, Any]:
        """Return all settings by name; first the settings in which heads of one bank may differ.

        Names of runs contain varied settings in this order.
        """
        names = settings_of(top=self.top is not None)
        ordered = dict.fromkeys((*PER_HEAD, *names))
        return {name: self.value(name) for name in ordered if name in names}

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as the record of a resolved run contains them.

        The record omits settings that are idle because the head is solved, because blocks have
        full rank, or because they are settings of another method.
        """
        others = {*PER_HEAD, *rules.LOW_RANK, *rules.EWC, *rules.DERPP, *rules.CLOSED}
        absent = self.idle("method").keys() & others
        every, left_out = settings_of(top=self.top is not None), absent | self.unsaid
        values = self.values()
        return {n: values[n] for n in values if n not in left_out and every[n].recorded}

    @property
    def unsaid(self) -> set[str]:
        """Settings unknown to earlier versions that have the value in `EARLIER`."""
        named = settings_of(top=self.top is not None).keys() & {*EARLIER}
        return {name for name in named if self.value(name) == EARLIER[name]}

    @property
    def identity(self) -> str:
        """Text that is equal for equal runs, wherever they are computed."""
        return _identity(self)


def _replaced(owner: Any, path: Sequence[str], changes: Mapping[str, Any]) -> Any:
    """Return a copy of a frozen value with other attributes, in the part that `path` leads to."""
    if not path:
        return replace(owner, **changes)
    return replace(owner, **{path[0]: _replaced(getattr(owner, path[0]), path[1:], changes)})


@cache
def _identity(study: Study) -> str:
    """Return the text of `Study.identity`.

    It contains settings of closed forms only if they are read, and later settings only if they
    differ from `EARLIER`, so that runs of earlier versions keep their identity.
    """
    reduced = study.reduced()
    unread = ({*rules.CLOSED} & study.idle("method").keys()) | reduced.unsaid
    values = reduced.values().items()
    return identity_text({name: value for name, value in values if name not in unread})


def identity_text(values: Mapping[str, Any]) -> str:
    """Return settings as a text, without settings that do not distinguish runs."""
    kept = {name: value for name, value in values.items() if name not in rules.PLACES}
    return json.dumps(kept, sort_keys=True, default=str)


def names_of(studies: Sequence[Study]) -> list[str]:
    """Name resolved studies by initialisation and scale, and by the other settings that differ.

    A method other than rehearsal comes first; a solved head has no initialisation.

    Raises:
        ValueError: If two studies are equal.
    """
    every = [study.settings() for study in studies]
    if twice := [each for each in every if every.count(each) > 1]:
        raise ValueError(f"two heads of a bank are equal: {twice[0]}")
    shares = {study.start.new_share for study in studies if study.reads_share}
    unnamed = ("method", "init", "scale", *(() if len(shares) > 1 else ("new_share",)))
    varied = [
        name
        for name in dict.fromkeys(name for each in every for name in each)
        if name not in unnamed and len({str(each.get(name)) for each in every}) > 1
    ]
    return [run_name(each, varied) for each in every]


def run_name(settings: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """Name a run by method (if not rehearsal), start, and the settings `varied`."""
    words = [] if settings["method"] == "rehearsal" else [settings["method"]]
    if "init" in settings:
        words.append(_word(settings["init"]))
        words += [] if settings["init"] == "random" else [settings["scale"]]
    known = [name for name in varied if name in settings]
    return "-".join([*words, *(f"{k.replace('_', '-')}={_word(settings[k])}" for k in known)])


def _word(value: Any) -> str:
    """Return a value for the name of a run; a function is named by its path without the digest."""
    return value.partition("@")[0].replace(":", ".") if isinstance(value, str) else str(value)


def study_of(recorded: Mapping[str, Any]) -> Study:
    """Return the study of recorded settings.

    Raises:
        ValueError: If this version cannot run it.
    """
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items()}
    return Study.of(as_of_today(settings), top="top_blocks" in settings)


def identity_of(recorded: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded settings; missing settings have defaults."""
    try:
        return study_of(recorded).identity
    except ValueError:
        return identity_text(recorded)


def as_of_today(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings, translated from earlier versions to their present meaning.

    Before `calibration` existed, rows were calibrated on their own logits, and `auto` chose lambda
    by held-out error. Before `new_share` existed, all classes counted the same.
    """
    found = dict(recorded)
    if "init" in found:
        found.setdefault("new_share", EARLIER["new_share"])
    if "init" in found and "calibration" not in found:
        found["calibration"] = "in-sample"
        if found.get("lam") == "auto":
            found["lam"] = "held-out"
    return found


def by_stream(runs: Iterable[Study], heads: Container[str]) -> list[list[Study]]:
    """Group runs that differ at most in their heads, in the given order.

    Args:
        runs: Resolved studies.
        heads: Losses whose runs start from a pretrained head of their own; all runs of a group
            start from the same head.
    """
    groups: dict[tuple[Study, str], list[Study]] = {}
    for run in runs:
        loss = run.training.loss
        groups.setdefault((run.shared, loss if loss in heads else ""), []).append(run)
    return list(groups.values())
