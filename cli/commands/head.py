"""`clinit head fit`: fit a head to the classes of a cache, of any backbone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clinit.cli.frame.claim import claimed_head
from clinit.cli.frame.console import note, say
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import CacheArgument, Overwrite, described
from clinit.cli.frame.progress import counting, doing
from clinit.cli.frame.run_data import check_caches, tell_near

if TYPE_CHECKING:
    from clinit.extract.cache.head import Head

HeadFit = Literal["logistic", "ridge", "lda"]

app = typer.Typer(no_args_is_help=True, help="Fit a head to the classes of a cache.")


@app.callback()
def head() -> None:
    """Fit a head to the classes of a cache."""


@app.command()
@keeps("No partial file is left: the file is written completely or not at all.")
def fit(
    cache: CacheArgument,
    out: Annotated[Path, described("Head file to write, .safetensors or .npz.", "FILE")],
    method: Annotated[
        HeadFit,
        described(
            "Logistic regression, with a penalty chosen on held-out rows; or least squares (ridge)"
            " or linear discriminants (lda), in one pass."
        ),
    ] = "logistic",
    overwrite: Overwrite = False,
) -> None:
    """Fit a head to the training rows of a cache: a row for each of its classes.

    Use it for a network without a classifier (DINO, SigLIP, CLIP), or if the head
    in the cache is for other classes.

    clinit head fit caches/base --out base-head.safetensors
    """
    if out.suffix not in (".safetensors", ".npz"):
        raise typer.BadParameter(f"--out must be a .safetensors or .npz file, got {out}")
    check_caches(cache)
    with claimed_head(out, overwrite=overwrite):
        from clinit.extract.cache.head import write_head

        write_head(_fitted(cache, method), out)
    say(f"Head at {out}; `clinit train-head --head {out}` starts from it")


def _fitted(cache: Path, by: HeadFit) -> Head:
    from clinit.extract.cache.head import head_rows, top1
    from clinit.headtrain.probe.fit_head import fit_head
    from clinit.headtrain.protocol.stream.source import read_source

    with doing("Reading the features …"):
        source = read_source(cache)
    for text in source.notes:
        note(text)
    tell_near(source.class_names, (), "", "")
    titles = {"grid": "Fitting the head: penalties", "refit": "Fitting the head: all rows"}
    with counting("searches") as count:  # shows nothing for methods without a search
        found, notes = fit_head(
            source, by, progress=lambda stage, done, total: count(titles[stage], done, total)
        )
    told = found.origin or {}
    settings = {"c": "C", "lam": "lambda", "shrinkage": "shrinkage", "temperature": "temperature"}
    words = [f"{word} {told[name]:.3g}" for name, word in settings.items() if name in told]
    say(f"Head of {found.num_classes:,} classes: {told['fitted']}, {', '.join(words)}")
    train, val = (
        top1(found, part.features, part.labels, head_rows(found, part.class_names))
        for part in (source.train, source.val)
    )
    say(
        f"top-1 of the head on the {train.total:,} rows that it was fitted to:"
        f" {train.percent:.2f} %"
    )
    if val.percent is not None:
        say(f"top-1 of the head on {val.total:,} rows of val: {val.percent:.2f} %")
    for text in notes:
        note(text)
    return found
