"""Extract one split: find the shards that are missing, compute them, write the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from clinit.errors import CacheError, ClinitError, ImageError, ManifestError
from clinit.extract.cache.head import store_head
from clinit.extract.cache.plan import PLAN_FILE, SUMMARY_FILE, WHOLE, Part, Plan, shard_name
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split, shard_problem
from clinit.extract.cache.shard import Shard, assemble, write_shard
from clinit.extract.cache.summary import NamedHead, RunFacts, write_summary
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.manifest import MANIFEST_FILE, Manifest, read_manifest, write_manifest
from clinit.extract.network.compiled import ForwardNetwork, on_its_way
from clinit.extract.network.transform import Transform, View
from clinit.extract.work.options import Settings
from clinit.extract.work.pipeline import Decoder, ImageBatch, Timing, features_of
from clinit.extract.work.recorded import NAMED_EARLIER
from clinit.files.lock import claim_file, claimed_names
from clinit.files.paths import exists
from clinit.machine import Stopwatch, now
from clinit.observer import Noted, Observer, Progressed

_alone = partial(claim_file, on_busy=lambda: None)
"""Locks a file that processes of other parts may also write; waits until it is free."""
_SAMPLE = 200
"""Images to look for before a folder is reported as the wrong one."""


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """Result of extracting one split, or a part of it."""

    plan: Plan
    path: Path
    part: Part = WHOLE
    """The part of the shards that this run was for."""
    computed_rows: int = 0
    """Number of rows computed in this run; 0 if the part was complete."""
    replaced_shards: tuple[str, ...] = ()
    """The fault of each damaged shard, which was computed again."""
    shards_there: int
    """Number of existing shards of all parts."""
    problem: str = ""
    """If shards of all parts exist, the fault in a shard of another part; else empty."""
    run: RunFacts | None = None
    """How this run computed its rows; None if it computed no row."""

    @property
    def is_complete(self) -> bool:
        """Whether all parts of the split are complete."""
        return self.shards_there == self.plan.num_shards and not self.problem

    @cached_property
    def split(self) -> CacheSplit:
        """The complete split."""
        return open_split(self.path)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SplitRun:
    """The extraction of one split: find the shards that are missing, compute and write them."""

    plan: Plan
    manifest: Manifest
    root: Path
    """The folder that the paths in the manifest start from."""
    folder: Path
    backbone: ForwardNetwork
    transform: Transform
    view: View | None = None
    """The view whose random crops replace `transform`'s centre crops, if any."""
    settings: Settings
    part: Part = WHOLE
    """The shards that this process may compute."""
    named: NamedHead
    """The pretrained head. It is stored in the cache (not for a view), and its accuracy on the
    features in the summary."""
    observer: Observer
    on_image: Callable[[str, bytes], object] | None = None
    """Called with path and content of each image that is read, by several threads."""

    def run(self) -> SplitResult:
        """Compute the missing shards of this part; if all parts exist, complete the split.

        Raises:
            ClinitError: If another process extracts the same part, the folder belongs to another
                extraction, or the storage fails.
        """
        with self._claimed():
            return self._begun()._run()

    def _run(self) -> SplitResult:
        plan, timing, started = self.plan, Timing(), now()
        finished = None
        with suppress(CacheError):
            finished = open_split(self.folder)
        todo = self._todo(finished)
        computed, problem = self._compute(todo, timing), ""
        facts = self._facts(computed, timing, started)
        there = sum(exists(self.folder / shard_name(n)) for n in range(plan.num_shards))
        if there == plan.num_shards and finished is not None and not todo:
            self._judge_again(finished, facts)
        elif there == plan.num_shards:
            try:
                self._summarise(facts)
            except CacheError as error:
                if self.part == WHOLE:
                    raise
                problem = str(error)
        return SplitResult(
            plan=plan,
            path=self.folder,
            part=self.part,
            computed_rows=computed,
            replaced_shards=tuple(filter(None, todo.values())),
            shards_there=there,
            problem=problem,
            run=facts if computed else None,
        )

    @property
    def _shards(self) -> range:
        return self.part.shards(self.plan.num_shards)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Make this the only process that extracts the part; remove drafts of killed processes."""
        drafts_of = [shard_name(shard) for shard in self._shards]
        with claim_file(self.folder / self.part.name, drafts_of=drafts_of):
            for other in claimed_names(self.folder, "part-*"):
                if not other.endswith(f"-of-{self.part.count}"):
                    raise ClinitError(
                        f"another process extracts {other} into {self.folder}, this process"
                        f" {self.part.name}: some shards belong to both parts",
                        remedy="Give both the same number of parts, or wait for the other process.",
                    )
            yield

    def _begun(self) -> SplitRun:
        """Write the plan, the head and the manifest unless they exist.

        Returns:
            This run, with the class names that an earlier command has stored with the same head.
        """
        with _alone(self.folder / PLAN_FILE):
            self.plan.settle(self.folder)
        path, begun, head = self.folder / MANIFEST_FILE, self, self.named.head
        if head is not None and self.view is None:
            stored = store_head(head, self.folder.parent / HEAD_FILE)
            if stored.class_names != head.class_names:
                begun = replace(self, named=NamedHead(stored, NAMED_EARLIER))
        with suppress(ManifestError):
            if read_manifest(path).digest == self.manifest.digest:
                return begun
        with _alone(path):
            write_manifest(self.manifest, path)
        return begun

    def _todo(self, finished: CacheSplit | None) -> dict[int, str]:
        """Return the shards to compute, each with its fault; an empty text for an absent shard."""
        found = {n: shard_problem(self.folder, self.plan, n, finished) for n in self._shards}
        return {
            shard: problem if exists(self.folder / shard_name(shard)) else ""
            for shard, problem in found.items()
            if problem is not None
        }

    def _compute(self, todo: Collection[int], timing: Timing) -> int:
        """Compute and write shards; return their number of rows."""
        done, size = 0, self.plan.rows
        total = sum(len(size(shard)) for shard in self._shards)
        found = total - sum(len(size(shard)) for shard in todo)

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            self.observer(Progressed(f"Reading {self.plan.title}", found + done, total, "images"))

        def write(index: int, shard: Shard) -> None:
            write_shard(shard, self.folder / shard_name(index), plan=self.plan, index=index)

        # Batches of the next shard are decoded and computed while a shard is written.
        writing: Future[None] | None = None
        with (
            closing(self._computed(todo, timing, advance)) as shards,
            ThreadPoolExecutor(1, "write") as writer,
        ):
            for computed in chain(shards, [None]):
                with timing.phase("write"):
                    if writing is not None:
                        writing.result()
                    if computed is not None:
                        writing = writer.submit(write, *computed)
        return done

    def _computed(
        self, shards: Collection[int], timing: Timing, on_rows: Callable[[int], None]
    ) -> Generator[tuple[int, Shard]]:
        """Compute shards; yield the index and the content of each.

        Raises:
            ClinitError: If the storage fails, or an image is bad and `settings.strict` is set.
        """
        plan, device = self.plan, torch.device(self.backbone.config.device)
        computed = features_of(
            self._images(shards, timing),
            lambda pixels: self.backbone.features(self.transform.normalise(pixels)),
            device,
            timing,
        )
        with closing(computed):
            for batch, found in computed:
                if self.settings.strict and batch.reasons:  # whatever has decoded it
                    row, reason = min(batch.reasons.items())
                    raise ImageError(
                        f"{self.root / self.manifest.table['path'][row]} (row {row:,}): {reason}",
                        remedy="Replace the file, or leave out `--strict` to mark its row invalid.",
                    )
                index = batch.rows[0] // plan.shard_rows
                rows = plan.rows(index)
                first, last = batch.rows[0] - rows.start, batch.rows[-1] + 1
                if not first:
                    features = np.zeros((len(rows), *found.shape[1:]), dtype=np.float32)
                    reasons: dict[int, str] = {}
                features[first : last - rows.start] = found.numpy()
                reasons |= {row - rows.start: why for row, why in batch.reasons.items()}
                on_rows(len(batch.rows))
                if last == rows.stop:
                    if index == min(shards):
                        self._refuse_wrong_root(rows, reasons)
                    labels = self.manifest.table["label"][rows.start : last].to_numpy()
                    yield index, assemble(features, labels, reasons, dtype=plan.dtype)

    def _images(self, shards: Iterable[int], timing: Timing) -> Generator[ImageBatch]:
        """Yield batches of the images of `shards`; no batch contains images of two shards."""
        size, look, paths = self.plan.batch_size, self.on_image, self.manifest.table["path"]
        decoder = Decoder(
            images=images_of(self.manifest.table, self.root),
            transform=self.transform,
            workers=self.settings.threads,
            max_pixels=self.settings.max_pixels,
            pin_memory=self.backbone.config.device.startswith("cuda"),
            view=self.view,
            for_device=self.settings.decoder == "cuda",
            retreats=timing.retreats,
            look=None if look is None else lambda row, content: look(paths[row], content),
        )
        rows = (
            range(start, min(start + size, rows.stop))
            for rows in map(self.plan.rows, shards)
            for start in range(rows.start, rows.stop, size)
        )
        with closing(decoder.batches(rows)) as batches:
            while True:
                waited = Stopwatch()
                batch = next(batches, None)
                if batch is None:
                    return
                timing.add_wait(waited.total, read=batch.read_s, decode=batch.decode_s)
                yield batch

    def _refuse_wrong_root(self, rows: range, reasons: Mapping[int, str]) -> None:
        """Stop if all files are missing: then probably `root` is wrong."""
        if len(reasons) < len(rows) or set(reasons.values()) != {MISSING}:
            return
        # A sample of all rows, so that every shard and every process decides alike.
        paths = self.manifest.table["path"]
        sample = paths.gather_every(max(1, len(paths) // _SAMPLE))
        if not any(exists(self.root / path) for path in sample):
            raise ManifestError(
                f"{self.root} contains none of the {len(rows):,} images from {paths[rows.start]}"
                " on",
                remedy="Give the folder that the paths of the manifest start from with `--root`.",
            )

    def _summarise(self, run: RunFacts) -> None:
        # Only one process at a time: the one that wrote the last shard is also the last to read.
        with _alone(self.folder / SUMMARY_FILE):
            write_summary(self.folder, self.plan, self.manifest, self.named, run)

    def _judge_again(self, finished: CacheSplit, facts: RunFacts) -> None:
        """Update the summary of a complete split with this command's images, weights and head.

        The accuracy of the head is computed again if its weights or class names have changed since,
        if the summary of an earlier version lacks their digests, or if the user names the rows.
        """
        told = finished.summary
        run = replace(told.run, root=facts.root, weights=facts.weights)
        if self.named.source != NAMED_EARLIER:
            run = replace(run, head_classes=facts.head_classes)
        judged = {"tensors": told.head.tensors, "names": told.head.names}
        is_named = self.settings.head_classes is not None
        if is_named or judged != self.named.digests or run != told.run:
            self._summarise(run)

    def _facts(self, computed: int, timing: Timing, started: str) -> RunFacts:
        weights = self.backbone.config.weights
        return RunFacts(
            root=str(self.root.absolute()),
            weights=None if weights is None else str(weights.absolute()),
            head_classes=self.named.file,
            started=started,
            device=self.backbone.config.device,
            workers=self.settings.threads,
            max_pixels=self.settings.max_pixels,
            computed_rows=computed,
            images_per_s=computed / timing.busy if timing.busy else None,
            seconds=dict(timing.seconds),
            shares=timing.shares(),
            bound=timing.bound,
            retreats=dict(timing.retreats),
            versions={name: version(name) for name in ("clinit", "torch", "timm", "h5py")},
            command=self.settings.command,
        )


def compiled_alike(runs: Sequence[SplitRun]) -> list[SplitRun]:
    """Return runs of one network, which is compiled if that is faster.

    If a plan exists, it decides; `settings.compile` overrides both.
    """
    first = runs[0]
    begun = [Plan.read(run.folder).compiled for run in runs if exists(run.folder / PLAN_FILE)]
    wanted = first.settings.compile
    if begun and wanted == "auto":
        wanted = "on" if begun[0] else "off"
    rows = {run.folder / shard_name(n): run.plan.rows(n) for run in runs for n in run._shards}
    backbone = on_its_way(
        first.backbone,
        first.transform,
        wanted,
        batch_size=first.plan.batch_size,
        images=sum(len(rows[path]) for path in rows if not exists(path)),
        on_note=lambda note: first.observer(Noted(note)),
    )
    compiled = backbone.program is not None
    return [replace(r, backbone=backbone, plan=replace(r.plan, compiled=compiled)) for r in runs]
