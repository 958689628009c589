"""Let a finished split follow its folder: compute new images, and drop the rows of removed ones.

Features are per image, so a row is kept if its path and its size are in both manifests. The new
images are extracted as a split of their own, next to the old one, which resumes like any other.
Then both are joined into a draft that takes the place of the old split in one step.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError
from clinit.extract.cache.groups import GROUPS_FILE
from clinit.extract.cache.plan import PLAN_FILE, WHOLE, Plan, shard_name, views_in
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.cache.shard import Shard, assemble, read_shard, write_shard
from clinit.extract.cache.summary import RunFacts, write_summary
from clinit.extract.dataset.manifest import MANIFEST_FILE, is_contained, write_manifest
from clinit.extract.work.split_run import SplitResult, SplitRun
from clinit.files.commit import commit_folder
from clinit.files.lock import claim_file
from clinit.files.paths import is_file
from clinit.observer import Noted
from clinit.words import examples, number_of


def has_grown(plan: Plan, folder: Path) -> bool:
    """Return whether a folder contains a split that differs from a plan in its images alone."""
    if not is_file(folder / PLAN_FILE):
        return False
    old = Plan.read(folder)
    same = replace(old, num_rows=plan.num_rows, fingerprint=plan.fingerprint)
    differing = old.fingerprint.differences(plan.fingerprint)
    return same == plan and [each.name for each in differing] == ["manifest"]


def grow(run: SplitRun) -> SplitResult:
    """Compute the images that are new since the split in the folder of `run`, and keep its rows.

    Raises:
        CacheError: If the split cannot follow its images.
        ClinitError: As in `SplitRun.run`.
    """
    folder, table, key = run.folder, run.manifest.table, ["path", "size_bytes"]
    old = _followed(run)
    known = old.manifest.table.with_row_index("row").select("row", *key)
    places = table.join(known, on=key, how="left", maintain_order="left")["row"]
    new, fresh = table.filter(places.is_null()), folder.with_name(f".{folder.name}-new")
    result = SplitResult(plan=run.plan, path=folder, shards_there=0)
    added: CacheSplit | None = None
    difference = _difference(old.manifest.table, table)
    run.observer(Noted(f"{folder}: {difference}; only new images are computed"))
    with claim_file(folder):
        if len(new):
            manifest = replace(run.manifest, table=new)
            fingerprint = run.plan.fingerprint.of_rows(manifest.digest)
            plan = replace(run.plan, num_rows=len(new), fingerprint=fingerprint)
            if is_file(fresh / PLAN_FILE) and Plan.read(fresh) != plan:
                shutil.rmtree(fresh)  # interrupted before the folder changed again
            result = replace(run, plan=plan, manifest=manifest, folder=fresh).run()
            added = result.split
        shards = _joined(run, places.fill_null(-1).to_numpy(), old, added)
        facts = (added or old).summary.run
        commit_folder(folder, lambda draft: _write(run, draft, shards, facts), overwrite=True)
    shutil.rmtree(fresh, ignore_errors=True)
    return replace(result, plan=run.plan, path=folder, shards_there=run.plan.num_shards)


def _followed(run: SplitRun) -> CacheSplit:
    """Return the split in the folder of `run`, if it is finished and can follow its images."""
    try:
        old = open_split(run.folder)
    except CacheError as error:
        why, now = str(error), ""
    else:
        tables = old.manifest.table, run.manifest.table
        now, why = f" ({_difference(*tables)})", ""
        if is_file(run.folder / GROUPS_FILE):
            why = "its rows are grouped"
        elif not len(tables[0].join(tables[1], on=["path", "size_bytes"], how="semi")):
            why = "no image stayed"
        elif any(map(is_contained, tables)):
            why = "its images are in containers"
        elif run.part != WHOLE or views_in(run.folder.parent):
            why = "that needs one process, and a cache without views"
    if why:
        raise CacheError(
            f"the images of {run.folder} have changed since it was begun{now}, and it cannot follow"
            f" them: {why}",
            remedy="Restore the images, or give another folder for the features.",
        )
    return old


def _difference(old: pl.DataFrame, new: pl.DataFrame) -> str:
    """Return which images are new and which are gone, in words."""
    told = []
    for one, two, what in ((new, old, "new"), (old, new, "gone")):
        images = one.join(two, on=["path", "size_bytes"], how="anti")
        names = images["class_name"].unique(maintain_order=True).to_list()
        if names:
            told.append(f"{number_of(len(images), 'image')} {what} (in {examples(names)})")
    return ", ".join(told) or "its classes have changed"


def _joined(
    run: SplitRun, places: Int[np.ndarray, " rows"], old: CacheSplit, new: CacheSplit | None
) -> Iterator[Shard]:
    """Yield the shards of all rows: row i is row `places[i]` of `old`, or the next row of `new`."""

    @lru_cache(maxsize=4)
    def shard(split: CacheSplit, number: int) -> Shard:
        return read_shard(split.path / shard_name(number), split.plan, number)

    own = np.cumsum(places < 0) - 1
    for index in range(run.plan.num_shards):
        rows = run.plan.rows(index)
        features = np.zeros((len(rows), run.plan.dim), dtype=np.float32)
        reasons: dict[int, str] = {}
        for at, row in enumerate(rows):
            split, place = (old, places[row]) if places[row] >= 0 else (new, own[row])
            assert split is not None
            number, offset = divmod(int(place), split.plan.shard_rows)
            found = shard(split, number)
            features[at] = found.features[offset]
            if offset in found.reasons:
                reasons[at] = found.reasons[offset]
        labels = run.manifest.table["label"][rows.start : rows.stop].to_numpy()
        yield assemble(features, labels, reasons, dtype=run.plan.dtype)


def _write(run: SplitRun, draft: Path, shards: Iterator[Shard], facts: RunFacts) -> None:
    run.plan.settle(draft)
    write_manifest(run.manifest, draft / MANIFEST_FILE)
    for index, shard in enumerate(shards):
        write_shard(shard, draft / shard_name(index), plan=run.plan, index=index)
    write_summary(draft, run.plan, run.manifest, run.named, facts)
