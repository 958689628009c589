"""`clinit rerun`: repeat a recorded run, and check that its results have the same bits."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, say
from clinit.cli.frame.image_options import BaseRoot, NewRoot, Weights, Workers
from clinit.cli.frame.options import (
    MaxPixels,
    Overwrite,
    RecordedBase,
    RecordedHead,
    RecordedNew,
    described,
)
from clinit.cli.frame.process import claimed_folder, keeps
from clinit.cli.frame.progress import training_progress
from clinit.cli.frame.run_data import check_run, read_data, read_images, recorded_places
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.files.paths import check_writable
from clinit.words import size_text

if TYPE_CHECKING:
    from clinit.headtrain.protocol.experiment import RunData
    from clinit.headtrain.protocol.record.format import RunRecord
    from clinit.headtrain.protocol.record.info import RunInfo
    from clinit.headtrain.protocol.study.study import Study

_REMEDY = "Give the caches and the head that the run read: --base, --new and --head."


@keeps("The recorded run is unchanged; the new run is lost.")
def rerun(
    run: Annotated[
        Path, typer.Argument(help="Run record, written by train-head, train-top or sweep.")
    ],
    out: Annotated[
        Path | None, described("Folder to record the new run in.", "FOLDER", "not recorded")
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

    The settings and the paths of the caches and the head are read from the record.
    Heads that were trained together with the run (its bank) are trained again too.
    All tables, the final head and the changed parameters are compared. On the same
    device, they have the same bits; if they differ, the exit code is 1.
    """
    check_run(run)
    if out is not None:
        check_writable(out)
    from clinit.headtrain.protocol.record import format as records
    from clinit.headtrain.protocol.record.info import study_of_run
    from clinit.headtrain.top.images import Images, Storage

    record = records.read_record(run)
    study = study_of_run(record.info, str(run))
    old, arriving, head = recorded_places(record.info, base, new, head)
    with ExitStack() as stack:
        if out is not None:
            if overwrite and out.resolve() == run.resolve():
                raise typer.BadParameter("--out is the recorded run itself: give another folder")
            records.check_free([out], overwrite=overwrite)
            stack.enter_context(claimed_folder(out.absolute().parent))
        if study.top is None:
            again = _trained(record, study, read_data(old, arriving, {"": head}))
        else:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="clinit-rerun-")))
            storage = Storage(
                folder=folder,
                budget=_activation_budget(record.info, folder),
                max_pixels=max_pixels,
                workers=workers,
            )
            images = Images(
                base=old[0],
                new=arriving[0],
                base_root=base_root,
                new_root=new_root,
                weights=weights,
                storage=storage,
            )
            again = _trained(record, study, read_images(images, {"": head}))
        if out is not None:
            records.write_record(again, out, overwrite=overwrite)
            say(f"Recorded at {out}")
    last, top = records.final_head(record, linear=False), records.changed_parameters(record)
    found = records.differences(again, replace(record, head=last, top=top or None))
    if not found:
        say(f"The same bits as {run}: every table and the final head")
        return
    say(f"Not the same bits as {run}:")
    for each in (*found, *records.circumstances(record.info, again.info)):
        say(f"  {each}")
    raise typer.Exit(1)


def _trained(record: RunRecord, study: Study, data: RunData) -> RunRecord:
    from clinit.headtrain.protocol.experiment import run_experiment
    from clinit.headtrain.protocol.runs import check_data
    from clinit.headtrain.top.experiment import run_top
    from clinit.headtrain.top.inputs import ImageData, prepare_runs

    check_data(record.path, record.info, data, remedy=_REMEDY)
    with training_progress() as observer:
        if isinstance(data, ImageData):
            inputs = prepare_runs(data, [study], observer=observer)
            return run_top(inputs, study, observer=observer)
        # The last bits of a loss may depend on the heads that were trained in the same bank.
        bank = [study.changed(each).resolved() for each in record.info.get("bank", ())]
        bank = bank if study in bank else [study]
        return run_experiment(data, bank, observer=observer)[bank.index(study)]


def _activation_budget(info: RunInfo, folder: Path) -> int:
    """Return the bytes of activations that the run had stored; 0 if `folder` has no room for them.

    The rerun must store the same activations, because stored activations are computed in other
    batches, and the last bits of some networks depend on batch size and threads. `folder` is
    temporary.
    """
    import shutil

    stored: int = sum(part["bytes"] for part in info.get("activations", ()) if part["stored"])
    if stored <= shutil.disk_usage(folder).free:
        return stored
    note(
        f"{folder.parent} has no room for the {size_text(stored)} of activations that the run"
        " stored: they are computed again and again, so last bits may differ (set TMPDIR to"
        " use another folder)"
    )
    return 0
