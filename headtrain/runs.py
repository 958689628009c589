"""Runs of one call: data, folders, which runs are left to train, training and recording.

The command line, Python, sweeps and repetitions of runs all use these functions, so that a run
always has the same folder and is never trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clinit.errors import RecordError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.files.paths import is_file
from clinit.headtrain.events import BankStarted, Observer, ignore
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.learner import Diagnose
from clinit.headtrain.record.format import (
    INFO,
    RunRecord,
    check_free,
    read_info,
    write_record,
)
from clinit.headtrain.record.info import held_out_manifest, settings_of, study_of_run
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source, head_digest, no_base, starting_head
from clinit.headtrain.study.rules import PLACES
from clinit.headtrain.study.study import Study, by_stream, identity_of, names_of

if TYPE_CHECKING:
    from clinit.headtrain.top.images import Images
    from clinit.headtrain.top.inputs import Side

_REMEDY = "Choose another --out, or replace it with --overwrite."
DATA_DIGESTS = (
    *("manifest_digest", "val_manifest_digest"),
    *("features_digest", "val_features_digest", "groups_digest", "statistics_digest"),
)
"""Fields that identify the data of a side (base or new classes), in addition to its fingerprint."""


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """The data that all runs of a call read."""

    base: Source
    """The base classes; `no_base(new)`, without any class, if the streams start from nothing."""
    new: Source
    head: Head
    """The pretrained head that runs start from."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """Heads by loss, for losses whose runs start from another head than `head`: aligned heads."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts about the heads for records, by loss; "" for `head`."""
    command: Sequence[str] = ()
    """The command line of the user, for the records."""
    images: Images | None = None
    """Paths of images, weights and activations; None for heads alone."""
    sides: tuple[Side, Side] | None = None
    """The two data sets with their images."""

    @classmethod
    def of(
        cls,
        base: Source | None,
        new: Source,
        given: Mapping[str, Head | Path | None] | None = None,
        *,
        on_note: Callable[[str], None] = lambda note: None,
        **rest: Any,
    ) -> RunData:
        """Return the data with pretrained heads.

        Args:
            base: The base classes; None for streams that start from nothing.
            new: The new classes.
            given: Heads, or their files, by loss; "" for all other losses.
            on_note: Called with a note on how the file of a head was read, if this was uncertain.
            rest: Further fields.

        Raises:
            ExperimentError: If neither `given[""]` nor the base cache provides a head, or if a
                head is given without base classes.
            HeadError: If a file is missing or damaged.
        """
        base = no_base(new) if base is None else base
        by_loss = {"": None, **(given or {})}
        found = {loss: starting_head(base, head, on_note=on_note) for loss, head in by_loss.items()}
        facts = {loss: each for loss, (_, each) in found.items()}
        head, _ = found.pop("")
        heads = {loss: each for loss, (each, _) in found.items()}
        return cls(base, new, head, heads, facts, **rest)

    def held_out(self, share: float, *, seed: int) -> RunData:
        """Return the data with a share of the training rows in place of the test rows.

        Args:
            share: Share of the rows of each class, in (0, 1); repeated images stay together.
            seed: Seed of the draw.
        """
        sides = []
        for index, side in enumerate((self.base, self.new)):
            if not side.class_names:
                sides.append(side)
                continue
            random, held = generator(seed, Draw.HELD_OUT, index), np.zeros(0, dtype=bool)
            if len(side.train.labels):  # statistics have no rows to hold out
                held = held_out_rows(side.train.labels, groups_of(side.train), share, random)
            train, val = side.train.part(~held), side.train.part(held)
            manifest = held_out_manifest(share, seed)
            sides.append(replace(side, train=train, val=val, val_manifest=manifest))
        return replace(self, base=sides[0], new=sides[1])

    def head_for(self, loss: str) -> Head:
        """Return the pretrained head that runs of `loss` start from."""
        return self.heads.get(loss, self.head)

    def facts_for(self, loss: str) -> dict[str, Any]:
        """Return the facts for a record about the head that runs of `loss` start from."""
        return dict(self.facts.get(loss if loss in self.heads else "", {}))

    @classmethod
    def of_images(
        cls,
        images: Images,
        given: Mapping[str, Head | Path | None] | None = None,
        *,
        option: str = "--{}-root",
        **rest: Any,
    ) -> RunData:
        """Return the data with their images; `given` and `rest` as in `of`."""
        from clinit.headtrain.top.inputs import open_sides  # slow: it imports timm

        sides = open_sides(images, option)
        base, new = (side.source for side in sides)
        return cls.of(base, new, given, images=images, sides=sides, **rest)

    @property
    def descriptions(self) -> dict[str, dict[str, Any]]:
        """The facts for a record about the data of each side."""
        return {"base": self.base.description, "new": self.new.description}

    @property
    def by_head(self) -> dict[str, str]:
        """The losses whose runs do not start from `head`, as `by_stream` takes them."""
        return {loss: loss for loss in self.heads}

    @property
    def num_classes(self) -> int:
        """Largest number of rows of a head at the end of a stream."""
        return self.head.num_classes + len(self.new.class_names)

    @property
    def is_loaded(self) -> bool:
        """Whether all features are in memory."""
        parts = (self.base.train, self.base.val, self.new.train, self.new.val)
        return all(part.is_loaded for part in parts)


def places_of(studies: Sequence[Study], out: Path, *, overwrite: bool = False) -> dict[Study, Path]:
    """Return the folder of each run: of its existing record in `out`, or else `out/NAME`.

    The name of a run contains the settings that differ within the call. So the same run has another
    name in a call with several seeds than in a call with one seed.

    Args:
        studies: The settings of the runs, resolved.
        out: The folder of all records.
        overwrite: Replace records in these folders, of these or other runs.

    Raises:
        ValueError: If there is no study, or if two are equal.
        RecordError: If a folder contains something else, or a record cannot be written there.
    """
    found: dict[str, Path] = {}
    for info in sorted(out.glob(f"*/{INFO}")):
        with suppress(RecordError):  # a damaged record is refused if its folder is needed
            found[identity_of(settings_of(read_info(info.parent)))] = info.parent
    named = zip(studies, names_of(studies), strict=True)
    places = {study: found.get(study.identity, out / name) for study, name in named}
    check_free(
        (place for place in places.values() if overwrite or not is_file(place / INFO)),
        overwrite=overwrite,
    )
    return places


def left_of(
    places: Mapping[Study, Path],
    data: RunData,
    *,
    diagnosed: bool = False,
    overwrite: bool = False,
) -> dict[Study, Path]:
    """Return the runs to train: the runs whose folder does not contain their record.

    The checkpoint of a recorded run is removed: the run was killed after it wrote its record.

    Args:
        places: Result of `places_of`.
        data: The data of the runs.
        diagnosed: Whether records must contain diagnoses; unrequested diagnoses are accepted.
        overwrite: Train all runs again, to replace existing records.

    Raises:
        RecordError: If a folder contains the record of another run, or of other data.
    """
    if overwrite:
        return dict(places)
    left = {}
    for study, place in places.items():
        if not is_file(place / INFO):
            left[study] = place
            continue
        stored = read_info(place)
        wanted, found = _telling(study), _telling(study_of_run(stored, str(place)))
        if differing := sorted(name for name in wanted if wanted[name] != found.get(name)):
            raise RecordError(
                f"{place} holds the record of another run: config differs in"
                f" {', '.join(differing)}",
                remedy=f"{_REMEDY} `clinit sweep` collects runs of several settings in one folder.",
            )
        check_data(place, stored, data)
        if diagnosed and not all("diagnosis" in task for task in stored["tasks"]):
            raise RecordError(
                f"{place} holds the record of this run, but without the diagnoses asked for",
                remedy=_REMEDY,
            )
        if study.top is not None:
            _checkpoint_of(place).unlink(missing_ok=True)
    return left


def check_data(
    folder: Path | None,
    stored: Mapping[str, Any],
    data: RunData,
    *,
    with_head: bool = True,
    remedy: str = _REMEDY,
) -> None:
    """Check that a record was made with these data and, if `with_head`, with their head.

    Raises:
        RecordError: If data or head differ; `remedy` is the next step.
    """
    differing = []
    for side, mine in data.descriptions.items():
        then = stored.get(side) or {}
        if bool(then) != bool(mine):
            differing.append(f"{side} classes ({'none there' if mine else 'none now'})")
            continue
        for each in _all_fields(then).differences(_all_fields(mine)):
            there, now = each.told
            differing.append(f"{side} {each.name} ({there} there, {now} now)")
    loss = stored["config"].get("loss", "")
    known = (stored.get("head") or {}).get("digest")
    if with_head and known not in (None, head_digest(data.head_for(loss))):
        differing.append(f"the head that {loss} starts from")
    if differing:
        message = f"{folder} was made with other data: {', '.join(differing)}"
        raise RecordError(message, remedy=remedy)


def _all_fields(side: Mapping[str, Any]) -> Fingerprint:
    known = {name: str(side[name]) for name in DATA_DIGESTS if side.get(name) is not None}
    return Fingerprint({**(side.get("fingerprint") or {}), **known})


def train_bank(
    data: RunData,
    bank: Sequence[Study],
    *,
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
) -> list[RunRecord]:
    """Train heads of one stream together; return one record each, in their order."""
    loss = bank[0].training.loss
    return run_experiment(
        data.base,
        data.new,
        data.head_for(loss),
        bank,
        observer=observer,
        diagnose=diagnose,
        head_facts=data.facts_for(loss),
        command=data.command,
    )


def train_heads(
    data: RunData,
    studies: Sequence[Study],
    left: Mapping[Study, Path] | None = None,
    *,
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
    overwrite: bool | None = None,
) -> dict[Study, RunRecord]:
    """Train one stream after another, all heads of a stream together, and record runs in `left`.

    If a run of a stream is in `left`, all heads of the stream are trained, also the recorded heads,
    so that the results are equal to the results of an uninterrupted call.

    Args:
        data: The data of the runs.
        studies: All runs of the call, resolved, without top blocks.
        left: The runs to record, each with its folder; None: all runs, and nothing is written.
        observer: Called with each event as it happens.
        diagnose: Measures each head at the end of each task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    wanted = {*studies} if left is None else left.keys()
    streams = by_stream(studies, data.by_head)
    banks = [bank for bank in streams if not wanted.isdisjoint(bank)]
    records: dict[Study, RunRecord] = {}
    for number, bank in enumerate(banks, start=1):
        observer(BankStarted(bank, number, len(banks)))
        made = train_bank(data, bank, observer=observer, diagnose=diagnose)
        for study, record in zip(bank, made, strict=True):
            if study in wanted:
                records[study] = record
                if left is not None:
                    write_record(record, left[study], overwrite=overwrite)
    return records


def train_top(
    data: RunData,
    left: Mapping[Study, Path],
    *,
    watch: Callable[[Path | None], AbstractContextManager[Observer]],
    checkpoint_of: Callable[[Study], Path] | None = None,
    checkpoint_every: int = 100,
    overwrite: bool | None = None,
) -> None:
    """Train runs with top blocks one after another, resume killed runs, and record each run.

    The checkpoint of a run is removed once its record is written.

    Args:
        data: The data of the runs, with images.
        left: The runs, resolved, each with the folder of its record.
        watch: Given the folder of a run, returns the observer of this run; given None, the observer
            of the computation of activations that precedes the runs.
        checkpoint_of: Returns the file that a run resumes from; default: `FOLDER.checkpoint`.
        checkpoint_every: Updates between two checkpoints; 0: one per task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        CheckpointError: If a checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable, or a record cannot be written.
    """
    from clinit.headtrain.top.experiment import run_top
    from clinit.headtrain.top.inputs import prepare_runs

    assert data.images is not None
    assert data.sides is not None
    for runs in by_stream(left, data.by_head):
        loss = runs[0].training.loss
        head, facts = data.head_for(loss), data.facts_for(loss)
        with watch(None) as observer:
            inputs = prepare_runs(
                data.images, data.sides, head, runs, observer=observer, head_facts=facts
            )
        for study in runs:
            place = left[study]
            checkpoint = checkpoint_of(study) if checkpoint_of else _checkpoint_of(place)
            with watch(place) as observer:
                record = run_top(
                    inputs,
                    study,
                    checkpoint=checkpoint,
                    checkpoint_every=checkpoint_every,
                    observer=observer,
                    head_facts=facts,
                    command=data.command,
                )
            named = replace(record, info={**record.info, "id": place.name})
            write_record(named, place, overwrite=overwrite)
            checkpoint.unlink(missing_ok=True)


def _checkpoint_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.checkpoint")


def _telling(study: Study) -> dict[str, Any]:
    return {k: value for k, value in study.reduced().values().items() if k not in PLACES}
