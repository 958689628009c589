"""Extract again what is damaged, with the images and the network that the cache records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.machine import cpu_count
from clinit.extract.plan import read_plan
from clinit.extract.progress import Progress
from clinit.extract.recorded import images_root, rebuild_network, weights_file
from clinit.extract.repair.parts import DamagedCache, Mended, RepairConfig
from clinit.extract.run import ExtractConfig, Network, extract
from clinit.extract.summary import RunFacts
from clinit.extract.views import VIEWS_FOLDER

_DATASET = "the classes of the data set"
"""How a summary says that the head's rows are named after the classes of the data set."""


def extract_again(
    cache: DamagedCache,
    config: RepairConfig,
    *,
    on_progress: Callable[[Progress], None],
) -> Iterator[Mended]:
    """Run the extraction of each damaged split again; yield what has been written.

    Raises:
        CacheError: If images, weights or manifest are not known any more, or the features here
            would be others.
        ClinitError: If the extraction fails.
    """
    names = list(cache.names)
    if cache.views and "train" not in names:
        names.append("train")
    facts = next((cache.summaries[name].run for name in cache.summaries), RunFacts())
    root = images_root(cache.path, config.root, facts)
    plan = cache.plans[names[0]]
    network = rebuild_network(
        plan, weights_file(cache.path, config.weights, facts), config.device, origin=str(cache.path)
    )
    for name in names:
        settings = _settings(cache, name, network, facts, config.workers)
        manifests = {name: cache.manifest(name)}
        for result in extract(
            manifests,
            root,
            cache.path,
            settings,
            network=network,
            on_progress=on_progress,
        ):
            if result.split.path in cache.damaged or result.computed_rows:
                yield Mended(result.split.plan.title, result.computed_rows)


def _settings(
    cache: DamagedCache, name: str, network: Network, facts: RunFacts, workers: int | None
) -> ExtractConfig:
    """Return the settings that a split was extracted with."""
    plan = cache.plans[name]
    views = cache.views if name == "train" else ()
    seed = None
    if views:
        view = read_plan(cache.path / VIEWS_FOLDER / str(views[0]))
        seed = view.fingerprint.view_seed
    return ExtractConfig(
        backbone=network.backbone.config,
        batch_size=plan.batch_size,
        workers=workers or cpu_count(),
        dtype=plan.dtype,
        shard_rows=plan.shard_rows,
        max_pixels=facts.max_pixels or MAX_PIXELS,
        head_classes=_head_classes(cache),
        views=max(views, default=-1) + 1,
        view_seed=int(seed or 0),
    )


def _head_classes(cache: DamagedCache) -> str | None:
    """Return what named the rows of the head, as `--head-classes` has it.

    Raises:
        CacheError: If it was a file that is gone.
    """
    told = next((summary.head.class_names for summary in cache.summaries.values()), None)
    if told == _DATASET:
        return "dataset"
    if told is None or "/" not in told:
        return None
    if not Path(told).is_file():
        raise CacheError(
            f"the rows of the head in {cache.path} were named by {told}, where nothing is now",
            remedy="Put the file back, or run the `clinit extract` command of this cache with"
            " `--head-classes FILE`.",
        )
    return told
