"""`clinit align`: fine-tune the base head with another loss, on cached features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from clinit.cli.frame.claim import claimed_head
from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.console import note, say
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import Memory, Overwrite, described
from clinit.cli.frame.progress import doing, progress
from clinit.cli.frame.run_data import check_caches
from clinit.cli.frame.study_options import takes
from clinit.headtrain.probe.settings import AlignConfig
from clinit.words import number_of


@keeps("No partial file is left: the file is written completely or not at all.")
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
    memory: Memory = None,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Fine-tune (align) the head of the base classes with the loss of later runs.

    The logits of a head trained with cross entropy are far from the targets of
    squared error. Use the result with `clinit train-head --loss mse --head FILE`.
    """
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"--out must be a file that ends in .safetensors, got {out}")
    check_caches(cache, head=head)
    with claimed_head(out, overwrite=overwrite), progress() as shown:
        from clinit.extract.cache.head import write_head
        from clinit.extract.cache.read import open_cache
        from clinit.headtrain.probe import align as alignment
        from clinit.headtrain.protocol.stream.source import read_sources, starting_head

        with doing("Reading the feature cache …"):
            chosen = alignment.choose_views(open_cache(cache), views)
            (source,) = read_sources(cache, memory=memory)
        for text in source.notes:
            note(text)
        line = shown.line("Aligning", unit="epochs")
        line.count(0, config.epochs)

        def on_epoch(done: int, loss: float) -> None:
            line.count(done, config.epochs)
            line.more = f"{config.loss} loss {loss:.4g}"

        start, _ = starting_head(source, head, on_note=note)
        aligned = alignment.align(source, start, config, chosen, on_epoch=on_epoch)
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
