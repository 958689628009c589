"""A run as the first change of the model that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from clinit.extract.head import Top1
from clinit.headtrain.export.change import Change, counted
from clinit.headtrain.record.format import RunRecord


def accuracies(record: RunRecord) -> dict[str, Top1]:
    """Return what the run had right at its end: of all, base and new classes and by task."""
    last = record.evaluations.filter(pl.col("task") == pl.col("task").max())
    last = last.filter(pl.col("iteration") == pl.col("iteration").max())
    arrived = last.join(record.classes.select("row", arrival="task"), on="row", how="left")
    parts = {
        "all": last,
        "base": arrived.filter(pl.col("arrival") == 0),
        "new": arrived.filter(pl.col("arrival") > 0),
    }
    tasks = sorted(set(parts["new"]["arrival"]))
    for task in tasks if len(tasks) > 1 else ():
        parts[f"task {task}"] = arrived.filter(pl.col("arrival") == task)
    return {
        name: Top1(int(part["correct"].sum()), int(part["total"].sum()))
        for name, part in parts.items()
    }


def change_of(record: RunRecord, num_classes: int, ended: Mapping[str, Top1]) -> Change:
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
        accuracy=counted(groups),
    )
