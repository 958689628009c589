"""Train heads from Python, and top blocks under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from clinit.analysis.report.report import Runs, load_runs, runs_of
from clinit.api.caches import Caches, opened
from clinit.extract.cache.head import Head
from clinit.files.lock import claim_folder
from clinit.headtrain import runs
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.study.parts import PAPER_INITS
from clinit.headtrain.study.rules import refusals
from clinit.headtrain.study.study import Study
from clinit.headtrain.top.images import Images, Storage

Studies = Study | Mapping[str, Any] | Sequence[Study | Mapping[str, Any]]
"""One run or several; a mapping holds settings by name."""


def studies_of(asked: Studies | None, *, top: bool) -> list[Study]:
    """Return the studies that are asked for, resolved.

    Where nothing is: random, class-mean and least-square rows.

    Raises:
        ValueError: If a setting is wrong or means nothing, there is no study, or one has a part
            `top` where it should not, or lacks it.
    """
    if asked is None:
        asked = [{"init": init} for init in PAPER_INITS]
    several = [asked] if isinstance(asked, Study | Mapping) else asked
    found = []
    for each in several:
        if isinstance(each, Mapping):
            study = Study.of(each, top=top)
            if idle := refusals([*each], [study]):
                raise ValueError(idle[0])
            found.append(study)
        else:
            found.append(each)
    if not found:
        raise ValueError("there is no study: give at least one")
    for study in found:
        if (study.top is not None) != top:
            raise ValueError(
                "the study has no settings of top blocks. Give it a part `top`."
                if top
                else "the study has settings of top blocks. Call `clinit.train_top` for them."
            )
    return list(dict.fromkeys(study.resolved() for study in found))


def train_heads(
    base: Caches,
    new: Caches,
    study: Studies | None = None,
    *,
    out: str | Path | None = None,
    head: Head | str | Path | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    observer: Observer = ignore,
) -> Runs:
    """Train linear heads on new classes that arrive in tasks, on cached features.

    Studies of one stream (all but their heads is the same) are trained side by side, on the same
    batches; several seeds one after another. The numbers are those of `clinit train-head`. Runs
    that `out` holds already, under whatever name, are not trained again.

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
        ValueError: If a setting is wrong.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    studies = studies_of(study, top=False)
    data = runs.RunData.of(*opened(base, new, memory), {"": _head(head)})
    if out is None:
        records = runs.train_heads(data, studies, observer=observer)
        return runs_of([records[each] for each in studies])
    with claim_folder(Path(out)):
        places = runs.places_of(studies, Path(out), overwrite=overwrite)
        left = runs.left_of(places, data, overwrite=overwrite)
        runs.train_heads(data, studies, left, observer=observer, overwrite=overwrite)
    return load_runs(*places.values())


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
        ValueError: If a setting is wrong.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    folder = Path(out)
    studies = studies_of(study, top=True)
    images = Images(
        base=Path(base),
        new=Path(new),
        base_root=None if base_root is None else Path(base_root),
        new_root=None if new_root is None else Path(new_root),
        weights=None if weights is None else Path(weights),
        storage=Storage(
            folder=folder / "trunk-cache" if trunk_cache is None else Path(trunk_cache),
            budget=trunk_budget,
        ),
    )
    with claim_folder(folder):
        places = runs.places_of(studies, folder, overwrite=overwrite)
        sides, data = runs.RunData.of_images(images, {"": _head(head)}, option="{}_root")
        runs.train_top(
            data,
            runs.left_of(places, data, overwrite=overwrite),
            images,
            sides,
            watch=lambda _: nullcontext(observer),
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    return load_runs(*places.values())


def _head(head: Head | str | Path | None) -> Head | Path | None:
    return Path(head) if isinstance(head, str) else head
