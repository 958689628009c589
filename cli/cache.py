"""`clinit cache`: look at feature caches, verify them, and record groups of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.cache_arrays import export, import_
from clinit.cli.console import out, say
from clinit.cli.extract import size_megabytes
from clinit.cli.interruption import keeps
from clinit.cli.network_options import Workers
from clinit.cli.options import CacheArgument, DeviceOption
from clinit.cli.progress import counting
from clinit.words import number_of, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from clinit.extract.cache.read import CacheSplit
    from clinit.extract.cache.summary import HeadFacts, RunFacts
    from clinit.extract.work.recheck import Rechecked


@keeps("No half of a file is left: it is written whole or not at all.")
def group(
    cache: CacheArgument,
    table: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet file with a row per image: `path`, as in the manifest, and the"
            " column of the groups. Without `path`: a row per imported feature, in their order.",
            show_default=False,
        ),
    ],
    column: Annotated[
        str,
        typer.Option(
            help="Column whose equal values belong together: video, patient, burst.",
            show_default=False,
        ),
    ],
) -> None:
    """Record which training images of a class belong together.

    Images of one group count as one where new head rows start, and are left out
    together. Groups that are recorded take the place of those that are found in
    the features: copies, crops and frames that stand by themselves.

    clinit cache group caches/scenes frames.csv --column video
    """
    from clinit.extract.arrays.groups import write_groups
    from clinit.extract.cache.read import open_cache

    split = open_cache(cache).split("train")
    repeating, groups = write_groups(split.path, split.manifest, table, column)
    rows = number_of(split.num_rows, "image")
    say(f"Of {rows}, {repeating:,} repeat others: {number_of(groups, 'group')} by {column}")


app = typer.Typer(
    no_args_is_help=True,
    help="Show, verify, import, export and group feature caches.",
)


@app.command()
def show(cache: CacheArgument) -> None:
    """Show what a cache holds and what its features depend on."""
    from rich.table import Table
    from rich.text import Text

    from clinit.extract.cache.fingerprint import IMPORTED
    from clinit.extract.cache.read import open_cache

    opened = open_cache(cache)
    table = Table("", *opened.splits, title=Text(visible(str(cache))), title_justify="left")
    splits = list(opened.splits.values())
    table.add_row("data set", *(visible(s.plan.dataset) for s in splits))
    table.add_row("rows", *(f"{s.num_rows:,}" for s in splits))
    table.add_row("without features", *(f"{s.num_rows - s.num_valid:,}" for s in splits))
    table.add_row(
        "classes", *(f"{len(set(s.labels.tolist())):,} of {len(s.class_names):,}" for s in splits)
    )
    table.add_row("features", *(f"{s.dim} x {s.dtype}" for s in splits))
    table.add_row("shards", *(f"{s.plan.num_shards:,}" for s in splits))
    table.add_row("size", *(f"{size_megabytes(s.path):,.1f} MB" for s in splits))
    table.add_row("top-1 of the stored head", *(_top1(s.summary.head) for s in splits))
    table.add_row("images/s", *(_rate(s.summary.run) for s in splits))
    table.add_row("bound", *(visible(str(s.summary.run.bound or "")) for s in splits))
    if splits[0].fingerprint.is_imported:
        table.add_row("imported from", *(visible(_source(s.summary.run)) for s in splits))
    out.print(table)
    for name, value in splits[0].fingerprint.without_rows.fields.items():
        if name != IMPORTED:  # its value is a mark, the same whatever the files were
            say(f"{name:>12}  {value}")
    if opened.head is None:
        say(f"{'head':>12}  none")
    else:
        named = "named" if opened.head.class_names else "without names"
        by = (opened.head.origin or {}).get("fitted")
        fitted = f", fitted: {by}" if by else ""
        say(f"{'head':>12}  {number_of(opened.head.num_classes, 'row')}, {named}{fitted}")
    _print_views(opened.views)


def _print_views(views: Sequence[CacheSplit]) -> None:
    if not views:
        return
    fingerprint, megabytes = views[0].fingerprint, sum(size_megabytes(v.path) for v in views)
    say(f"{'views':>12}  {len(views)} of train, seed {fingerprint.view_seed}, {megabytes:,.1f} MB")
    say(f"{'':>12}  {fingerprint.augmentation}")


def _top1(head: HeadFacts) -> str:
    percent = head.top1.percent
    if percent is None:
        return "its rows have no names" if head.class_names == "unknown" else "other classes"
    return f"{percent:.2f} % of {head.total:,}"


def _source(run: RunFacts) -> str:
    if run.features is not None:
        return Path(run.features.path).name
    return number_of(len(run.merged), "cache") if run.merged else ""


def _rate(run: RunFacts) -> str:
    return "" if run.images_per_s is None else f"{run.images_per_s:,.0f}"


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


app.command()(verify)
app.command("import")(import_)
app.command()(export)
app.command()(group)
