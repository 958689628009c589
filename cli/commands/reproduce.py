"""Run whole pipelines: `clinit demo`, and `clinit reproduce` for the tables of the paper.

Both can run on handwritten digits, which need no data.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from clinit.analysis.paper.tables import NAMES, TABLES
from clinit.cli.frame.console import note, out, say
from clinit.cli.frame.context import Context, Run, runner
from clinit.cli.frame.options import described
from clinit.cli.frame.process import keeps
from clinit.cli.frame.progress import doing
from clinit.cli.frame.run_data import check_caches
from clinit.errors import ClinitError
from clinit.files.paths import check_writable, exists

if TYPE_CHECKING:
    from clinit.analysis.paper.commands import Places, Words
    from clinit.analysis.paper.tables import PaperTable
    from clinit.headtrain.protocol.study.study import Study

SMALL_EPOCHS = 5
_MARKER = ".clinit-demo"


@keeps("Finished steps are kept: run the same command again to resume.")
def reproduce(
    context: Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="first-task (Table 1), last-layer (2), top-layers (3), cl-methods (4), resnet18"
            " (5), data-orders (6), forward-transfer (7), cost (8), neural-collapse, figures; or"
            " all.",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for caches, runs, tables, figures.", metavar="FOLDER"),
    ] = Path("reproduction"),
    imagenet: Annotated[Path | None, described("The images of ImageNet-1K.", "FOLDER")] = None,
    places: Annotated[Path | None, described("The images of Places365-Standard.", "FOLDER")] = None,
    base: Annotated[
        Path | None, described("Cache of base classes with a head, instead of images.", "FOLDER")
    ] = None,
    new: Annotated[Path | None, described("Cache of new classes, same backbone.", "FOLDER")] = None,
    weights: Annotated[
        Path | None,
        described(
            "Weights of ConvNeXtV2-Femto, or of the backbone of the given caches.",
            "FILE",
            "timm's download",
        ),
    ] = None,
    views: Annotated[
        int,
        described(
            "Random crops of each training image, for the alignment with squared error. Each"
            " costs a pass of the backbone over ImageNet-1K. The paper draws one per epoch.",
            min=0,
        ),
    ] = 50,
    scale_down: Annotated[
        bool,
        typer.Option(
            "--scale-down",
            help="Reduce the experiments: a fiftieth of the iterations, a hundredth of the buffers,"
            " batches of 64, 2 tasks, one trained block, at most 2 seeds. Without --base and --new,"
            " use handwritten digits (all tables: less than a minute on two CPU cores).",
        ),
    ] = False,
    seeds: Annotated[int | None, described("Number of seeds.", None, "the recipe's", min=1)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUES",
            help="Change fields of all runs, in the syntax of `clinit sweep`; repeatable. Example:"
            " --set buffer,iterations='600,600;2400,1200'.",
        ),
    ] = None,
) -> None:
    """Make tables of the paper and show them next to its numbers, with the differences.

    Runs the commands that extract features, align the head for squared error and
    train heads, except those that have finished before; every command is printed
    as you would type it. Tables are also written into OUT/tables as JSON and
    Markdown, figures into OUT/figures.

    clinit reproduce last-layer --imagenet /data/imagenet --places /data/places
    """
    if (base is None) != (new is None):
        raise typer.BadParameter("--base needs --new and vice versa: give both or neither")
    if unknown := [name for name in names if name not in (*NAMES, "all")]:
        raise typer.BadParameter(f"no table {unknown[0]!r}; known are {', '.join(NAMES)} and all")
    check_caches(base, new)
    from clinit.analysis.paper.commands import Places, check_images

    chosen = [table for table in TABLES if {table.name, "all"} & {*names}]
    for place in (folder, folder / "tables", folder / "figures"):  # else refused after hours
        check_writable(place / "any")
    run = runner(context)
    if scale_down and base is None:
        base, new = _digits(folder, run)
    where = Places(
        out=folder,
        roots={"imagenet1k": imagenet, "places365": places},
        caches=None if base is None or new is None else (base, new),
        weights=weights,
        views=views,
        epochs=SMALL_EPOCHS if scale_down else None,
    )
    plan = ReproductionPlan(tuple(settings or ()), seeds, scale_down)
    check_images((step for table in chosen for step in plan.steps(table, where)), where)
    for table in chosen:
        for words in plan.steps(table, where):
            say()
            run(*words)
        _show(table, where, plan)


@dataclass(frozen=True, slots=True)
class ReproductionPlan:
    """The user's settings for all tables."""

    settings: tuple[str, ...]
    seeds: int | None
    """Number of seeds; None takes the number in the recipe."""
    scale_down: bool
    found: dict[str, list[Study]] = field(default_factory=dict)
    """Cached runs of each table, because expanding a grid takes a while."""

    def studies(self, table: PaperTable) -> list[Study]:
        """Return the distinct runs of a table.

        Raises:
            ExperimentError: If a word is wrong, or the runs do not fit into the cells of the table.
        """
        from clinit.analysis.paper.commands import check_places
        from clinit.cli.frame.config import grids_of
        from clinit.headtrain.protocol.sweep.grid import distinct, runs_of

        if table.runs and table.name not in self.found:
            grids = grids_of(Path(table.recipe), self.words(table), top=table.is_top)
            runs = (run for grid in grids for run in runs_of(grid, top=table.is_top))
            self.found[table.name] = distinct(runs)
            check_places(table, self.found[table.name])
        return self.found.get(table.name, [])

    def words(self, table: PaperTable) -> list[str]:
        """Return the words that override the grids of a table's recipe."""
        from clinit.analysis.paper.commands import overlay

        return overlay(table, self.settings, self.seeds, scale_down=self.scale_down)

    def steps(self, table: PaperTable, where: Places) -> list[Words]:
        """Return the commands of a table that are left."""
        from clinit.analysis.paper.commands import steps

        self.studies(table)  # refuses wrong words
        return list(steps(table, where, self.words(table)))


def _digits(folder: Path, run: Run) -> tuple[Path, Path]:
    """Return the caches of the digits in `folder`; make them if they do not exist."""
    place = folder / "digits"
    made = place / ".made"
    if not exists(made):
        shutil.rmtree(place, ignore_errors=True)  # left by a killed call
        place.mkdir(parents=True)
        _make_digits(place, run)
        made.touch()
    return place / "caches" / "base", place / "caches" / "new"


def _show(table: PaperTable, where: Places, plan: ReproductionPlan) -> None:
    """Print a table and write its files; for `figures`, only write the files."""
    from clinit.analysis.paper.output import terminal, write_figures, write_table
    from clinit.analysis.paper.reproduction import measured, recorded_runs

    if table.name == "figures":
        say()
        for remark in write_figures(where, plan.studies):
            note(remark)
        return
    found = measured(table, where, recorded_runs(table, where, plan.studies(table)))
    out.print(terminal(found))
    say()
    note(f"written: {write_table(found, where.out / 'tables')}")


@keeps("The next demo starts from the beginning.")
def demo(
    context: Context,
    folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for everything that the demo writes.", metavar="FOLDER"),
    ] = Path("clinit-demo"),
) -> None:
    """Run the whole pipeline on handwritten digits, offline, in about a minute.

    First, a small ConvNeXtV2 is trained on the digits 0 to 3. It is then frozen,
    and the digits 4 to 9 arrive in three tasks of two, with three ways to make
    the rows of the new classes. Every command is printed as you would type it.
    """
    run = runner(context)
    _prepare(folder)
    _make_digits(folder, run)
    _announce("Six new classes in three tasks: random, class-mean and least-square rows")
    runs = folder / "runs"
    run(
        *("train-head", "--base", folder / "caches" / "base", "--new", folder / "caches" / "new"),
        *("--out", runs, "--tasks", 3, "--iterations", 100, "--eval-every", 10),
        *("--batch-size", 64, "--buffer", 200),
        *("--init", "random", "--init", "class-mean", "--init", "least-square"),
    )
    _announce("The same results again, from the records alone, with curves")
    run("report", runs, "--curves")


def _prepare(folder: Path) -> None:
    """Make an empty folder: clear the folder of an earlier demo, refuse any other content."""
    check_writable(folder)
    if exists(folder) and any(folder.iterdir()):
        if not exists(folder / _MARKER):
            raise ClinitError(
                f"{folder} is not empty and was not written by an earlier demo",
                remedy="Choose another folder with `clinit demo --out`.",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()


def _make_digits(folder: Path, run: Run) -> None:
    """Write images and weights into `folder`, and the caches `caches/base` and `caches/new`.

    Args:
        folder: An empty folder.
        run: Runs a command of clinit.
    """
    from clinit.extract.dataset.scan import scan
    from clinit.extract.digits import EPOCHS, MODEL, MODEL_ARGS, SIDE, pretrain, write_digits

    _announce("Handwritten digits (scikit-learn) as PNG files, and a backbone trained on 0 to 3")
    base, new = folder / "digits" / "base", folder / "digits" / "new"
    count = write_digits(base, range(4)) + write_digits(new, range(4, 10))
    say(f"{count:,} images at {folder / 'digits'}")
    weights = folder / "backbone.safetensors"
    with doing("Pretraining …"):
        pretrain(scan("folder", base, "train").manifest, base, weights)
    say(f"{MODEL}, {EPOCHS} epochs on the digits 0 to 3, at {weights}")
    for name in ("base", "new"):
        _announce(f"Penultimate features of the {name} classes")
        root = folder / "digits" / name
        if name == "base":
            where = "--root", root, "--split", "train", "--out", folder / "base-train.parquet"
            run("manifest", "build", "folder", *where)
        arguments = [f"--model-arg={key}={value}" for key, value in MODEL_ARGS.items()]
        run(
            *("extract", "--dataset", "folder", "--root", root),
            *("--out", folder / "caches" / name, "--backbone", MODEL, *arguments),
            *("--weights", weights, "--input-size", SIDE),
        )


def _announce(text: str) -> None:
    """Print a heading."""
    say()
    out.print(Text(text, style="bold"), soft_wrap=True)
