"""The Python interface: extract features, load caches, train runs, write and measure heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from clinit.analysis.metrics.diagnosis import Diagnosis, diagnose_split, diagnose_summed
from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.errors import ExperimentError
from clinit.extract.arrays.groups import record_scanned
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.extract.cache.read import open_cache
from clinit.extract.dataset.names import is_text
from clinit.extract.dataset.scan import scan_splits
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig, extract
from clinit.files.lock import claim_folder
from clinit.files.paths import is_file
from clinit.headtrain.heads.array import as_array, to_numpy
from clinit.headtrain.heads.start.settings import PAPER_INITS
from clinit.headtrain.probe.protocol import Probe
from clinit.headtrain.probe.protocol import probe as probe_source
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol import runs
from clinit.headtrain.protocol.events import Observer, ignore
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.stream.source import Source, read_source, read_sources
from clinit.headtrain.protocol.stream.summed import read_summed
from clinit.headtrain.protocol.study.rules import refusals
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.images import Images, Storage
from clinit.machine import choose_device
from clinit.setting import fields_of
from clinit.words import byte_count

Cache = Source | str | Path
"""A loaded feature cache, or its folder."""
Caches = Cache | Sequence[str | Path]
"""One cache, or the folders of several caches of one backbone."""
Studies = Study | Mapping[str, Any] | Sequence[Study | Mapping[str, Any]]
"""One study or several; a mapping contains settings by name."""


def extract_features(
    images: str | Path,
    out: str | Path,
    backbone: str,
    *,
    dataset: str = "folder",
    splits: Sequence[str] | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
    model_args: Mapping[str, Any] | None = None,
    features: str = "pooled",
    labels: str | None = None,
    **options: Any,
) -> Source:
    """Run a frozen timm backbone over images once; return the features, which are stored in `out`.

    Existing features are not computed again, so an interrupted call resumes. (`clinit.extract` is
    the package with the code.)

    Args:
        images: Folder of the images: `split/class/image`, or the layout of a known data set.
        out: Folder of the cache.
        backbone: Name of a timm model.
        dataset: `folder`, `webdataset` (tar shards), `huggingface` (Parquet files), or a known data
            set such as `imagenet1k` or `places365`.
        splits: Splits to extract: `train`, `val`, or `test`, whose images become the split val;
            None extracts train and val if they exist.
        device: `auto`, `cuda` or `cpu`.
        weights: File of the weights; None means timm's pretrained weights.
        model_args: Further arguments of `timm.create_model`.
        features: `pooled`, or `projected`: the output of the projection of a CLIP tower.
        labels: For images that are not in class folders, a table of paths and classes, as in
            `clinit extract --labels`.
        options: Further settings of `clinit.extract.work.run.ExtractConfig`.

    Raises:
        ClinitError: If images or weights cannot be read, or the cache was made from other images
            or weights.
    """
    root, folder = Path(images), Path(out)
    found = list(scan_splits(dataset, root, splits or (), labels=labels))
    config = ExtractConfig(
        backbone=BackboneConfig(
            name=backbone,
            device=choose_device(device).type,
            weights=_path(weights),
            model_args=dict(model_args or {}),
            output=features,
        ),
        **options,
    )
    list(extract({each.manifest.split: each.manifest for each in found}, root, folder, config))
    record_scanned(folder, found, labels)
    return read_source(folder)


def load_cache(path: str | Path, *, memory: int | str | None = None) -> Source:
    """Read a feature cache: arrays, labels, class names, and the pretrained head.

    Args:
        path: The folder of the cache.
        memory: Maximum memory for features, in bytes or as `8GB`. Larger features stay on disk, and
            `features[rows]` reads some rows. None reads all features into memory.

    Raises:
        ValueError: If `memory` is not a size.
        CacheError: If the cache does not exist, is incomplete or damaged.
        MachineError: If the memory is too small for a shard.
    """
    if memory is None:
        return read_source(Path(path))
    (source,) = read_sources(Path(path), memory=_bytes(memory))
    return source


def _opened(
    base: Caches | None, new: Caches, memory: int | str | None
) -> tuple[Source | None, Source]:
    """Open those caches that are folders, so that together they need at most `memory`."""
    folders = [
        [Path(path) for path in ([each] if isinstance(each, str | Path) else each)]
        for each in (base, new)
        if each is not None and not isinstance(each, Source)
    ]
    if memory is not None and not folders:
        raise ValueError(
            "both caches are loaded already: give their folders, or load them with memory="
        )
    read = iter(read_sources(*folders, memory=_bytes(memory)))
    old = base if base is None or isinstance(base, Source) else next(read)
    return old, new if isinstance(new, Source) else next(read)


def _bytes(memory: int | str | None) -> int | None:
    if not isinstance(memory, str):
        return memory
    try:
        return byte_count(memory)
    except ValueError as error:
        raise ValueError(f"memory {error}") from error


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _head(given: Head | str | Path | None) -> Head | Path | None:
    return Path(given) if isinstance(given, str) else given


def save_head(path: str | Path, weight: Any, bias: Any, class_names: Sequence[str]) -> Head:
    """Write a linear head to a file that every command with `--head` can read.

    Args:
        path: The file, .safetensors or .npz; an existing file is replaced.
        weight: NumPy, torch or CuPy array (classes, dim) of any float type; stored in float32.
        bias: Such an array (classes,); None means zeros.
        class_names: One unique name per row, as the classes are named in the base cache.

    Raises:
        ValueError: If an array has a wrong shape or type, values are not finite, or names are not
            unique.
        ClinitError: If the file cannot be written.
    """
    place = Path(path)
    if place.suffix not in (".safetensors", ".npz"):
        raise ValueError(f"a head is written as .safetensors or .npz, got {place.name!r}")
    rows = to_numpy(as_array(weight))
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.size:
        raise ValueError(f"weight is {rows.dtype} {rows.shape}, expected floats (classes, dim)")
    biases = np.zeros(len(rows), np.float32) if bias is None else to_numpy(as_array(bias))
    if biases.shape != rows.shape[:1] or biases.dtype.kind != "f":
        raise ValueError(f"bias is {biases.dtype} {biases.shape}, expected floats ({len(rows)},)")
    with np.errstate(over="ignore"):
        rows, biases = rows.astype(np.float32), biases.astype(np.float32)
    if not (np.isfinite(rows).all() and np.isfinite(biases).all()):
        raise ValueError("weight or bias contains values that are not finite in float32")
    names = (class_names,) if isinstance(class_names, str) else tuple(class_names)
    if not all(isinstance(name, str) and name and is_text(name) for name in names):
        raise ValueError("class_names must be texts, one per row")
    if not len(names) == len(set(names)) == len(rows):
        raise ValueError(
            f"{len(names)} class names, {len(set(names))} of them different, for {len(rows)} rows"
        )
    head = Head(rows, biases, names)
    write_head(head, place)
    return head


def load_head(path: str | Path) -> Head:
    """Read a head file, of clinit or of another program, with `weight` and `bias`.

    Raises:
        HeadError: If the file does not exist or is damaged.
    """
    return read_head(Path(path))


def diagnose(
    cache: Cache,
    head: Head | str | Path | None = None,
    *,
    split: str = "val",
    lam: float = 0.05,
    device: str = "auto",
) -> Diagnosis:
    """Measure neural collapse (NC1 to NC4) and D_LS of a head on a split of a cache.

    Args:
        cache: A cache, whose features are read from its folder; or a file of `clinit.sum_caches`,
            for which `head` is required and `split` is not used.
        head: The head, whose rows are matched with the classes by name; None takes the head in the
            cache.
        split: `train` or `val`.
        lam: Ridge of the least-squares head that D_LS compares with, >= 0.
        device: `auto`, `cuda` or `cpu`.

    Raises:
        CacheError: If the cache lacks the split, or is damaged.
        ExperimentError: If `head` is None and the cache contains no head.
        HeadError: If the width of the head differs from the features', or the head has no class of
            the split.
    """
    folder = cache.path if isinstance(cache, Source) else cache
    if head is not None and is_file(Path(folder)):
        chosen = head if isinstance(head, Head) else read_head(Path(head))
        return diagnose_summed(read_summed(Path(folder)), chosen, lam=lam)
    opened = open_cache(Path(folder))
    if head is None:
        head = cache.head if isinstance(cache, Source) else opened.head
    if head is None:
        raise ExperimentError(
            f"{folder} contains no pretrained head",
            remedy="Extract the classes with a backbone that has a classifier, or give a head.",
        )
    chosen = head if isinstance(head, Head) else read_head(Path(head))
    return diagnose_split(opened.split(split), chosen, lam=lam, device=choose_device(device))


def probe(cache: Cache, **settings: Any) -> Probe:
    """Measure how well a linear head separates the classes of a cache: the linear probe.

    Args:
        cache: A cache, or its folder.
        settings: Options of `clinit probe`, by name: `by`, `lr`, `weight_decay`, `epochs`,
            `batch_size`, `c`, `max_iterations`, `held_out`, `standardise`, `seed`, `device`. `lr`,
            `weight_decay` and `c` are lists of values to try.

    Raises:
        ValueError: If a setting is unknown or wrong.
        ClinitError: If there are too few classes or rows, or all heads diverge.
    """
    every = fields_of(ProbeConfig)
    if unknown := [name for name in settings if name not in every]:
        raise ValueError(f"there is no setting {unknown[0]!r}")
    taken = {name: every[name].taken(value) for name, value in settings.items()}
    source = cache if isinstance(cache, Source) else load_cache(cache)
    return probe_source(source, ProbeConfig(**taken))


def _studies(asked: Studies | None, *, top: bool) -> list[Study]:
    """Return the given studies, resolved; None means the three starts of the paper.

    Raises:
        ValueError: If a setting is wrong or has no effect, there is no study, or a study has a part
            `top` although `top` is false, or vice versa.
    """
    if asked is None:
        asked = [{"init": init} for init in PAPER_INITS]
    found = []
    for each in [asked] if isinstance(asked, Study | Mapping) else asked:
        study = Study.of(each, top=top) if isinstance(each, Mapping) else each
        if isinstance(each, Mapping) and (idle := refusals([*each], [study])):
            raise ValueError(idle[0])
        if (study.top is not None) != top:
            raise ValueError(
                "the study has no settings of top blocks. Give it a part `top`."
                if top
                else "the study has settings of top blocks. Call `clinit.train_top` for them."
            )
        found.append(study.resolved())
    if not found:
        raise ValueError("there is no study: give at least one")
    return list(dict.fromkeys(found))


def train_heads(
    base: Caches | None,
    new: Caches,
    study: Studies | None = None,
    *,
    seeds: Iterable[int] | None = None,
    out: str | Path | None = None,
    head: Head | str | Path | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    observer: Observer = ignore,
) -> Runs:
    """Train linear heads on new classes that arrive in tasks, on cached features.

    Studies with the same stream (they differ only in their heads) are trained side by side, on the
    same batches; seeds are trained one after another. The results equal `clinit train-head`'s. Runs
    that `out` already contains, under any name, are not trained again.

    Args:
        base: Features of the classes of the pretrained head, or a file of `clinit.sum_caches` and a
            cache with test rows and head. None means a stream without base classes, whose first
            task makes the head.
        new: Features of the classes that arrive in tasks.
        study: The settings to train; None means random, class-mean and least-square rows.
        seeds: Seeds for every study, such as `range(5)`; None takes the seed of each study.
        out: Folder to record each run in; None writes nothing.
        head: The pretrained head, or its file; None takes the head in the base cache.
        memory: Maximum memory for the features of caches that are given as folders, in bytes or as
            `8GB`. Larger features stay on disk, with the same results. None means free memory.
        overwrite: Whether to replace existing records, of these or other runs.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    studies = _studies(study, top=False)
    if seeds is not None:
        studies = [each.changed({"seed": index(seed)}) for seed in seeds for each in studies]
        studies = _studies(studies, top=False)
    data = RunData.of(*_opened(base, new, memory), {"": _head(head)})
    if out is None:
        records = runs.train_heads(data, studies, observer=observer)
        return runs_of([records[each] for each in studies])
    with claim_folder(Path(out)):
        places = runs.places_of(studies, Path(out), overwrite=overwrite)
        left = runs.left_of(places, data, overwrite=overwrite)
        runs.train_heads(data, studies, left, observer=observer, overwrite=overwrite)
    return load_runs(*places.values())


def train_top(
    base: str | Path,
    new: str | Path,
    study: Studies | None = None,
    *,
    out: str | Path,
    head: Head | str | Path | None = None,
    weights: str | Path | None = None,
    base_root: str | Path | None = None,
    new_root: str | Path | None = None,
    trunk_cache: str | Path | None = None,
    trunk_budget: int = 20 * 10**9,
    checkpoint_every: int = 100,
    overwrite: bool = False,
    observer: Observer = ignore,
) -> Runs:
    """Train the top blocks of a backbone and its head on new classes that arrive in tasks.

    Recorded runs are not trained again, and a killed run resumes from its checkpoint.

    Args:
        base: Feature cache of the classes of the pretrained head.
        new: Feature cache of the classes that arrive in tasks.
        study: The settings to train, one run after another; None means random, class-mean and
            least-square rows with low-rank updates.
        out: Folder to record each run in.
        head: The pretrained head, or its file; None takes the head in the base cache.
        weights: File of the weights of the backbone; None takes its path at extraction.
        base_root: Folder of the base images; None takes their path at extraction.
        new_root: Folder of the new images; None takes their path at extraction.
        trunk_cache: Folder of stored activations; None means `out`/trunk-cache.
        trunk_budget: Maximum bytes of activations to store; 0 stores none.
        checkpoint_every: Updates between two checkpoints; 0 writes one per task.
        overwrite: Whether to replace existing records, of these or other runs.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    from clinit.headtrain.top.inputs import ImageData  # slow: it imports timm
    from clinit.headtrain.top.runs import train_top as train_recorded

    folder = Path(out)
    studies = _studies(study, top=True)
    images = Images(
        base=Path(base),
        new=Path(new),
        base_root=_path(base_root),
        new_root=_path(new_root),
        weights=_path(weights),
        storage=Storage(folder=_path(trunk_cache) or folder / "trunk-cache", budget=trunk_budget),
    )
    with claim_folder(folder):
        places = runs.places_of(studies, folder, overwrite=overwrite)
        data = ImageData.open(images, {"": _head(head)}, option="{}_root")
        train_recorded(
            data,
            runs.left_of(places, data, overwrite=overwrite),
            watch=lambda _: nullcontext(observer),
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    return load_runs(*places.values())
