"""A class-incremental experiment with a frozen backbone.

For each task: choose the buffer, compute the statistics once, initialise the new rows of each
head, train the bank on shared batches, evaluate before the first step and during training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from clinit.extract.cache.head import Head
from clinit.headtrain.closed.methods import check_memory
from clinit.headtrain.closed_learner import ClosedLearner
from clinit.headtrain.events import Noted, Observer, ignore
from clinit.headtrain.learner import Diagnose, Learner
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.record.info import run_info
from clinit.headtrain.record.task_log import run_record
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.stream.notes import data_notes
from clinit.headtrain.stream.scenario import build_scenario
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import PER_HEAD, Study, names_of
from clinit.headtrain.train.step import BETAS, EPS
from clinit.machine import device_name


def run_experiment(
    base: Source,
    new: Source,
    head: Head,
    studies: Sequence[Study],
    *,
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
    head_facts: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
) -> list[RunRecord]:
    """Train a head for each study on the new classes; return one record each, in their order.

    All heads share class order, buffer, random rows and batches, all from the seed of the stream.
    The same call on the same device gives the same numbers, bit for bit.

    Args:
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        head: The pretrained head.
        studies: Studies without top blocks; they differ at most in the settings `study.PER_HEAD`.
        observer: Called with each event as it happens.
        diagnose: Measures each head at the end of each task; its values go into the record.
        head_facts: Where the head is from, for the record; default: the base cache.
        command: What the user typed, for the record.

    Raises:
        ValueError: If there is no study, two are the same, or two differ in their stream.
        CacheError: If the two sides hold features of different backbones.
        HeadError: If the head does not read these features.
        ExperimentError: If the head's classes are unknown or there are too many tasks.
        DeviceError: If there is no such device.
        MachineError: If the statistics of a closed form do not fit into memory.
        StatisticsError: If its system is singular.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    studies = [study.resolved() for study in studies]
    names_of(studies)
    if len({study.shared for study in studies}) > 1:
        raise ValueError(f"heads of one bank differ at most in {', '.join(PER_HEAD)}")
    scenario = build_scenario(base, new, head, studies[0].stream)
    head_facts = {"path": None, "digest": head_digest(head), **(head_facts or {})}
    check_memory(scenario, studies[0], head.dim)
    notes = data_notes(scenario, base, new, studies, head_facts)
    for note in notes:
        observer(Noted(note))
    learner_of = ClosedLearner if studies[0].is_closed else Learner
    learner = learner_of(scenario, head, studies, observer, diagnose)
    with torch.no_grad():
        for task in scenario.learnt:
            learner.learn(task)
    timings = _timings(learner, base.load_s + new.load_s)
    records = []
    for index, study in enumerate(studies):
        info = run_info(
            study,
            name=learner.ids[index],
            base=base,
            new=new,
            head=head_facts,
            notes=[*notes, *learner.notes(index)],
            seconds=float(learner.seconds[index]),
            timings_s=timings,
            optimizer={"name": "AdamW", "betas": BETAS, "eps": EPS, "state": "fresh each task"},
            bank=studies,
            device=device_name(learner.device),
            started=started,
            command=command,
        )
        final = learner.head(index)
        if final is not None and final.feature_map is not None:
            info["feature_map"] = dict(final.feature_map)
        records.append(run_record(scenario, learner.entries, index, info, head=final, study=study))
    return records


def _timings(learner: Learner | ClosedLearner, load_s: float) -> dict[str, float]:
    """Return the wall time of each phase, for the whole bank and not for one head."""
    phases = {name: learner.watch.seconds[name] for name in PHASES}
    return {"load": load_s, **phases, "total": load_s + learner.watch.total}


PHASES = ("prepare", "initialise", "train", "evaluate", "diagnose")
