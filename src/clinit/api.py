"""Functions for Python code; `import clinit` offers them all and loads each at its first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from clinit.analysis.diagnosis import Diagnosis, diagnose_split
from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.errors import ExperimentError
from clinit.extract.backbone import BackboneConfig
from clinit.extract.byte_size import byte_count
from clinit.extract.cache import open_cache
from clinit.extract.device import choose_device
from clinit.extract.head import Head, read_head
from clinit.extract.lock import claim_file, claim_folder
from clinit.extract.run import ExtractConfig
from clinit.extract.run import extract as extract_splits
from clinit.extract.scan import available_splits, scan
from clinit.headtrain.deployed.add import Addition
from clinit.headtrain.deployed.add_images import AddRequest, add_images
from clinit.headtrain.deployed.listener import Listener
from clinit.headtrain.deployed.model import open_model
from clinit.headtrain.deployed.settings import AddConfig
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.export.classifier import load_model
from clinit.headtrain.export.model_folder import check_free
from clinit.headtrain.least_squares.api import least_squares
from clinit.headtrain.probe.protocol import probe as probe_source
from clinit.headtrain.probe.result import Probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.record.finished import unrecorded
from clinit.headtrain.record.format import RunRecord, write_records
from clinit.headtrain.setting import fields_of
from clinit.headtrain.stream.base_head import starting_head
from clinit.headtrain.stream.source import Source, read_source, read_sources
from clinit.headtrain.study import PAPER_INITS, PER_HEAD, Study, names_of, refusals
from clinit.headtrain.top.images import open_side, reload_backbone
from clinit.headtrain.top.inputs import Side, Storage, prepare_inputs
from clinit.headtrain.top.resume import finish_run, unfinished

Cache = Source | str | Path
"""A feature cache: loaded, or its folder."""
Studies = Study | Mapping[str, Any] | Sequence[Study | Mapping[str, Any]]
"""One run or several; a mapping holds settings by name."""


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
    **options: Any,
) -> Source:
    """Run a frozen timm backbone over images once; return its features, which stay in `out`.

    What is there already is kept: a call that was interrupted goes on. (`clinit.extract` is the
    package with the code.)

    Args:
        images: Root of the images: `split/class/image`, or the layout of a known data set.
        out: Folder of the cache.
        backbone: Name of a timm model.
        dataset: `folder`, `webdataset` (tar shards), `huggingface` (Parquet files), or a known data
            set such as `imagenet1k` or `places365`.
        splits: Splits to extract, of `train` and `val`; default: those that exist.
        device: `auto`, `cuda` or `cpu`.
        weights: File of the weights; default: those that timm downloads.
        model_args: Further arguments of `timm.create_model`.
        options: Further settings of `clinit.extract.run.ExtractConfig`.

    Raises:
        ClinitError: If the images or the weights cannot be read, or the cache was made from
            other images or weights.
    """
    root, folder = Path(images), Path(out)
    found = splits or available_splits(dataset, root) or ("train",)
    manifests = {split: scan(dataset, root, split).manifest for split in found}
    config = ExtractConfig(
        backbone=BackboneConfig(
            name=backbone,
            device=choose_device(device).type,
            weights=None if weights is None else Path(weights),
            model_args=dict(model_args or {}),
        ),
        **options,
    )
    for _ in extract_splits(manifests, root, folder, config):
        pass
    return read_source(folder)


def load_cache(path: str | Path, *, memory: int | str | None = None) -> Source:
    """Read a feature cache: arrays, labels, class names, and the pretrained head.

    Args:
        path: Its folder.
        memory: Most memory for features, in bytes or as `8GB`: what takes more stays on disk, and
            rows of it are read by `features[rows]`. Default: all features are read into memory.

    Raises:
        ValueError: If `memory` is no size.
        CacheError: If there is none, or it is incomplete or damaged.
        MachineError: If the memory does not hold a shard.
    """
    if memory is None:
        return read_source(Path(path))
    (source,) = read_sources(Path(path), memory=_bytes(memory))
    return source


def train_heads(
    base: Cache,
    new: Cache,
    study: Studies | None = None,
    *,
    out: str | Path | None = None,
    head: Head | str | Path | None = None,
    memory: int | str | None = None,
    observer: Observer = ignore,
) -> Runs:
    """Train linear heads on new classes that arrive in tasks, on cached features.

    Studies of one stream are trained side by side, on the same batches; the numbers are those of
    `clinit train-head`. Those that `out` holds already are not trained again.

    Args:
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        study: What to train; default: random, class-mean and least-square rows.
        out: Folder to record each run in; default: nothing is written.
        head: The pretrained head, or its file; default: the one in the base cache.
        memory: Most memory for the features of caches that are given by their folders, in bytes or
            as `8GB`; what takes more stays on disk, with the same numbers. Default: what is free.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong, or two studies differ in more than their heads.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    studies = _studies(study, top=False)
    old, arriving = _opened(base, new, memory)
    first, facts = starting_head(old, _head(head))

    def train() -> list[RunRecord]:
        return run_experiment(old, arriving, first, studies, observer=observer, head_facts=facts)

    if out is None:
        return runs_of(train())
    folders = [Path(out) / name for name in names_of(studies)]
    with claim_folder(Path(out)):
        if left := unrecorded(studies, folders, old, arriving, first):
            records = train()
            write_records([records[i] for i in left], [folders[i] for i in left])
    return load_runs(*folders)


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
    observer: Observer = ignore,
) -> Runs:
    """Train the top blocks of a backbone and its head on new classes that arrive in tasks.

    Recorded runs are not trained again, and a run that was killed goes on from its checkpoint.

    Args:
        base: Feature cache of the classes of the pretrained head.
        new: Feature cache of the classes that arrive.
        study: What to train, one run after another; default: random, class-mean and least-square
            rows with low-rank updates.
        out: Folder to record each run in.
        head: The pretrained head, or its file; default: the one in the base cache.
        weights: File of the weights of the backbone; default: where it was at extraction.
        base_root: Folder of the base images; default: where they were at extraction.
        new_root: Folder of the new images; default: where they were at extraction.
        trunk_cache: Folder of stored activations; default: `out`/trunk-cache.
        trunk_budget: Most bytes of activations that are stored; 0 stores none.
        checkpoint_every: Updates between two checkpoints; 0 keeps one per task.
        observer: Called with each event as it happens.

    Raises:
        ValueError: If a setting is wrong, or two studies differ in more than their heads.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    folder = Path(out)
    studies = _studies(study, top=True)
    folders = [folder / name for name in names_of(studies)]
    if len({each.shared for each in studies}) > 1:
        raise ValueError(f"runs of one call differ at most in {', '.join(PER_HEAD)}")
    with claim_folder(folder):
        old, arriving = _side(base, base_root, "base"), _side(new, new_root, "new")
        first, facts = starting_head(old.source, _head(head))
        left = unfinished(studies, folders, old.source, arriving.source, first)
        if left:
            device = studies[0].training.device
            path = None if weights is None else Path(weights)
            backbone, transform = reload_backbone(old, path, device)
            trunk = folder / "trunk-cache" if trunk_cache is None else Path(trunk_cache)
            storage = Storage(folder=trunk, budget=trunk_budget)
            starts = {each.start.init for each, _ in left}
            inputs = prepare_inputs(
                old,
                arriving,
                first,
                backbone,
                transform,
                left[0][0],
                storage,
                random_only=starts == {"random"},
            )
            for each, record in left:
                finish_run(
                    inputs,
                    each,
                    record,
                    checkpoint_every=checkpoint_every,
                    observer=observer,
                    head_facts=facts,
                )
                inputs = inputs.reused()
    return load_runs(*folders)


def add_classes(
    model: str | Path,
    images: str | Path,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    old: Cache | None = None,
    replace: bool = False,
    features: str | Path | None = None,
    device: str = "auto",
    observer: Observer = ignore,
) -> Addition:
    """Add the classes of a folder of images to a model, and write the new model to `out`.

    The numbers are those of `clinit add`. What is there of the features is kept: a call that was
    interrupted goes on.

    Args:
        model: Folder or file of a model; it is not changed.
        images: A folder of images for each class, or `train` and `val` with such folders.
        out: Folder of the new model, or a file that ends in .safetensors.
        settings: Those of `clinit.headtrain.deployed.settings.AddConfig`, by name.
        old: Features of old classes, in place of what the model remembers.
        replace: Whether classes that the model has are replaced.
        features: Folder of the features of the images; default: `out` with `-features`.
        device: `auto`, `cuda` or `cpu`.
        observer: Called with each event of the training.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `out`.
    """
    config, path = AddConfig(**(settings or {})), Path(out)
    listener = Listener(training=lambda: nullcontext(observer))
    with claim_file(path, on_busy=lambda: None):
        check_free(path)
        opened = open_model(model, device=device)
        request = AddRequest(
            images=Path(images),
            out=path,
            config=config,
            extraction=ExtractConfig(backbone=opened.backbone.config),
            replacing=replace,
            old=Path(old) if isinstance(old, str) else old,
            features=None if features is None else Path(features),
        )
        added, _ = add_images(opened, request, listener=listener)
    return added


def diagnose(
    cache: str | Path,
    head: Head | str | Path | None = None,
    *,
    split: str = "val",
    lam: float = 0.05,
    per_class: bool = False,
    device: str = "auto",
) -> Diagnosis:
    """Measure neural collapse (NC1 to NC4) and D_LS of a head on a split of a cache.

    Args:
        cache: Folder of the features.
        head: The head, matched with the classes by name; default: the one in the cache.
        split: `train` or `val`.
        lam: Ridge of the least squares that D_LS compares with, >= 0.
        per_class: Whether to also measure each class.
        device: `auto`, `cuda` or `cpu`.

    Raises:
        CacheError: If the cache lacks the split, or is damaged.
        ExperimentError: If there is no head.
        HeadError: If the width of the head differs, or it has no class of the split.
    """
    opened = open_cache(Path(cache))
    if head is None:
        head = opened.head
    if head is None:
        raise ExperimentError(
            f"{cache} holds no pretrained head",
            remedy="Extract the classes with a backbone that has a classifier, or give a head.",
        )
    chosen = head if isinstance(head, Head) else read_head(Path(head))
    return diagnose_split(
        opened.split(split), chosen, lam=lam, per_class=per_class, device=choose_device(device)
    )


def probe(cache: Cache, **settings: Any) -> Probe:
    """Measure how well a linear head tells the classes of a cache apart: the linear probe.

    Args:
        cache: Features with their classes, or their folder.
        settings: Those of `clinit probe`, by name: `by`, `lr`, `weight_decay`, `epochs`,
            `batch_size`, `c`, `max_iterations`, `held_out`, `standardise`, `seed`, `device`. `lr`,
            `weight_decay` and `c` are lists of what is tried.

    Raises:
        ValueError: If a setting is unknown or wrong.
        ClinitError: If there is nothing to tell apart or to hold out, or every head diverges.
    """
    every = fields_of(ProbeConfig)
    if unknown := [name for name in settings if name not in every]:
        raise ValueError(f"there is no setting {unknown[0]!r}")
    taken = {name: every[name].taken(value) for name, value in settings.items()}
    return probe_source(_loaded(cache), ProbeConfig(**taken))


def _studies(asked: Studies | None, *, top: bool) -> list[Study]:
    if asked is None:
        asked = [{"init": init} for init in PAPER_INITS]
    several = [asked] if isinstance(asked, Study | Mapping) else asked
    found = []
    for each in several:
        if isinstance(each, Mapping):
            study = Study.of(each, top=top)
            if idle := refusals([*each], [study]):
                raise ValueError(idle[0])
            found.append(study)
        else:
            found.append(each)
    if not found:
        raise ValueError("there is no study: give at least one")
    for study in found:
        if (study.top is not None) != top:
            raise ValueError(
                "the study has no settings of top blocks. Give it a part `top`."
                if top
                else "the study has settings of top blocks. Call `clinit.train_top` for them."
            )
    return list(dict.fromkeys(study.resolved() for study in found))


def _opened(base: Cache, new: Cache, memory: int | str | None) -> tuple[Source, Source]:
    """Open the caches that are given by their folders, all of them within the memory."""
    folders = [Path(each) for each in (base, new) if not isinstance(each, Source)]
    if memory is not None and not folders:
        raise ValueError(
            "both caches are loaded already: give their folders, or load them with memory="
        )
    opened = iter(read_sources(*folders, memory=None if memory is None else _bytes(memory)))
    old, arriving = (each if isinstance(each, Source) else next(opened) for each in (base, new))
    return old, arriving


def _bytes(memory: int | str) -> int:
    if isinstance(memory, int):
        return memory
    try:
        return byte_count(memory)
    except ValueError as error:
        raise ValueError(f"memory {error}") from error


def _loaded(cache: Cache) -> Source:
    return cache if isinstance(cache, Source) else load_cache(cache)


def _head(head: Head | str | Path | None) -> Head | Path | None:
    return Path(head) if isinstance(head, str) else head


def _side(cache: str | Path, root: str | Path | None, name: str) -> Side:
    path = None if root is None else Path(root)
    return open_side(Path(cache), path, option=f"{name}_root")


__all__ = [
    "Cache",
    "Probe",
    "Runs",
    "Source",
    "Studies",
    "add_classes",
    "diagnose",
    "extract_features",
    "least_squares",
    "load_cache",
    "load_model",
    "load_runs",
    "probe",
    "train_heads",
    "train_top",
]
