"""`clinit rerun`: repeat a recorded run and check that its numbers are the same bits."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.claim import claimed_folder, tell_replaced
from clinit.cli.completion import runs
from clinit.cli.console import note, say
from clinit.cli.image_options import (
    BaseRoot,
    NewRoot,
    Weights,
    Workers,
)
from clinit.cli.interruption import keeps
from clinit.cli.options import MaxPixels, Overwrite, RecordedBase, RecordedHead, RecordedNew
from clinit.cli.progress import doing
from clinit.cli.run_data import check_run, read_data
from clinit.cli.training_progress import training_progress
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.words import size_text

if TYPE_CHECKING:
    from clinit.headtrain.record.format import RunRecord
    from clinit.headtrain.record.info import RunInfo
    from clinit.headtrain.study.study import Study

_REMEDY = "Give what the run read: --base, --new and --head."


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the data of a run are, and how its images are read."""

    base: list[Path]
    new: list[Path]
    head: Path | None
    weights: Path | None = None
    base_root: Path | None = None
    new_root: Path | None = None
    workers: int | None = None
    max_pixels: int = MAX_PIXELS


@keeps("The recorded run is as it was; the new one is lost.")
def rerun(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, as train-head, train-top and sweep write it.",
            autocompletion=runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to record the new run in.", metavar="FOLDER", show_default="not recorded"
        ),
    ] = None,
    base: RecordedBase = None,
    new: RecordedNew = None,
    head: RecordedHead = None,
    weights: Weights = None,
    base_root: BaseRoot = None,
    new_root: NewRoot = None,
    workers: Workers = None,
    max_pixels: MaxPixels = MAX_PIXELS,
    overwrite: Overwrite = False,
) -> None:
    """Repeat a recorded run from its settings, and compare it with its record.

    Reads the settings, the places of the caches and the head from the record, and
    trains the heads of its bank beside it. Every table, the final head and the
    parameters that were changed are compared: on the same device they are the
    same bits. The exit code is 1 where they are not.
    """
    check_run(run)
    if out is not None:
        check_writable(out)
    from clinit.headtrain.record.compare import circumstances, differences
    from clinit.headtrain.record.format import (
        changed_parameters,
        check_free,
        final_head,
        headless,
        read_record,
        write_record,
    )
    from clinit.headtrain.record.info import study_of_run

    record = read_record(run)
    study = study_of_run(record.info, str(run))
    places = _places(record.info, base, new, head)
    places = replace(
        places,
        weights=weights,
        base_root=base_root,
        new_root=new_root,
        workers=workers,
        max_pixels=max_pixels,
    )
    if out is not None:
        _check_out(out, run, overwrite=overwrite)
        check_free([out], overwrite=overwrite)
        tell_replaced([out], overwrite=overwrite)
        with claimed_folder(out.absolute().parent):
            again = _train(record, study, places)
            write_record(again, out, overwrite=overwrite)
    else:
        again = _train(record, study, places)
    no_head = headless(record.info["config"])
    last = None if no_head else final_head(record, linear=False)
    found = differences(again, _with_arrays(record, last, changed_parameters(record)))
    if out is not None:
        say(f"Recorded at {out}")
    if not found:
        what = "every table is that" if no_head else "every table and the final head are those"
        say(f"The same bits: {what} of {run}")
        return
    say(f"Not the same bits as {run}:")
    for each in found:
        say(f"  {each}")
    for each in circumstances(record.info, again.info):
        say(f"  {each}")
    raise typer.Exit(1)


def _check_out(out: Path, run: Path, *, overwrite: bool) -> None:
    if overwrite and out.resolve() == run.resolve():
        raise typer.BadParameter("--out is the run that is repeated: give it a folder of its own")


def _places(info: RunInfo, base: Path | None, new: Path | None, head: Path | None) -> _Places:
    """Return the caches and the head file; those of the record where none are given.

    Raises:
        RecordError: If one of them is not there.
    """
    from clinit.errors import RecordError

    recorded = (info.get("head") or {}).get("path")
    head = head or (Path(recorded) if recorded else None)
    old, arriving = (
        [given] if given else [Path(each) for each in (side["path"], *side.get("other_paths", ()))]
        for given, side in ((base, info["base"]), (new, info["new"]))
    )
    options = [("--base", path) for path in old] + [("--new", path) for path in arriving]
    for option, path in [*options, *([("--head", head)] if head else [])]:
        if not path.exists():
            raise RecordError(
                f"the run read {path}, which is not there",
                remedy=f"Say where it is now with {option}.",
            )
    return _Places(old, arriving, head)


def _train(record: RunRecord, study: Study, places: _Places) -> RunRecord:
    if study.top is not None:
        return _train_top(record, study, places)
    from clinit.headtrain.runs import check_data, train_bank

    data = read_data(places.base, places.new, {"": places.head})
    check_data(record.path, record.info, data, remedy=_REMEDY)
    # Last bits of a loss may depend on the heads that were trained next to this one.
    bank = [study.changed(each).resolved() for each in record.info.get("bank", ())]
    bank = bank if study in bank else [study]
    with training_progress() as observer:
        records = train_bank(data, bank, observer=observer, command=["clinit", *sys.argv[1:]])
    return records[bank.index(study)]


def _train_top(record: RunRecord, study: Study, places: _Places) -> RunRecord:
    import tempfile

    from clinit.headtrain.runs import RunData, check_data
    from clinit.headtrain.top.experiment import prepare_runs, run_top
    from clinit.headtrain.top.images import Images, Storage

    with tempfile.TemporaryDirectory(prefix="clinit-rerun-") as folder:
        storage = Storage(
            folder=Path(folder),
            budget=_activation_budget(record.info, Path(folder)),
            max_pixels=places.max_pixels,
            **({} if places.workers is None else {"workers": places.workers}),
        )
        images = Images(
            base=places.base[0],
            new=places.new[0],
            base_root=places.base_root,
            new_root=places.new_root,
            weights=places.weights,
            storage=storage,
        )
        with doing("Reading the caches …"):
            sides, data = RunData.of_images(images, {"": places.head}, on_note=note)
        check_data(record.path, record.info, data, remedy=_REMEDY)
        facts = data.facts_for(study.training.loss)
        with training_progress() as observer:
            inputs = prepare_runs(
                images, sides, data.head, [study], observer=observer, head_facts=facts
            )
            return run_top(
                inputs,
                study,
                observer=observer,
                head_facts=facts,
                command=["clinit", *sys.argv[1:]],
            )


def _activation_budget(info: RunInfo, folder: Path) -> int:
    """Return the bytes of activations that the run had stored; 0 where `folder` lacks the room.

    Stored activations come from batches of their own, and the last bits of some networks depend on
    the size of a batch, and on how many threads share it. The folder is removed behind the run.
    """
    import shutil

    stored: int = sum(part["bytes"] for part in info.get("activations", ()) if part["stored"])
    if stored <= shutil.disk_usage(folder).free:
        return stored
    note(
        f"the run had stored {size_text(stored)} of activations, more than is free in"
        f" {folder.parent} (TMPDIR names another folder): they are computed from the images each"
        " time, in other batches, and last bits may differ"
    )
    return 0


def _with_arrays(record: RunRecord, head: Any, top: Any) -> RunRecord:
    return replace(record, head=head, top=top or None)
