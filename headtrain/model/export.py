"""The backbone and the head of a run as one network, or its head alone.

The network is put together, compared with what was trained (the features of its backbone times
the head) and only then written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import timm
import torch

from clinit.errors import CacheError, HeadError, RecordError, StorageError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, Top1, write_head
from clinit.extract.cache.read import open_split
from clinit.extract.network.backbone import Backbone, body_sha256
from clinit.extract.network.transform import Transform
from clinit.extract.work.recorded import rebuild, stored_weights
from clinit.headtrain.model.folder import check_free
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model, model_args
from clinit.headtrain.model.model_file import ModelFacts, features_of
from clinit.headtrain.model.of_run import TrainedRun
from clinit.headtrain.model.onnx import OnnxCheck, check_installed
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.temperature import Temperature, divided


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """What was exported."""

    path: Path
    facts: ModelFacts
    base: Top1
    """Correct count of the run at its end on the test images of base classes, and their number."""
    new: Top1
    """The same on those of the classes that arrived."""
    num_parameters: int
    num_changed: int
    """Parameters of the backbone that training has changed; 0 where it was frozen."""
    notes: tuple[str, ...]
    memory: Memory | None = None
    """What it remembers of the images of the run."""
    onnx: OnnxCheck | None = None
    """How its ONNX form compares; None where it has none."""


def export_run(
    run: Path,
    out: Path,
    *,
    base: Path | None = None,
    new: Path | None = None,
    weights: Path | None = None,
    onnx: bool = False,
    remembers: bool = True,
    calibrated: bool = True,
    check_with: Sequence[Path] = (),
    overwrite: bool = False,
) -> Export:
    """Write the backbone and the final head of a run record as one network that timm loads.

    Args:
        run: The folder of the record.
        out: The model file to write, .safetensors; any other name is that of a model folder.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.
        weights: The weights of the backbone, where they are not where the cache says.
        onnx: Whether the folder holds the network as ONNX too.
        remembers: Whether a folder holds what the model remembers of the images of the run, where
            its backbone was frozen and its caches are still there.
        calibrated: Whether the rows of the head are divided by a temperature, which is fitted on
            rows that the run was evaluated on, where its backbone was frozen and they are enough.
        check_with: Images to compare the two forms on; default: test images of the run.
        overwrite: Whether a model or a head that is there is replaced.

    Raises:
        ModelError: If there is something at `out` already, or timm cannot have the network from
            a folder, or its ONNX form computes something else.
        RecordError: If there is no record at `run`, it is damaged or holds no head.
        HeadError: If the head is damaged, or its training has diverged.
        CacheError: If the cache is not there or is that of another backbone, its features were
            imported, or the weights are gone or others.
        BackboneError: If the weights cannot be had or do not fit the network.
    """
    check_free(out, overwrite=overwrite)
    is_file = out.suffix == ".safetensors"
    if onnx and is_file:
        raise ValueError(f"ONNX needs a folder, got {out}")
    if onnx:
        check_installed()
    trained = TrainedRun.read(run, base, new)
    record, ended = trained.record, trained.accuracies()
    backbone, transform = _backbone(record, base, weights)
    _load_changed(backbone, trained, run)
    temperature, notes = trained.temperature() if calibrated else (None, ())
    fingerprint = Fingerprint(record.info["base"]["fingerprint"])
    if trained.changed:
        own = {"weights": body_sha256(backbone.network)}
        fingerprint = Fingerprint({**fingerprint.without_rows.fields, **own})
    facts = ModelFacts(
        backbone=backbone.config.name,
        model_args=model_args(backbone),
        class_names=trained.class_names,
        tasks=trained.tasks,
        transform=transform,
        autocast=backbone.config.autocast,
        weights="",  # of the network with the head in it, which is put together below
        fingerprint=fingerprint,
        record={
            **{name: record.info.get(name) for name in ("id", "started", "config")},
            "top1_percent": {name: part.percent for name, part in ended.items()},
            "test_images": {name: part.total for name, part in ended.items()},
        },
        history=(trained.change(),),
        temperature=temperature,
    )
    memory = None
    if remembers and not is_file:
        memory, forgets = _memory(trained, facts, backbone)
        notes += forgets
    compare_on = (check_with or trained.images()) if onnx else None
    model = Model(facts, backbone, trained.head, memory, str(run))
    written = model.write(out, compare_on=compare_on, overwrite=overwrite)
    extracted = fingerprint.timm
    if extracted not in (None, timm.__version__):
        other = (
            f"the features were extracted with timm {extracted}, this is timm {timm.__version__}:"
            " compare the accuracy of the model with that of the run"
        )
        notes = (other, *notes)
    return Export(
        path=out,
        facts=written.facts,
        base=ended["base"],
        new=ended["new"],
        num_parameters=written.num_parameters,
        num_changed=sum(value.size for value in trained.changed.values()),
        notes=notes,
        memory=memory,
        onnx=written.onnx,
    )


def _memory(
    trained: TrainedRun, facts: ModelFacts, backbone: Backbone
) -> tuple[Memory | None, tuple[str, ...]]:
    """Return what the model remembers, or a note why it remembers nothing."""
    why = "training has changed the backbone, so that cached features are not its own"
    if not trained.changed:
        try:
            return trained.memory(features_of(facts, backbone)), ()
        except (CacheError, StorageError) as error:
            why = str(error)
    later = "`clinit remember MODEL IMAGES --out NEW` lets it remember its classes"
    return None, (f"the model remembers nothing: {why}; {later}",)


def _backbone(
    record: RunRecord, base: Path | None, weights: Path | None
) -> tuple[Backbone, Transform]:
    """Load the backbone of the record; the cache is asked only for the place of its weights."""
    recorded = Fingerprint(record.info["base"]["fingerprint"]).without_rows
    origin = f"the run {record.info['id']}"
    if recorded.weights is None:
        raise CacheError(
            f"no network is known for the features of {origin}: they were imported from"
            f" {recorded.backbone or 'elsewhere'!r}",
            remedy="Export the head alone, `clinit export RUN --out FILE.npz`, and name rows of"
            " features with it: `clinit predict FILE.npz FEATURES`.",
        )
    if base is None and weights is not None:
        return rebuild(recorded, weights, origin=origin)
    folder = Path(record.info["base"]["path"]) if base is None else base
    if base is None and not folder.is_dir():
        raise CacheError(
            f"the cache of the base classes was at {folder}, where nothing is now",
            remedy="Say where it is with `--base CACHE`, or give the weights of the backbone with"
            " `--weights FILE`.",
        )
    split = open_split(folder / "train")
    if differing := recorded.differences(split.fingerprint.without_rows):
        raise CacheError(
            f"{folder} is not the cache that the run was trained on: its features differ in"
            f" {', '.join(each.name for each in differing)}",
            remedy="Say where that one is with `--base CACHE`; `clinit cache show` shows what the"
            " features of a cache depend on.",
        )
    found = weights if weights is not None else stored_weights(split)
    return rebuild(recorded, found, origin=origin)


def _load_changed(backbone: Backbone, trained: TrainedRun, run: Path) -> None:
    """Load the parameters that training has changed into the network."""
    state = backbone.network.state_dict()
    for name, value in trained.changed.items():
        expected = tuple(state[name].shape) if name in state else "no such parameter"
        if expected != value.shape:
            raise RecordError(
                f"{run} changes {name} {value.shape} of the backbone, which has {expected}",
                remedy="Run it again: the record does not fit its backbone.",
            )
        if not np.isfinite(value).all():
            raise RecordError(
                f"{run} holds values of {name} that are not finite: its training has diverged",
                remedy="Run it again with a lower learning rate.",
            )
    changed = {name: torch.from_numpy(value) for name, value in trained.changed.items()}
    backbone.network.load_state_dict(changed, strict=False)


@dataclass(frozen=True, slots=True, eq=False)
class HeadExport:
    """What was exported of a head alone."""

    path: Path
    head: Head
    """As it is in the file: divided by the temperature, where there is one."""
    tasks: tuple[int, ...]
    """The task in which each class arrived; 0 for the classes of the base."""
    backbone: str
    """What computed the features that it reads."""
    temperature: Temperature | None
    ended: Top1
    """What the run had right at its end, of old and new classes."""
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<HeadExport {self.path}: {self.head} of {self.backbone}>"


def export_head(
    run: Path,
    out: Path,
    *,
    calibrated: bool = True,
    base: Path | None = None,
    new: Path | None = None,
    overwrite: bool = False,
) -> HeadExport:
    """Write the final head of a run record to a file, for features that are computed elsewhere.

    Args:
        run: The folder of the record.
        out: The file, .npz or .safetensors.
        calibrated: Whether its rows are divided by a temperature, as in `export_run`.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.
        overwrite: Whether a model or a head that is there is replaced.

    Raises:
        ModelError: If there is something at `out` already.
        RecordError: If there is no record at `run`, it is damaged or holds no head.
        HeadError: If the head is damaged, its training has diverged, it is no linear head on
            features, or those of a backbone that training has changed.
    """
    if out.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"a head is written as .npz or .safetensors, got {out}")
    check_free(out, overwrite=overwrite)
    trained = TrainedRun.read(run, base, new)
    info = trained.record.info
    if trained.changed:
        raise HeadError(
            f"training has changed the backbone of {run}: its head alone does not fit the features"
            " of any cache",
            remedy="Export both: `clinit export RUN --out FOLDER`.",
        )
    temperature, notes = trained.temperature() if calibrated else (None, ())
    config = {name: info["config"].get(name) for name in ("method", "loss")}
    origin = {
        "run": info["id"],
        "tasks": list(trained.tasks),
        "temperature": None if temperature is None else asdict(temperature),
        **{name: value for name, value in config.items() if value is not None},
    }
    head = replace(divided(trained.head, temperature), origin=origin)
    write_head(head, out)
    backbone = Fingerprint(info["base"]["fingerprint"]).backbone or "an unknown backbone"
    ended = trained.accuracies()["all"]
    return HeadExport(out, head, trained.tasks, backbone, temperature, ended, notes)
