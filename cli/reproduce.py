"""`clinit reproduce`: tables of the paper, made by one command and shown beside its numbers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.completion import tables
from clinit.cli.console import note, out, say
from clinit.cli.context import Context
from clinit.cli.interruption import keeps
from clinit.cli.reproduce_runs import Plan, runs_of, show_commands
from clinit.cli.reproduce_steps import (
    Places,
    Step,
    check_images,
    count_images,
    digits_of,
    steps,
)
from clinit.cli.run_data import check_caches
from clinit.cli.typed import runner
from clinit.files.paths import check_writable
from clinit.words import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from clinit.analysis.paper.reproduction import Collapse, Reproduction
    from clinit.analysis.paper.tables import Table
    from clinit.cli.typed import Run
    from clinit.headtrain.study.study import Study

SMALL_EPOCHS = 5


@keeps("What is computed is kept: the same command goes on where this one stopped.")
def reproduce(
    context: Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="first-task (Table 1), last-layer (2), top-layers (3), cl-methods (4), resnet18"
            " (5), data-orders (6), forward-transfer (7), cost (8), neural-collapse, figures; or"
            " all.",
            show_default=False,
            autocompletion=tables,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for caches, runs, tables and figures.", metavar="FOLDER"
        ),
    ] = Path("reproduction"),
    imagenet: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the images of ImageNet-1K.", metavar="FOLDER", show_default=False
        ),
    ] = None,
    places: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the images of Places365-Standard.", metavar="FOLDER", show_default=False
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Any feature cache of base classes instead, with a head.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    new: Annotated[
        Path | None,
        typer.Option(
            help="Any feature cache of new classes, of the same backbone.", metavar="FOLDER"
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of ConvNeXtV2-Femto, or of the backbone of the given caches.",
            metavar="FILE",
            show_default="timm's download",
        ),
    ] = None,
    views: Annotated[
        int,
        typer.Option(
            min=0,
            help="Random crops of each training image for the alignment with squared error; each"
            " is a pass of the backbone over ImageNet-1K. The paper draws one an epoch.",
        ),
    ] = 50,
    scale_down: Annotated[
        bool,
        typer.Option(
            "--scale-down",
            help="A reduced setting: a fiftieth of the iterations, a hundredth of the buffers,"
            " batches of 64, 2 tasks, one plastic block, at most 2 seeds; on the given caches, or"
            " on handwritten digits (all: less than a minute on two CPU cores).",
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds.", show_default="the recipe's"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUES",
            help="Change fields of all runs, as words of `clinit sweep`; repeatable:"
            " --set buffer,iterations='600,600;2400,1200'.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the commands, their time and disk; run nothing."),
    ] = False,
) -> None:
    """Make tables of the paper and show them beside its numbers, with what differs and why.

    Features are extracted, the head for squared error is aligned and heads are
    trained as far as that is not done; every command is printed as you would
    type it. Each table is also written below OUT/tables as JSON, CSV, Markdown
    and LaTeX, figures below OUT/figures.

    clinit reproduce last-layer --imagenet /data/imagenet --places /data/places
    """
    from clinit.analysis.paper.tables import TABLES

    if (base is None) != (new is None):
        raise typer.BadParameter("--base and --new go together: give both caches or none")
    check_caches(base, new)
    chosen = [table for table in TABLES if table.name in _known(names)]
    for place in (folder, folder / "tables", folder / "figures"):  # written at the very end
        check_writable(place / "any")
    run = runner(context)
    if scale_down and base is None:
        base, new = _digits(folder, run, dry_run=dry_run)
    where = Places(
        out=folder,
        roots={"imagenet1k": imagenet, "places365": places},
        caches=None if base is None or new is None else (base, new),
        weights=weights,
        views=views,
        epochs=SMALL_EPOCHS if scale_down else None,
    )
    plan = Plan(tuple(settings or ()), seeds, scale_down)
    plans = {table.name: plan.studies(table) for table in chosen}
    if dry_run:
        show_commands(chosen, replace(where, counts=count_images(where.caches, where.roots)), plan)
        return
    check_images([step for table in chosen for step in _left(table, where, plan)], where)
    made: list[Reproduction] = []
    for table in chosen:
        for step in _left(table, where, plan):
            say()
            run(*step.words)
        made += _shown(table, where, plan, plans[table.name])
    if len(made) > 1:
        out.print(_summary(made))


def _left(table: Table, where: Places, plan: Plan) -> list[Step]:
    """Return the steps of a table that are not done."""
    planned = steps(table, where, plan.words(table), plan.studies(table))
    return [step for step in planned if not step.is_done]


def _known(names: Sequence[str]) -> list[str]:
    """Return the names, `all` replaced by all of them.

    Raises:
        BadParameter: If one is unknown.
    """
    from clinit.analysis.paper.tables import NAMES

    for name in names:
        if name not in (*NAMES, "all"):
            raise typer.BadParameter(
                f"there is no table {name!r}; known are {listed((*NAMES, 'all'))}"
                + did_you_mean(name, (*NAMES, "all"), lead=". ")
            )
    return list(NAMES) if "all" in names else list(names)


def _digits(folder: Path, run: Run, *, dry_run: bool) -> tuple[Path, Path]:
    """Return the caches of the digits below `folder`, made if they are not there."""
    from clinit.cli.demo import make_digits

    place = folder / "digits"
    made = place / ".made"
    if not dry_run and not made.exists():
        shutil.rmtree(place, ignore_errors=True)  # what a killed call left
        place.mkdir(parents=True)
        make_digits(place, run)
        made.touch()
    return digits_of(folder)


def _shown(table: Table, where: Places, plan: Plan, studies: Sequence[Study]) -> list[Reproduction]:
    """Print a table and write its files."""
    from clinit.analysis.paper.files import FORMATS
    from clinit.analysis.paper.reproduction import reproduction
    from clinit.analysis.paper.terminal import terminal
    from clinit.extract.cache.read import open_cache
    from clinit.files.commit import commit_file

    runs = runs_of(where.runs(table), studies) if table.runs else ()
    if table.name == "figures":
        from clinit.cli.reproduce_runs import draw

        draw(where, runs, plan)
        return []
    features = open_cache(where.sides(table)[0]).split("train").fingerprint.fields
    found = reproduction(table, runs, _collapse(table, where), features=features)
    out.print(terminal(found))
    folder = where.out / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in FORMATS.items():
        content = partial(_write, text(found).encode())
        commit_file(folder / f"{table.name}.{ending}", content)
    say()
    note(f"written: {folder / table.name}.{{{','.join(FORMATS)}}}")
    return [found]


def _write(content: bytes, draft: Path) -> None:
    draft.write_bytes(content)


def _collapse(table: Table, where: Places) -> Collapse | None:
    """Measure the pretrained head and the aligned one, where the table has such numbers."""
    from clinit.analysis.paper.reproduction import OF_HEAD
    from clinit.api import diagnose
    from clinit.extract.cache.head import read_head

    if not set(OF_HEAD) & set(table.metrics):
        return None
    base, _ = where.sides(table)
    return {
        "ce": diagnose(base, split="train").content(),
        "mse": {
            **diagnose(base, where.aligned, split="train").content(),
            "alignment": read_head(where.aligned).alignment,
        },
    }


def _summary(made: Sequence[Reproduction]) -> RenderableType:
    """Return how many of the paper's effects hold, by table."""
    from rich.console import Group
    from rich.text import Text

    from clinit.analysis.report.table import Column, Table

    lines = []
    for found in made:
        verdicts = [each.effect.verdict for each in found.comparisons]
        counts = [str(verdicts.count(name)) for name in ("holds", "open", "opposite")]
        is_known = any(verdict != "-" for verdict in verdicts)
        lines.append([found.table.name, *(counts if is_known else ["-"] * 3)])
    heads = ("hold", "open", "other way round")
    return Group(
        Text("\nEffects of the paper: which of two starts is better", style="bold"),
        Table([Column("table"), *(Column(head, "number") for head in heads)], [lines]).rich(),
        Text("All pairs of starts, by A_new and A_all (forward-transfer: A_fw).", style="dim"),
    )
