"""`clinit cache verify`: compare a cache with its digests, and a sample of it with its images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.console import say
from clinit.cli.network_options import Workers
from clinit.cli.options import CacheArgument, DeviceOption
from clinit.cli.progress import counting
from clinit.words import number_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from clinit.extract.work.recheck import Rechecked


def verify(
    cache: CacheArgument,
    deep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Also extract this many rows of every split and view again, drawn at random, and"
            " compare the features.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the draw.")] = 0,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the images, for --deep.",
            metavar="FOLDER",
            show_default="where they were",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="File of the weights, for --deep.", metavar="FILE", show_default="where they were"
        ),
    ] = None,
    device: DeviceOption = "auto",
    workers: Workers = None,
) -> None:
    """Compare everything in a cache with its digests: features, manifests, head and views.

    The digests tell what has changed since it was written. `--deep N` tells
    whether the features are those of the images: N rows are extracted again.
    """
    with counting() as show:
        _check_digests(cache, show)
        if deep is not None:
            _check_images(cache, deep, seed, root, weights, device, workers, show)
    if deep is None:
        say("Everything is as it was written.")
    else:
        say("Everything is as it was written, and the sample is what its images give.")


def _check_digests(cache: Path, show: Callable[[str, int, int], None]) -> None:
    from clinit.errors import CacheError
    from clinit.extract.cache.verify import recorded_commands
    from clinit.extract.cache.verify import verify as check

    remedies: list[str] = []
    damaged: list[Path | None] = []
    for part in check(cache, on_shard=show):
        if part.told:
            say(part.told)
        for problem in part.problems:
            say(f"  {problem}")
            remedies.append(problem.remedy)
            damaged.append(part.folder)
    if remedies:
        count = len(remedies)
        plural = "s" if count > 1 else ""
        remedies += (f"It was: {each}" for each in recorded_commands(cache, damaged))
        raise CacheError(
            f"{count:,} problem{plural} in {cache}", remedy="\n".join(dict.fromkeys(remedies))
        )


def _check_images(
    cache: Path,
    size: int,
    seed: int,
    root: Path | None,
    weights: Path | None,
    device: str,
    workers: int | None,
    show: Callable[[str, int, int], None],
) -> None:
    from clinit.errors import CacheError
    from clinit.extract.cache.read import open_cache
    from clinit.extract.work.recheck import recheck, sample_rows
    from clinit.extract.work.recorded import Networks, images_root
    from clinit.machine import cpu_count

    opened = open_cache(cache)
    first = next(iter(opened.splits.values())).plan
    if first.fingerprint.is_imported:
        raise CacheError(
            f"the features in {cache} were imported: no image can be extracted again",
            remedy="Verify it without `--deep`.",
        )
    networks = Networks(cache, weights, device)
    different = 0
    for split in (*opened.splits.values(), *opened.views):
        rows = sample_rows(split, size, seed)
        if len(rows):
            place = images_root(cache, root, split.summary.run)
            network = networks.of(split.plan, split.summary.run)
            found = recheck(
                split, network, place, rows, workers=workers or cpu_count(), on_rows=show
            )
            _say(found, split.plan.device, network.backbone.config.device, split.plan.dtype)
            different += not found.is_same
    if different:
        raise CacheError(
            f"{different} part{'s' if different > 1 else ''} of {cache} differ from what the images"
            " give",
            remedy="The images, their order or the network are others than at extraction. If they"
            " are right now, extract into a new folder with `clinit extract`.",
        )


def _say(found: Rechecked, then: str, now: str, dtype: str) -> None:
    mark = "" if found.is_same else "  DIFFERENT"
    devices = "" if then == now else f" ({then} then, {now} now)"
    say(
        f"{found.title}: {number_of(found.num_rows, 'row')} extracted again{devices}: largest"
        f" difference {found.largest:.2g} of a row's largest feature, row {found.row:,},"
        f" {found.path}{mark}"
    )
    say(
        f"  up to {found.tolerance:.2g} is rounding: storage in {dtype}, and sums in another order"
        " in other batches or on another device"
    )
    for each in found.unreadable:
        say(f"  cannot be read now: {each}")
