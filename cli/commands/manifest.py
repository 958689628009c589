"""`clinit manifest`: list the images of a data set, in the row order of caches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame.console import out, say, tell
from clinit.cli.frame.options import Labels, ReadSplit, described
from clinit.cli.frame.process import claimed_file, keeps
from clinit.cli.frame.progress import doing
from clinit.extract.work.options import READ_AS_VAL
from clinit.files.paths import exists, is_file
from clinit.words import number_of, visible

if TYPE_CHECKING:
    from clinit.extract.dataset.known import Dataset
    from clinit.extract.dataset.manifest import Manifest

app = typer.Typer(no_args_is_help=True, help="Build and show manifests of data sets.")

_ROWS_SHOWN = 5


def _column(of: str) -> Any:
    help = f"Column of the {of} in Parquet files."
    return typer.Option(help=help, show_default="from the files' metadata or usual names")


@app.command()
@keeps("No partial file is left: the file is written completely or not at all.")
def build(
    dataset: Annotated[
        str,
        typer.Argument(
            help="imagenet1k, places365 or digits; or `folder` for any tree of"
            " train/<class>/ and val/<class>/, `webdataset` for tar shards, `huggingface` for"
            " Parquet files."
        ),
    ],
    root: Annotated[Path, described("Folder of the data set.", "FOLDER")],
    split: Annotated[ReadSplit, described("Split to list." + READ_AS_VAL)],
    out: Annotated[Path, described("Parquet file to write.", "FILE", dir_okay=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Stop instead of warning.")] = False,
    image_column: Annotated[str | None, _column("images")] = None,
    label_column: Annotated[str | None, _column("labels")] = None,
    labels: Labels = None,
) -> None:
    """Write a manifest: the images of a split with their labels; check their number."""
    from clinit.extract.dataset.known import HUGGINGFACE, ColumnNames
    from clinit.extract.dataset.manifest import write_manifest
    from clinit.extract.dataset.scan import scan

    columns = ColumnNames(image_column, label_column)
    if columns != ColumnNames() and dataset != HUGGINGFACE:
        raise typer.BadParameter(
            f"--image-column and --label-column are for Parquet files ({HUGGINGFACE})"
        )
    with claimed_file(out), doing(f"Scanning {root} …"):
        scanned = scan(dataset, root, split, strict=strict, columns=columns, labels=labels)
        write_manifest(scanned.manifest, out)
    scanned.tell(tell)
    _print_manifest(scanned.manifest)
    say(f"Wrote {out}")


@app.command()
def show(
    manifest: Annotated[str, typer.Argument(help="Manifest file, or name of a known data set.")],
    classes: Annotated[
        bool, typer.Option("--classes", help="Print only the class names, one per line.")
    ] = False,
) -> None:
    """Show the contents of a manifest, or the description of a known data set."""
    from clinit.extract.dataset.known import Dataset, check_known, known_datasets, read_dataset
    from clinit.extract.dataset.manifest import read_manifest

    known = manifest in known_datasets() and not is_file(Path(manifest))
    if Path(manifest).name == manifest and not (Path(manifest).suffix or exists(Path(manifest))):
        check_known(manifest, described=True)
    found = read_dataset(manifest) if known else read_manifest(Path(manifest))
    if classes:
        for name in found.classes if isinstance(found, Dataset) else found.class_names:
            say(name)
    elif isinstance(found, Dataset):
        _print_dataset(found)
    else:
        _print_manifest(found)


def _print_manifest(manifest: Manifest) -> None:
    from rich.table import Table
    from rich.text import Text

    from clinit.extract.dataset.manifest import SCHEMA

    rows = {
        "data set": manifest.dataset,
        "split": manifest.split,
        "images": f"{len(manifest.table):,}",
        "classes": f"{len(manifest.class_names):,}",
        "classes without images": f"{len(manifest.empty_classes):,}",
    }
    if manifest.is_contained:
        rows["containers"] = f"{len(manifest.containers()):,}"
    table = Table("", "", show_header=False)
    for title, text in rows.items():
        table.add_row(title, Text(visible(text)))
    out.print(table)
    say(f"digest {manifest.digest}")
    first = manifest.table.head(_ROWS_SHOWN)
    for path, label, name, size_bytes in first.select(SCHEMA.names()).iter_rows():
        size = f"  {size_bytes:,} B" if size_bytes or not manifest.is_contained else ""
        say(f"{label:>5}  {name}{size}  {path}")
    if len(manifest.table) > len(first):
        say(f"    …  and {len(manifest.table) - len(first):,} more")


def _print_dataset(dataset: Dataset) -> None:
    classes = number_of(len(dataset.classes), "class")
    for line in (f"{dataset.title} ({dataset.name})", dataset.homepage, dataset.licence, ""):
        say(line)
    say(f"{classes}, from {dataset.classes[0]} (label 0) to {dataset.classes[-1]}")
    for split, images in dataset.images.items():
        say(f"{split}: {images:,} images")
    if dataset.total is not None:
        say(f"together: {number_of(dataset.total, 'image')}")
    say()
    say("Layouts that are tried, in order, with folders under --root:")
    for layout in dataset.layouts:
        say(f"  {layout.kind}")
        for split, folders in layout.folders.items():
            say(f"    {split}: {' or '.join(folders)}")
        if layout.lists:
            say(f"    with {' and '.join(layout.lists)}")
