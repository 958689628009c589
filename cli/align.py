"""`clinit align`: fine-tune the base head with another loss, on cached features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.claim import check_free, claimed_file, tell_replaced
from clinit.cli.completion import caches
from clinit.cli.config import ConfigOption
from clinit.cli.console import note, say
from clinit.cli.interruption import keeps
from clinit.cli.options import Memory, Overwrite
from clinit.cli.progress import doing, progress
from clinit.cli.run_data import check_caches
from clinit.cli.study_options import takes
from clinit.files.paths import check_writable
from clinit.headtrain.probe.settings import AlignConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clinit.extract.cache.head import Head
    from clinit.extract.cache.read import CacheSplit
    from clinit.headtrain.probe.align import Alignment
    from clinit.headtrain.stream.source import Source


@keeps("No half of a file is left: it is written whole or not at all.")
@takes("config", AlignConfig)
def align(
    cache: Annotated[
        Path,
        typer.Argument(
            help="Feature cache of the base classes.", show_default=False, autocompletion=caches
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Head file to write, .safetensors.", metavar="FILE", show_default=False),
    ],
    config: AlignConfig,
    head: Annotated[
        Path | None,
        typer.Option(
            help="Head file to start from.", metavar="FILE", show_default="the head in the cache"
        ),
    ] = None,
    views: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Views (`clinit extract --views`) to train on in turn; 0: plain features.",
            show_default="all in the cache",
        ),
    ] = None,
    memory: Memory = None,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Align the head of the base classes with a loss, for runs that train with it.

    Squared error aims at logits that a head trained with cross entropy does not
    have. Use the result with `clinit train-head --loss mse --head FILE`.
    """
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"--out is the head file to write, .safetensors, got {out}")
    check_caches(cache, head=head)
    check_writable(out)
    from clinit.extract.cache.head import write_head
    from clinit.extract.cache.read import open_cache
    from clinit.headtrain.probe.align import choose_views
    from clinit.headtrain.ram import peak_note
    from clinit.headtrain.stream.source import read_sources

    with claimed_file(out):
        check_free(out, overwrite=overwrite)
        tell_replaced([out], overwrite=overwrite)
        with doing("Reading the feature cache …"):
            chosen = choose_views(open_cache(cache), views)
            (source,) = read_sources(cache, memory=memory)
        for text in source.notes:
            note(text)
        if source.memory is not None:
            note(peak_note(0))
        aligned = _align(source, _start(head, source), config, chosen)
        write_head(aligned.head, out)
    _show(aligned, out)


def _start(head: Path | None, source: Source) -> Head:
    from clinit.errors import HeadError
    from clinit.extract.cache.head import read_head

    if head is not None:
        return read_head(head, dim=source.train.dim, on_note=note)
    if source.head is None:
        raise HeadError(
            f"{source.path} holds no pretrained head to align",
            remedy="Give one with --head FILE, or extract the base classes with a backbone that"
            " has a classifier.",
        )
    return source.head


def _align(
    source: Source, head: Head, config: AlignConfig, views: Sequence[CacheSplit]
) -> Alignment:
    from clinit.headtrain.probe.align import align as align_head

    with progress() as shown:
        line = shown.line("Aligning", unit="epochs")
        line.count(0, config.epochs)

        def on_epoch(done: int, loss: float) -> None:
            line.count(done, config.epochs)
            line.more = f"{config.loss} loss {loss:.4g}"

        return align_head(source, head, config, views, on_epoch=on_epoch)


def _show(aligned: Alignment, out: Path) -> None:
    facts = aligned.facts
    first, last = facts["loss_by_epoch"][0], facts["loss_by_epoch"][-1]
    views = facts["views"]
    seen = "without augmentation (0 views)"
    if views:
        seen = f"{views} view{'s in turn' if views > 1 else ''} (seed {facts['view_seed']})"
    say(
        f"{facts['loss']} loss {first:.4g} in the first epoch, {last:.4g} in the last, on"
        f" {facts['train_rows']:,} rows, {seen}"
    )
    if facts["top1_before"] is not None:
        say(
            f"Top-1 on {facts['val_rows']:,} validation rows: {facts['top1_before']:.2f} % before,"
            f" {facts['top1_after']:.2f} % after"
        )
    say(f"Head at {out}")
