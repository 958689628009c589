"""`clinit extract`: make a feature cache from images; print the result of each split and view."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, say, tell, warn
from clinit.cli.frame.context import command_line
from clinit.cli.frame.model_source import kept
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import doing, training_progress
from clinit.cli.frame.results import tell_headless
from clinit.cli.frame.study_options import takes
from clinit.errors import ImageError
from clinit.extract.cache.plan import WHOLE, Part
from clinit.extract.work.options import ExtractOptions
from clinit.files.paths import check_writable, exists
from clinit.observer import Doing
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.work.split_run import SplitResult


@keeps("Finished shards are kept: run the same command again to resume.")
@takes("options", ExtractOptions)
def extract(options: ExtractOptions, config_file: ConfigOption = None) -> None:
    """Run a frozen backbone once over a data set and store its pooled features.

    The pretrained classifier becomes the head of the cache; if the network has
    none, `clinit head fit` fits a head to the features. To resume an interrupted
    run, run the same command again. Several processes, on any hosts that share the
    folder, divide the work with --part 1/4 to 4/4. The row of an unreadable image
    is marked invalid, and the image is listed at the end. If the machine fails
    (memory, permissions, storage), the run stops and marks no row.

    clinit extract --dataset imagenet1k --root /data/imagenet --out caches/imagenet1k
    """
    if (options.dataset is None) == (options.manifest is None):
        raise typer.BadParameter("give either --dataset or --manifest")
    if options.part is not None:
        Part.parse(options.part)  # refuse a wrong part before images are listed
        if options.ray is not None:
            raise typer.BadParameter("--part and --ray exclude each other: give one")
    check_writable(options.out)
    with doing("Scanning …") as line:
        scans = options.scans(
            lambda event: line.update(event.what) if isinstance(event, Doing) else tell(event)
        )
    manifests = {split: each.manifest for split, each in scans.items()}
    from clinit.extract.network.hub import check_download

    check_download(options.backbone, options.weights)
    from clinit.extract.work.run import extract_as_asked

    with kept([options.out]), training_progress() as observer:
        options = replace(options, command=command_line())
        _print_results(extract_as_asked(options, manifests, observer))
    if options.labels is not None:
        from clinit.extract.cache.groups import record_scanned

        record_scanned(options.out, scans.values(), options.labels)
    if not exists(options.out / "head.safetensors"):
        tell_headless(options.out)


_BAD_IMAGES_SHOWN = 20


def _print_results(results: Iterable[SplitResult]) -> None:
    """Print each result when it is available, and what other parts still have to compute."""
    listed: set[int] = set()
    """Rows without features in the train split, which are not listed again for its views."""
    is_complete = True
    for result in results:
        if not result.is_complete:
            is_complete = False
            _print_part(result)
            continue
        is_view = result.plan.fingerprint.view is not None
        _print_split(result, listed if is_view else set())
        if result.plan.split == "train" and not is_view:
            listed = {entry.row for entry in result.split.summary.invalid}
    if not is_complete:
        note(
            "the cache is complete when all parts are; when none is running, the same command"
            " without --part computes missing shards"
        )


def _print_part(result: SplitResult) -> None:
    say(
        f"{result.plan.title}, part {result.part}: {result.shards_there:,} of"
        f" {result.plan.num_shards:,} shards are finished, at {result.path}"
    )
    done = f"{number_of(result.computed_rows, 'image')} computed"
    say(f"  {done if result.computed_rows else 'this part was complete: every shard verified'}")
    _print_again(result)
    if result.problem:
        warn(f"{result.problem}: run its part, or the command without --part, again")


def _print_split(result: SplitResult, listed: Collection[int]) -> None:
    split, run = result.split, result.run
    if split.summary.invalid and not split.num_valid:
        first = split.summary.invalid[0]
        raise ImageError(
            f"no image of {split.path} has features; {first.path}: {first.reason}",
            remedy=f"Correct this, remove {split.path}, then run the same command again.",
        )
    say(
        f"{split.plan.title}: {number_of(split.num_rows, 'image')}, features"
        f" {split.num_valid:,} x {split.dim} {split.dtype} in"
        f" {number_of(split.plan.num_shards, 'shard')} at {split.path}"
    )
    if run is not None:
        found = split.num_rows - result.computed_rows
        more = f" ({found:,} found from an earlier run)" if found else ""
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in run.shares.items())
        say(
            f"  {number_of(result.computed_rows, 'image')} at {run.images_per_s or 0:,.0f}"
            f" images/s{more}: {shares}; the bound is {run.bound}"
        )
        for what, count in run.retreats.items():
            note(f"{count:,} {what}")
    else:
        part = "" if result.part == WHOLE else f" of part {result.part}"
        say(f"  already complete: every shard{part} verified, nothing to do")
    if split.dtype != split.plan.dtype:
        note("some features are too large or too small for float16: their shards are in float32")
    _print_again(result)
    _print_top1(result)
    entries = [entry for entry in split.summary.invalid if entry.row not in listed]
    if entries:
        warn(f"{len(entries):,} of {split.num_rows:,} images have no features:")
    for entry in entries[:_BAD_IMAGES_SHOWN]:
        say(f"    row {entry.row:,}  {entry.path}: {entry.reason}")
    if len(entries) > _BAD_IMAGES_SHOWN:
        say(f"    … all of them are listed in {split.path / 'cache.json'}")


def _print_again(result: SplitResult) -> None:
    for reason in result.replaced_shards:
        note(f"computed again: {reason}")


def _print_top1(result: SplitResult) -> None:
    from clinit.extract.work.recorded import ASSUMED

    head = result.split.summary.head
    names = head.class_names.replace(ASSUMED, f"the weights name none, taken for {ASSUMED}")
    if head.tensors is None:
        told = result.plan.fingerprint
        say(f"  no head: {told.output or 'pooled'} features of {told.backbone}")
    elif names == "unknown":
        note(
            "the rows of the stored head have no class names, so its accuracy is unknown and"
            " `clinit train-head` cannot use it: name the rows with --head-classes"
        )
    else:
        found = "has none of these classes"
        if (percent := head.top1.percent) is not None:
            found = f"top-1 {percent:.2f} % of {head.total:,} images"
        say(f"  stored head: {found} (its classes: {names})")
