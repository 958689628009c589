"""`clinit cache`: show, verify and import feature caches, and record groups of images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clinit.cli.frame.console import out, say, warn
from clinit.cli.frame.context import command_line
from clinit.cli.frame.options import CacheArgument, described
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import counting
from clinit.cli.frame.results import tell_headless
from clinit.cli.frame.study_options import takes
from clinit.extract.work.options import ImportConfig
from clinit.files.paths import check_writable
from clinit.words import examples, number_of, visible

if TYPE_CHECKING:
    from clinit.extract.cache.summary import HeadFacts


app = typer.Typer(no_args_is_help=True, help="Show, verify, import and group feature caches.")


@app.command()
def show(cache: CacheArgument) -> None:
    """Show the contents of a cache and the settings that its features depend on."""
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
    table.add_row("size", *(f"{_megabytes(s.path):,.1f} MB" for s in splits))
    if opened.head is not None:
        table.add_row("top-1 of the stored head", *(_top1(s.summary.head) for s in splits))
    if splits[0].fingerprint.is_imported:
        files = [s.summary.run.features for s in splits]
        table.add_row("imported from", *(visible(Path(f.path).name) if f else "" for f in files))
    out.print(table)
    for name, value in splits[0].fingerprint.without_rows.fields.items():
        if name != IMPORTED:  # this field only marks features as imported
            say(f"{name:>12}  {value}")
    if opened.head is None:
        say(f"{'head':>12}  none")
    else:
        named = "named" if opened.head.class_names else "without names"
        by = (opened.head.origin or {}).get("fitted")
        fitted = f", fitted: {by}" if by else ""
        say(f"{'head':>12}  {number_of(opened.head.num_classes, 'row')}, {named}{fitted}")
    if views := opened.views:
        seed, megabytes = views[0].fingerprint.view_seed, sum(_megabytes(v.path) for v in views)
        say(f"{'views':>12}  {len(views)} of train, seed {seed}, {megabytes:,.1f} MB")
        say(f"{'':>12}  {views[0].fingerprint.augmentation}")


def _megabytes(folder: Path) -> float:
    """Return the size of the shards in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.h5")) / 1e6


def _top1(head: HeadFacts) -> str:
    percent = head.top1.percent
    if percent is None:
        return "its rows have no names" if head.class_names == "unknown" else "other classes"
    return f"{percent:.2f} % of {head.total:,}"


@app.command()
def verify(cache: CacheArgument) -> None:
    """Compare everything in a cache with its digests: features, manifests, head and views.

    The first problem of each part is printed, and the recorded commands that write
    damaged parts again.
    """
    from clinit.errors import CacheError, ClinitError
    from clinit.extract.cache.verify import recorded_commands, verify as check

    found: dict[Path, ClinitError] = {}
    with counting() as count:
        for place, problem in check(cache, on_shard=count):
            say(f"  {problem}")
            found[place] = problem
    if found:
        remedies = [problem.remedy for problem in found.values()]
        remedies += (f"The command was: {each}" for each in recorded_commands(cache, found))
        raise CacheError(
            f"{number_of(len(found), 'problem')} in {cache}",
            remedy="\n".join(dict.fromkeys(remedies)),
        )
    say("Nothing has changed since the cache was written.")


@app.command("import")
@keeps("Written shards are kept: run the same command again to resume.")
@takes("config", ImportConfig)
def import_(
    features: Annotated[Path, typer.Argument(help="Features: .npy, .npz or .safetensors.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            help="File of the labels: integers from 0, or texts.",
            show_default="the file of the features",
        ),
    ] = None,
    *,
    out: Annotated[Path, described("Folder of the cache.", "FOLDER", default=False)],
    config: ImportConfig,
) -> None:
    """Make a cache of features that another program computed: CLIP, DINO, audio, text.

    Run the command once per split, with the same --backbone and --classes; run
    it again to resume a killed import. Base classes need a head: give its file to
    `clinit train-head --head` and `clinit diagnose --head`, or fit one with
    `clinit head fit`.
    """
    from clinit.extract.work.import_features import import_features

    config = replace(config, command=command_line())
    check_writable(out)
    with counting("rows") as count:
        written = import_features(features, labels, out, config, on_rows=partial(count, "Writing"))
    say(
        f"{number_of(written.num_rows, 'row')} of"
        f" {number_of(len(set(written.labels.tolist())), 'class')},"
        f" {written.dim} x {written.dtype}, at {written.path}"
    )
    if lost := written.num_rows - written.num_valid:
        warn(f"{number_of(lost, 'row')} left out: not finite, or beyond the range of float32")
    if empty := written.manifest.empty_classes:
        of = number_of(len(written.class_names), "class")
        warn(f"{len(empty):,} of {of} without a row: {examples(empty)}")
    if config.stored == "train":
        tell_headless(out)


@app.command()
@keeps("No partial file is left: the file is written completely or not at all.")
def group(
    cache: CacheArgument,
    table: Annotated[
        Path | None,
        typer.Argument(
            help="CSV or Parquet file with a row per image: `path`, as in the manifest, and the"
            " column of the groups. For imported features, `path` may be absent if the rows have"
            " the order of the imported file."
        ),
    ] = None,
    column: Annotated[
        str | None,
        described("Column with equal values for images of one group: video, patient, burst."),
    ] = None,
    groups: Annotated[
        Literal["found", "none"] | None,
        described("Groups as found in the features, or no groups, in place of a column."),
    ] = None,
) -> None:
    """Record groups of training images that repeat each other, such as frames of a video.

    When new head rows are computed, a group counts as one image and is left out
    as a whole. Without recorded groups, clinit looks in extracted features for
    copies, crops and frames, which are nearer than distinct images are by chance;
    imported features have no groups.

    clinit cache group caches/scenes frames.csv --column video

    clinit cache group caches/imported --groups found
    """
    import numpy as np

    from clinit.extract.cache.groups import GROUPS_FILE, record_groups, write_groups
    from clinit.extract.cache.read import open_cache, stored_features
    from clinit.headtrain.heads.repeats import find_groups

    if (table is None) != (column is None) or (column is None) == (groups is None):
        raise typer.BadParameter("give a table and --column, or --groups", param_hint="--groups")
    split = open_cache(cache).split("train")
    if table is not None and column is not None:
        repeating, count = write_groups(split.path, split.manifest, table, column)
    else:
        numbers = -1 - np.arange(split.num_rows)
        if groups == "found":
            rows = stored_features(split)
            numbers[split.valid] = find_groups(rows.features, rows.labels)
        repeating, count = record_groups(split.path, split.manifest, numbers, str(groups))
    how = f" by {column}" if column else " found" if groups == "found" else ""
    rows_told, of = number_of(split.num_rows, "image"), number_of(count, "group")
    repeat = "seem to repeat" if groups == "found" else "repeat"
    say(f"Of {rows_told}, {repeating:,} {repeat} other images: {of}{how}")
    say(f"Recorded in {split.path / GROUPS_FILE}: without it, nothing is recorded")
