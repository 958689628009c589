"""`clinit cache`: look at feature caches and verify them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clinit.cli.cache_export import export
from clinit.cli.cache_group import group
from clinit.cli.cache_import import import_
from clinit.cli.cache_verify import verify
from clinit.cli.console import out, say
from clinit.cli.extract_output import size_megabytes
from clinit.cli.options import CacheArgument
from clinit.words import number_of, visible

if TYPE_CHECKING:
    from clinit.extract.cache.read import CacheSplit
    from clinit.extract.cache.summary import HeadFacts, RunFacts

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


app.command()(verify)
app.command("import")(import_)
app.command()(export)
app.command()(group)


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
