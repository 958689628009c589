"""The backbone and the head of a run as one network: a classifier of old and new classes.

The network is put together, compared with what was trained (the features of its backbone times
the head) and only then written.
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
from torch import nn

from clinit.errors import CacheError, RecordError
from clinit.extract.backbone import Backbone, state_sha256
from clinit.extract.cache import open_split
from clinit.extract.fingerprint import Fingerprint
from clinit.extract.head import Head, Top1
from clinit.extract.reload import rebuild, stored_weights
from clinit.extract.transform import Transform
from clinit.headtrain.export.assemble import assemble, check_same_logits, model_args
from clinit.headtrain.export.change import Change
from clinit.headtrain.export.model_file import ModelFacts, write_model
from clinit.headtrain.export.model_folder import check_free, write_model_folder
from clinit.headtrain.record.format import (
    RunRecord,
    changed_parameters,
    final_head,
    find_records,
    read_record,
)


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


def export_run(
    run: Path, out: Path, *, base: Path | None = None, weights: Path | None = None
) -> Export:
    """Write the backbone and the final head of a run record as one network that timm loads.

    Args:
        run: The folder of the record.
        out: The model file to write, .safetensors; any other name is that of a model folder.
        base: The feature cache of the base classes, where it is not where the record says.
        weights: The weights of the backbone, where they are not where the cache says.

    Raises:
        ModelError: If there is something at `out` already, or timm cannot have the network from
            a folder.
        RecordError: If there is no record at `run`, it is damaged or holds no head.
        HeadError: If the head is damaged, or its training has diverged.
        CacheError: If the cache is not there or is that of another backbone, its features were
            imported, or the weights are gone or others.
        BackboneError: If the weights cannot be had or do not fit the network.
    """
    check_free(out)
    record = _read(run)
    head = _final_head(run, record)
    backbone, transform = _backbone(record, base, weights)
    changed = changed_parameters(record)
    _change(backbone.network, changed, run)
    network = assemble(backbone, head)
    check_same_logits(network, backbone, head, transform)
    ended = _accuracies(record)
    facts = ModelFacts(
        backbone=backbone.config.name,
        model_args=model_args(backbone),
        class_names=tuple(record.classes["name"])[: head.num_classes],
        tasks=tuple(record.classes["task"])[: head.num_classes],
        transform=transform,
        autocast=backbone.config.autocast,
        weights=state_sha256(network.state_dict()),
        fingerprint=Fingerprint(record.info["base"]["fingerprint"]),
        record={
            **{name: record.info.get(name) for name in ("id", "started", "config")},
            "top1_percent": {name: part.percent for name, part in ended.items()},
            "test_images": {name: part.total for name, part in ended.items()},
        },
        history=(_change_of(record, head.num_classes, ended),),
    )
    if out.suffix == ".safetensors":
        write_model(network, facts, out)
    else:
        write_model_folder(out, network, facts)
    return Export(
        path=out,
        facts=facts,
        base=ended["base"],
        new=ended["new"],
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        num_changed=sum(value.size for value in changed.values()),
        notes=_notes(facts),
    )


def _read(run: Path) -> RunRecord:
    if run.is_dir() and not (run / "run.json").exists() and (found := find_records(run)):
        names = ", ".join(str(folder.relative_to(run)) for folder in found[:5])
        raise RecordError(
            f"{run} is no run record, but holds {len(found)} of them:"
            f" {names}{', …' if len(found) > 5 else ''}",
            remedy=f"Give one: `clinit export {found[0]} --out FILE`.",
        )
    return read_record(run)


def _final_head(run: Path, record: RunRecord) -> Head:
    head = final_head(record)
    names, num_learnt = tuple(record.classes["name"]), _num_learnt(record)
    expected = {names, names[:num_learnt]}  # where it was stopped, a head may have rows beyond
    if head.class_names not in (None, *expected) or head.num_classes not in map(len, expected):
        raise RecordError(
            f"the head in {run} is not of the {len(names):,} classes of the record",
            remedy="The record is damaged: remove its folder and run `clinit train-head` again.",
        )
    return replace(
        head,
        weight=head.weight[:num_learnt],
        bias=head.bias[:num_learnt],
        class_names=None if head.class_names is None else names[:num_learnt],
    )


def _num_learnt(record: RunRecord) -> int:
    """Return the number of classes that the run has learnt, those of the base included."""
    last = max(task["task"] for task in record.info["tasks"])
    return int((record.classes["task"] <= last).sum())


def _backbone(
    record: RunRecord, base: Path | None, weights: Path | None
) -> tuple[Backbone, Transform]:
    """Load the backbone of the record; the cache is asked only for the place of its weights."""
    recorded = Fingerprint(record.info["base"]["fingerprint"]).without_rows
    origin = f"the run {record.info['id']}"
    if base is None and (weights is not None or recorded.weights is None):
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


def _change(network: nn.Module, changed: Mapping[str, np.ndarray], run: Path) -> None:
    """Load the parameters that training has changed into `network`."""
    state = network.state_dict()
    for name, value in changed.items():
        if name not in state or tuple(state[name].shape) != value.shape:
            expected = tuple(state[name].shape) if name in state else "no such parameter"
            raise RecordError(
                f"{run} changes {name} {value.shape} of the backbone, which has {expected}",
                remedy="Run it again: the record does not fit its backbone.",
            )
        if not np.isfinite(value).all():
            raise RecordError(
                f"{run} holds values of {name} that are not finite: its training has diverged",
                remedy="Run it again with a lower learning rate.",
            )
    network.load_state_dict(
        {name: torch.from_numpy(value) for name, value in changed.items()}, strict=False
    )


def _accuracies(record: RunRecord) -> dict[str, Top1]:
    """Return what the run had right at its last evaluation, of all, base and new classes."""
    last = record.evaluations.filter(pl.col("task") == pl.col("task").max())
    last = last.filter(pl.col("iteration") == pl.col("iteration").max())
    arrived = last.join(record.classes.select("row", arrival="task"), on="row", how="left")
    parts = {
        "all": last,
        "base": arrived.filter(pl.col("arrival") == 0),
        "new": arrived.filter(pl.col("arrival") > 0),
    }
    return {
        name: Top1(int(part["correct"].sum()), int(part["total"].sum()))
        for name, part in parts.items()
    }


def _change_of(record: RunRecord, num_classes: int, ended: Mapping[str, Top1]) -> Change:
    """Return the run as the first change of the model that it gives."""
    info = record.info
    arrived = record.classes.head(num_classes).filter(pl.col("task") > 0)
    data: dict[str, Any] = {"run": info["id"], "command": info.get("command")}
    for name, side in (("base", info["base"]), ("new", info["new"])):
        data[name] = {
            "cache": side["path"],
            "manifest": side.get("manifest_digest"),
            "val_manifest": side.get("val_manifest_digest"),
        }
    groups = {"old": ended["base"], "new": ended["new"], "all": ended["all"]}
    return Change(
        action="run",
        date=info.get("started", ""),
        clinit=str(info.get("versions", {}).get("clinit", "")),
        task=None,
        classes=tuple(arrived["name"]),
        images=dict(arrived.select("name", "train_rows").iter_rows()),
        data=data,
        settings=dict(info["config"]),
        accuracy={
            name: {"correct": part.correct, "total": part.total} for name, part in groups.items()
        },
    )


def _notes(facts: ModelFacts) -> tuple[str, ...]:
    extracted = facts.fingerprint.timm
    if extracted in (None, timm.__version__):
        return ()
    return (
        f"the features were extracted with timm {extracted}, this is timm {timm.__version__}:"
        " compare the accuracy of the model with that of the run",
    )
