"""Train heads from Python, and top blocks under them."""

from __future__ import annotations

from pathlib import Path

from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.api.caches import Cache, opened
from clinit.api.studies import Studies, studies_of
from clinit.extract.head import Head
from clinit.extract.lock import claim_folder
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.finished import unrecorded
from clinit.headtrain.record.format import RunRecord, write_records
from clinit.headtrain.stream.base_head import starting_head
from clinit.headtrain.study import PER_HEAD, names_of
from clinit.headtrain.top.images import open_side, reload_backbone
from clinit.headtrain.top.inputs import Side, Storage, prepare_inputs
from clinit.headtrain.top.resume import finish_run, unfinished


def train_heads(
    base: Cache,
    new: Cache,
    study: Studies | None = None,
    *,
    out: str | Path | None = None,
    head: Head | str | Path | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    observer: Observer = ignore,
) -> Runs:
    """Train linear heads on new classes that arrive in tasks, on cached features.

    Studies of one stream are trained side by side, on the same batches; the numbers are those of
    `clinit train-head`. Those that `out` holds already are not trained again.

    Args:
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        study: What to train; default: random, class-mean and least-square rows.
        out: Folder to record each run in; default: nothing is written.
        head: The pretrained head, or its file; default: the one in the base cache.
        memory: Most memory for the features of caches that are given by their folders, in bytes or
            as `8GB`; what takes more stays on disk, with the same numbers. Default: what is free.
        overwrite: Whether records that are there, of these runs or others, are replaced.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong, or two studies differ in more than their heads.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    studies = studies_of(study, top=False)
    old, arriving = opened(base, new, memory)
    first, facts = starting_head(old, _head(head))

    def train() -> list[RunRecord]:
        return run_experiment(old, arriving, first, studies, observer=observer, head_facts=facts)

    if out is None:
        return runs_of(train())
    folders = [Path(out) / name for name in names_of(studies)]
    with claim_folder(Path(out)):
        if left := unrecorded(studies, folders, old, arriving, first, overwrite=overwrite):
            records = train()
            chosen, places = [records[i] for i in left], [folders[i] for i in left]
            write_records(chosen, places, overwrite=overwrite)
    return load_runs(*folders)


def train_top(
    base: str | Path,
    new: str | Path,
    study: Studies | None = None,
    *,
    out: str | Path,
    head: Head | str | Path | None = None,
    weights: str | Path | None = None,
    base_root: str | Path | None = None,
    new_root: str | Path | None = None,
    trunk_cache: str | Path | None = None,
    trunk_budget: int = 20 * 10**9,
    checkpoint_every: int = 100,
    overwrite: bool = False,
    observer: Observer = ignore,
) -> Runs:
    """Train the top blocks of a backbone and its head on new classes that arrive in tasks.

    Recorded runs are not trained again, and a run that was killed goes on from its checkpoint.

    Args:
        base: Feature cache of the classes of the pretrained head.
        new: Feature cache of the classes that arrive.
        study: What to train, one run after another; default: random, class-mean and least-square
            rows with low-rank updates.
        out: Folder to record each run in.
        head: The pretrained head, or its file; default: the one in the base cache.
        weights: File of the weights of the backbone; default: where it was at extraction.
        base_root: Folder of the base images; default: where they were at extraction.
        new_root: Folder of the new images; default: where they were at extraction.
        trunk_cache: Folder of stored activations; default: `out`/trunk-cache.
        trunk_budget: Most bytes of activations that are stored; 0 stores none.
        checkpoint_every: Updates between two checkpoints; 0 keeps one per task.
        overwrite: Whether records that are there, of these runs or others, are replaced.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong, or two studies differ in more than their heads.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    folder = Path(out)
    studies = studies_of(study, top=True)
    folders = [folder / name for name in names_of(studies)]
    if len({each.shared for each in studies}) > 1:
        raise ValueError(f"runs of one call differ at most in {', '.join(PER_HEAD)}")
    with claim_folder(folder):
        old, arriving = _side(base, base_root, "base"), _side(new, new_root, "new")
        first, facts = starting_head(old.source, _head(head))
        sources = old.source, arriving.source
        left = unfinished(studies, folders, *sources, first, overwrite=overwrite)
        if left:
            device = studies[0].training.device
            path = None if weights is None else Path(weights)
            backbone, transform = reload_backbone(old, path, device)
            trunk = folder / "trunk-cache" if trunk_cache is None else Path(trunk_cache)
            storage = Storage(folder=trunk, budget=trunk_budget)
            starts = {each.start.init for each, _ in left}
            inputs = prepare_inputs(
                old,
                arriving,
                first,
                backbone,
                transform,
                left[0][0],
                storage,
                random_only=starts == {"random"},
            )
            for each, record in left:
                finish_run(
                    inputs,
                    each,
                    record,
                    checkpoint_every=checkpoint_every,
                    observer=observer,
                    head_facts=facts,
                    overwrite=overwrite,
                )
                inputs = inputs.reused()
    return load_runs(*folders)


def _head(head: Head | str | Path | None) -> Head | Path | None:
    return Path(head) if isinstance(head, str) else head


def _side(cache: str | Path, root: str | Path | None, name: str) -> Side:
    path = None if root is None else Path(root)
    return open_side(Path(cache), path, option=f"{name}_root")
