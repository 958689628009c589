"""The backbone and the head of a run as one network: a classifier of old and new classes.

The network is put together, compared with what was trained (the features of its backbone times
the head) and only then written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

from clinit.errors import CacheError, RecordError, StorageError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Top1
from clinit.extract.cache.read import open_split
from clinit.extract.network.backbone import Backbone, body_sha256, state_sha256
from clinit.extract.network.reload import rebuild, stored_weights
from clinit.extract.network.transform import Transform
from clinit.headtrain.model.edit import assemble, check_same_logits, model_args
from clinit.headtrain.model.folder import (
    MEMORY_FILE,
    ONNX_FILE,
    check_free,
    write_model_folder,
)
from clinit.headtrain.model.memory import Memory, write_memory
from clinit.headtrain.model.model_file import ModelFacts, features_of, for_timm, write_model
from clinit.headtrain.model.of_run import (
    accuracies,
    change_of,
    images_of,
    in_containers,
    learnt_head,
    memory_of_run,
    read_run,
    temperature_of_run,
)
from clinit.headtrain.model.onnx import OnnxCheck, check_installed, write_onnx
from clinit.headtrain.record.format import RunRecord, changed_parameters
from clinit.headtrain.temperature import divided

_LATER = "`clinit remember MODEL IMAGES --out NEW` lets it remember its classes"
_FORGETS = (
    "the model remembers nothing: training has changed the backbone, so that cached features are"
    f" not its own; {_LATER}"
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
        remembers: Whether a folder holds what the model remembers of the images of the run, where
            its backbone was frozen and its caches are still there.
        calibrated: Whether the rows of the head are divided by a temperature, which is fitted on
            rows that the run was evaluated on, where its backbone was frozen and they are enough.
        onnx: Whether the folder holds the network as ONNX too.
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
    record = read_run(run)
    trained = learnt_head(run, record)
    backbone, transform = _backbone(record, base, weights)
    changed = changed_parameters(record)
    _change(backbone.network, changed, run)
    temperature, why = (
        temperature_of_run(record, trained, frozen=not changed, base=base, new=new)
        if calibrated
        else (None, ())
    )
    head = divided(trained, temperature)
    network = assemble(backbone, head)
    check_same_logits(network, backbone, head, transform)
    ended = accuracies(record)
    facts = ModelFacts(
        backbone=backbone.config.name,
        model_args=model_args(backbone),
        class_names=tuple(record.classes["name"])[: head.num_classes],
        tasks=tuple(record.classes["task"])[: head.num_classes],
        transform=transform,
        autocast=backbone.config.autocast,
        weights=state_sha256(network.state_dict()),
        fingerprint=_of_features(record, network if changed else None),
        record={
            **{name: record.info.get(name) for name in ("id", "started", "config")},
            "top1_percent": {name: part.percent for name, part in ended.items()},
            "test_images": {name: part.total for name, part in ended.items()},
        },
        history=(change_of(record, head.num_classes, ended),),
        temperature=temperature,
        timm=for_timm(network, model_args(backbone)),
    )
    checks: list[OnnxCheck] = []
    memory, notes = None, (*_notes(facts), *why)
    if onnx and not check_with:
        notes += tuple(map(_not_looked_in, in_containers(record)))

    def write_onnx_form(path: Path) -> None:
        images = check_with or images_of(record)
        checks.append(write_onnx(network, facts, path, images))

    if is_file:
        write_model(network, facts, out)
    else:
        extra: dict[str, Callable[[Path], object]] = {ONNX_FILE: write_onnx_form} if onnx else {}
        if remembers:
            memory, forgets = (
                _memory(record, facts, backbone, base, new) if not changed else (None, (_FORGETS,))
            )
            notes += forgets
            if memory is not None:
                extra[MEMORY_FILE] = partial(write_memory, memory)
        write_model_folder(out, network, facts, extra=extra, overwrite=overwrite)
    return Export(
        path=out,
        facts=facts,
        base=ended["base"],
        new=ended["new"],
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        num_changed=sum(value.size for value in changed.values()),
        notes=notes,
        memory=memory,
        onnx=checks[0] if checks else None,
    )


def _not_looked_in(cache: Path) -> str:
    return (
        f"the test images of {cache} lie in tar or Parquet files: none of them is among those that"
        " the ONNX form is compared on; `--check-images FOLDER` names image files instead"
    )


def _of_features(record: RunRecord, changed: nn.Module | None) -> Fingerprint:
    """Return what the features of the model depend on: its own weights where these have changed."""
    recorded = Fingerprint(record.info["base"]["fingerprint"])
    if changed is None:
        return recorded
    return Fingerprint({**recorded.without_rows.fields, "weights": body_sha256(changed)})


def _memory(
    record: RunRecord,
    facts: ModelFacts,
    backbone: Backbone,
    base: Path | None,
    new: Path | None,
) -> tuple[Memory | None, tuple[str, ...]]:
    """Return what the model remembers, or why it remembers nothing."""
    depends_on = features_of(facts, backbone)
    try:
        return memory_of_run(record, facts.num_classes, depends_on, base=base, new=new), ()
    except (CacheError, StorageError) as error:
        return None, (f"the model remembers nothing: {error}; {_LATER}",)


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


def _notes(facts: ModelFacts) -> tuple[str, ...]:
    extracted = facts.fingerprint.timm
    if extracted in (None, timm.__version__):
        return ()
    return (
        f"the features were extracted with timm {extracted}, this is timm {timm.__version__}:"
        " compare the accuracy of the model with that of the run",
    )
