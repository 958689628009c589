"""`clinit head`: heads made from a whole cache, and the statistics in place of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, out as terminal, say
from clinit.cli.frame.model_source import check_file
from clinit.cli.frame.options import AsJson, CacheArgument, MemoryOption, Overwrite, described
from clinit.cli.frame.process import claimed_head, keeps
from clinit.cli.frame.progress import doing, training_progress
from clinit.cli.frame.results import print_content
from clinit.cli.frame.run_data import check_caches, tell_near
from clinit.cli.frame.study_options import takes
from clinit.headtrain.probe.settings import AlignConfig, ProbeConfig
from clinit.words import number_of

app = typer.Typer(no_args_is_help=True, help="Fit and align heads on all rows of a cache.")
_KEPT = "No partial file is left: the file is written completely or not at all."


@app.command()
@keeps(_KEPT)
@takes("config", ProbeConfig)
def fit(
    cache: CacheArgument,
    config: ProbeConfig,
    out: Annotated[
        Path | None,
        described(
            "Head file to write, .safetensors or .npz, for commands with --head.", "FILE", "no file"
        ),
    ] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Fit a head to the classes of a cache, and measure it: a linear probe.

    Tries each `--c` on a held-out part of the training rows, fits a head with the
    best of them to all training rows, and measures it once on the validation rows.
    The protocol is printed with the accuracy. Write the head for a
    network without a classifier (DINO, SigLIP, CLIP), or if the head in the cache is
    for other classes.

    clinit head fit caches/base --out base-head.safetensors
    """
    if out is not None:
        check_file(out, "out", ".safetensors", ".npz")
    elif overwrite:
        raise typer.BadParameter("--overwrite has no effect without --out")
    check_caches(cache)
    from clinit.analysis.report.tables import accuracy_lines, grid_table
    from clinit.extract.cache.head import write_head
    from clinit.headtrain.probe.protocol import probe
    from clinit.headtrain.protocol.stream.source import read_source

    with claimed_head(out, overwrite=overwrite) if out is not None else nullcontext():
        with doing("Reading the features …"):
            source = read_source(cache)
        tell_near(source.class_names, (), "", "")
        with training_progress() as observer:
            found = probe(source, config, observer=observer)
        if out is not None:
            write_head(found.head, out)
    if as_json:
        print_content(found.content())
        return
    say(f"{cache}: {found.protocol}")
    for text in found.notes:
        note(text)
    if found.grid:
        terminal.print(grid_table(found))
    for line in accuracy_lines(found):
        say(line)
    if out is not None:
        say(f"Head at {out}; `clinit train-head --head {out}` starts from it")


@app.command()
@keeps(_KEPT)
@takes("config", AlignConfig)
def align(
    cache: Annotated[Path, typer.Argument(help="Feature cache of the base classes.")],
    out: Annotated[Path, described("Head file to write, .safetensors.", "FILE")],
    config: AlignConfig,
    head: Annotated[
        Path | None, described("Head file to start from.", "FILE", "the head in the cache")
    ] = None,
    views: Annotated[
        int | None,
        described(
            "Views (`clinit extract --views`) to train on in turn; 0: plain features.",
            default="all in the cache",
            min=0,
        ),
    ] = None,
    memory: MemoryOption = None,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Fine-tune (align) the head of the base classes with the loss of later runs.

    The logits of a head trained with cross entropy are far from the targets of
    squared error. Use the result with `clinit train-head --loss mse --head FILE`.
    """
    check_file(out, "out", ".safetensors")
    check_caches(cache, head=head)
    with claimed_head(out, overwrite=overwrite), training_progress() as observer:
        from clinit.extract.cache.head import write_head
        from clinit.extract.cache.read import open_cache
        from clinit.headtrain.probe import align as alignment
        from clinit.headtrain.protocol.stream.source import read_sources, starting_head

        with doing("Reading the feature cache …"):
            chosen = alignment.choose_views(open_cache(cache), views)
            (source,) = read_sources(cache, memory=memory)
        for text in source.notes:
            note(text)
        start, _ = starting_head(source, head, observer)
        aligned = alignment.align(source, start, config, chosen, observer=observer)
        write_head(aligned, out)
    _show(aligned.alignment or {})
    say(f"Head at {out}")


def _show(facts: Mapping[str, Any]) -> None:
    losses, views = facts["loss_by_epoch"], facts["views"]
    seen = f"{number_of(views, 'view')} (seed {facts['view_seed']})" if views else "plain images"
    say(
        f"{facts['loss']} loss {losses[0]:.4g} in the first epoch, {losses[-1]:.4g} in the last,"
        f" on {facts['train_rows']:,} rows, {seen}"
    )
    if facts["top1_before"] is not None:
        say(
            f"Top-1 on {facts['val_rows']:,} validation rows: {facts['top1_before']:.2f} % before,"
            f" {facts['top1_after']:.2f} % after"
        )
