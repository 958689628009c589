"""Export the model of a recorded run: backbone and head as one network, or the head alone.

The network is assembled, compared with the trained head times the features of its backbone, and
only then written. A head alone classifies features that are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import timm
import torch

from clinit.errors import CacheError, HeadError, ModelError, RecordError, StorageError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, Top1
from clinit.extract.cache.read import CacheSplit, open_cache, open_split
from clinit.extract.network.backbone import Backbone, body_sha256
from clinit.extract.work.recorded import rebuild, stored_weights
from clinit.files.paths import check_free, exists, is_folder
from clinit.headtrain.heads.temperature import LEAST_ROWS, Activation, Temperature, temperature_of
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.network import TimmEngine
from clinit.headtrain.model.storage import Written, foreign_to_model, write_model
from clinit.headtrain.protocol.record import format as records
from clinit.headtrain.protocol.record.info import SideInfo, is_held_out
from clinit.words import examples

HELD_OUT_PER_CLASS = 20
"""Number of validation features per class that a model remembers, to be measured on later."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRun:
    """A run record, from which a model is exported."""

    record: records.RunRecord
    head: Head
    """The head at the end of the run; its rows are the first classes of the record."""
    changed: Mapping[str, np.ndarray]
    """Parameters of the backbone that training has changed, by name; empty if it was frozen."""

    @classmethod
    def read(cls, run: Path) -> TrainedRun:
        """Read the record at `run`.

        Raises:
            RecordError: If the record is missing or damaged, or if its head is missing or has
                other classes. If subfolders are records, the message lists them.
            HeadError: If the head is damaged or not linear, or its training has diverged.
        """
        if not exists(run / "run.json") and (found := records.find_records(run)):
            raise RecordError(
                f"{run} is no run record, but contains {len(found)} of them:"
                f" {examples([str(folder.relative_to(run)) for folder in found])}",
                remedy=f"Give one: `clinit export {found[0]} --out FILE`.",
            )
        record = records.read_record(run)
        head = records.final_head(record)
        names = tuple(record.classes["name"])
        last = max(task["task"] for task in record.info["tasks"])
        learnt = int((record.classes["task"] <= last).sum())
        expected = {names, names[:learnt]}  # the head of a stopped run may have further rows
        if head.class_names not in (None, *expected) or head.num_classes not in map(len, expected):
            raise RecordError(
                f"the head in {run} does not have the {len(names):,} classes of the record",
                remedy="The record is damaged: remove its folder and run `clinit train-head`"
                " again.",
            )
        weight, bias = head.weight[:learnt], head.bias[:learnt]
        head = replace(head, weight=weight, bias=bias, class_names=names[:learnt])
        return cls(record, head, records.changed_parameters(record))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that the run has learnt, the base first."""
        assert self.head.class_names is not None
        return self.head.class_names

    @property
    def activation(self) -> Activation:
        """What makes probabilities of logits, by the loss of the run."""
        return "sigmoid" if self.record.info["config"].get("loss") == "bce" else "softmax"

    @property
    def tasks(self) -> tuple[int, ...]:
        """The task in which each class arrived; 0 for the classes of the base."""
        return tuple(self.record.classes["task"])[: self.head.num_classes]

    def rows(self, split: str) -> FeatureSet:
        """Return features of the classes of the run, with the rows of the head as labels.

        Args:
            split: `train`, or `val`, on which no head was trained. A cache without this split
                gives no rows.

        Raises:
            CacheError: If training has changed the backbone, if a cache no longer exists, or if
                its backbone or its rows differ from the record.
        """
        if self.changed:
            why = "training has changed the backbone, so that cached features are not its own"
            raise CacheError(why, remedy="")
        num_base = int((self.record.classes["task"] == 0).sum())
        parts = []
        for side, told in self.record.sides.items():
            start, stop = (0, num_base) if side == "base" else (num_base, len(self.tasks))
            splits = open_cache(_cache_of_then(told, self.record.path)).splits
            if split in splits and _are_others(told, splits[split]):
                raise _other_cache(told, f"its {split} rows differ")
            rows = splits[split].load() if split in splits else splits["train"].load().nothing()
            row_of = {name: row for row, name in enumerate(self.class_names) if start <= row < stop}
            places = np.array([row_of.get(name, -1) for name in rows.class_names], dtype=np.int64)
            parts.append(rows.renumbered(places, self.class_names))
        return FeatureSet.joined(parts, self.class_names)

    def memory(self, depends_on: Mapping[str, str]) -> tuple[Memory | None, tuple[str, ...]]:
        """Return the memory of the run's images, or None and a note that gives the reason.

        Args:
            depends_on: The facts that the features depend on.
        """
        try:
            train, val = self.rows("train"), self.rows("val")
        except (CacheError, StorageError) as error:
            later = "`clinit remember MODEL IMAGES --out NEW` lets it remember its classes"
            return None, (f"the model remembers nothing: {error}; {later}",)
        return Memory.of(train, depends_on, held_out=val.first(HELD_OUT_PER_CLASS)), ()

    def temperature(self) -> tuple[Temperature | None, tuple[str, ...]]:
        """Return the temperature of the head, or None and a note that gives the reason."""
        try:
            rows = self.rows("val")
            if (found := temperature_of(self.head, rows, self.activation)) is not None:
                return found, ()
            why = (
                f"no temperature fits its {len(rows.labels):,} held-out rows: they are fewer"
                f" than {LEAST_ROWS}, or their accuracy is 100 % or no better than chance"
            )
        except (CacheError, StorageError) as error:
            why = ". ".join(filter(None, (str(error), error.remedy)))
        return None, (f"the probabilities come from the head as it was trained: {why}",)

    def accuracies(self) -> dict[str, Top1]:
        """Return the final accuracy of the run: on all, base and new classes, and by task.

        Without a base: on all classes, and by task.
        """
        record = self.record
        last = record.evaluations.filter(pl.col("task") == pl.col("task").max())
        last = last.filter(pl.col("iteration") == pl.col("iteration").max())
        arrived = last.join(record.classes.select("row", arrival="task"), on="row", how="left")
        parts = {"all": last}
        if 0 in self.tasks:
            parts["base"] = arrived.filter(arrival=0)
            parts["new"] = arrived.filter(pl.col("arrival") > 0)
        tasks = sorted({*arrived["arrival"]} - {0})
        for task in tasks if len(tasks) > 1 else ():
            parts[f"task {task}"] = arrived.filter(arrival=task)
        return {
            name: Top1(int(part["correct"].sum()), int(part["total"].sum()))
            for name, part in parts.items()
        }

    def change(self) -> Change:
        """Return the run as the first change in the history of its model."""
        info, ended = self.record.info, self.accuracies()
        arrived = self.record.classes.head(self.head.num_classes).filter(pl.col("task") > 0)
        data: dict[str, Any] = {"run": info["id"], "command": info.get("command")}
        for side, told in self.record.sides.items():
            data[side] = {
                "cache": told["path"],
                "manifest": told.get("manifest_digest"),
                "val_manifest": told.get("val_manifest_digest"),
            }
        kinds = {"old": "base", "new": "new", "all": "all"}
        groups = {name: ended[kind] for name, kind in kinds.items() if kind in ended}
        groups |= {name: part for name, part in ended.items() if name.startswith("task ")}
        return Change(
            action="run",
            date=info.get("started", ""),
            clinit=str(info.get("versions", {}).get("clinit", "")),
            task=None,
            classes=tuple(arrived["name"]),
            images=dict(arrived.select("name", "train_rows").iter_rows()),
            data=data,
            settings=dict(info["config"]),
            accuracy=groups,
        )


def _cache_of_then(told: SideInfo, run: Path | None) -> Path:
    """Return a cache, from the current folder or one above the run; check its backbone."""
    above = () if run is None else run.absolute().parents
    path = next(filter(is_folder, (each / told["path"] for each in (Path(), *above))), None)
    if path is None:
        raise _other_cache(told, "nothing exists there")
    found = open_split(path / "train").fingerprint.without_rows
    if differing := Fingerprint(told["fingerprint"]).without_rows.differences(found):
        names = ", ".join(each.name for each in differing)
        raise _other_cache(told, f"{names} differ")
    return path


def _other_cache(told: SideInfo, differing: str) -> CacheError:
    return CacheError(
        f"the cache of the run is not at {told['path']}: {differing}",
        remedy="Move or link it there, or extract it again; a network without a temperature needs"
        " `--weights FILE` alone.",
    )


def _are_others(told: SideInfo, split: CacheSplit) -> bool:
    """Return whether the digests of a split differ from the digests in the record.

    Missing digests are not compared: earlier versions recorded none for imported files, and a
    trial of a search records none for its test rows.
    """
    prefix = "" if split.plan.split == "train" else "val_"
    then = [told.get(f"{prefix}{kind}_digest") for kind in ("manifest", "features")]
    now = split.fingerprint.manifest, split.fingerprint.features
    return any(
        isinstance(one, str) and not is_held_out(one) and one != other
        for one, other in zip(then, now, strict=True)
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Export(Written):
    """A run that was exported: a network with its head, or the head alone."""

    run: TrainedRun
    notes: tuple[str, ...]


def export_model(
    run: Path,
    out: Path,
    *,
    weights: Path | None = None,
    onnx: bool = False,
    overwrite: bool = False,
) -> Export:
    """Write the backbone and the final head of a run record as one network that timm loads.

    A folder also gets a memory of the images of the run, if the backbone was frozen and the caches
    still exist.

    Args:
        run: The folder of the record.
        out: A name in .safetensors makes a model file; in .npz, a file of the head alone, for
            features that are computed elsewhere; any other name, a model folder.
        weights: The weights of the backbone, if they are not at their recorded path.
        onnx: Also write the network as ONNX, into the folder.
        overwrite: Replace an existing model.

    Raises:
        ModelError: If `out` exists and may not be replaced, if timm cannot load the network from
            a folder, or if the ONNX file computes something else.
        RecordError: If the record is missing or damaged, or contains no head.
        HeadError: If the head is damaged or not linear, or if its training has diverged; or if only
            the head is to be written, and training has changed the backbone.
        CacheError: If the cache is missing, has another backbone or imported features, or if the
            weights are missing or have changed.
        BackboneError: If the weights cannot be loaded or do not fit the network.
    """
    check_free(out, "model", foreign_to_model, ModelError, overwrite=overwrite)
    if onnx:
        from clinit.headtrain.model.onnx import check_installed

        check_installed()
    trained = TrainedRun.read(run)
    info, head = trained.record.info, trained.head
    engine, notes, forgets, memory = None, list[str](), tuple[str, ...](), None
    if out.suffix == ".npz":
        if trained.changed:
            raise HeadError(
                f"training has changed the backbone of {info['id']}: its head alone does not fit"
                " the features of any cache",
                remedy="Export backbone and head together: `clinit export RUN --out FOLDER`.",
            )
        fingerprint = Fingerprint(info["new"]["fingerprint"]).without_rows
        settings = {name: info["config"].get(name) for name in ("method", "loss")}
        record = {"run": info["id"], **{name: each for name, each in settings.items() if each}}
    else:
        engine, fingerprint = _network(trained, weights, notes)
        ended = trained.accuracies()
        record = {
            **{name: info.get(name) for name in ("id", "started", "config")},
            "top1_percent": {name: part.percent for name, part in ended.items()},
            "test_images": {name: part.total for name, part in ended.items()},
        }
        if out.suffix != ".safetensors":
            memory, forgets = trained.memory(engine.depends_on)
    temperature, why = trained.temperature()
    facts = ModelFacts(
        backbone=fingerprint.backbone or "",
        class_names=trained.class_names,
        tasks=trained.tasks,
        fingerprint=fingerprint,
        record=record,
        history=() if engine is None else (trained.change(),),
        temperature=temperature,
        activation=trained.activation,
    )
    origin = str(trained.record.path or run)
    model = Model(facts=facts, linear=head, memory=memory, origin=origin, engine=engine)
    written = write_model(model, out, onnx=onnx, overwrite=overwrite)
    told = (*notes, *why, *forgets)
    return Export(written.path, written.model, written.onnx, run=trained, notes=told)


def _network(
    trained: TrainedRun, weights: Path | None, notes: list[str]
) -> tuple[TimmEngine, Fingerprint]:
    """Return the network of a run and the fingerprint of its features; add notes."""
    info = trained.record.info
    told = next(iter(trained.record.sides.values()))
    fingerprint = Fingerprint(told["fingerprint"])
    is_projected = fingerprint.output == "projected"
    if fingerprint.weights is None or is_projected:
        why = f"were imported from {fingerprint.backbone or 'elsewhere'!r}"
        if is_projected:
            why = "follow the projection of a CLIP tower, which timm leaves out"
        raise CacheError(
            f"no network of timm gives the features of the run {info['id']}: they {why}",
            remedy="Export the head alone, `clinit export RUN --out FILE.npz`, and classify"
            " features with it: `clinit predict FILE.npz FEATURES`.",
        )
    if weights is None:
        weights = stored_weights(open_split(_cache_of_then(told, trained.record.path) / "train"))
    then = fingerprint.without_rows
    backbone, transform = rebuild(then, weights, origin=f"the run {info['id']}")
    _load_changed(backbone, trained)
    if fingerprint.timm not in (None, timm.__version__):
        notes.append(
            f"the features were extracted with timm {fingerprint.timm}, this is timm"
            f" {timm.__version__}: compare the accuracy of the model with the run's"
        )
    if trained.changed:
        fingerprint = Fingerprint({**then.fields, "weights": body_sha256(backbone.network)})
    return TimmEngine(backbone, transform), fingerprint


def _load_changed(backbone: Backbone, trained: TrainedRun) -> None:
    state = backbone.network.state_dict()
    for name, value in trained.changed.items():
        expected = tuple(state[name].shape) if name in state else "no such parameter"
        if expected != value.shape or not np.isfinite(value).all():
            raise RecordError(
                f"{trained.record.path} changes {name} of the backbone, {expected}, to"
                f" {value.shape}, or to values that are not finite",
                remedy="Run it again; if its training has diverged, with a lower learning rate.",
            )
    changed = {name: torch.from_numpy(value) for name, value in trained.changed.items()}
    backbone.network.load_state_dict(changed, strict=False)
