"""Extract again what is damaged, with the images and the network that the cache records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clinit.errors import CacheError, ImageError
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.machine import cpu_count
from clinit.extract.named_rows import AsBefore
from clinit.extract.plan import read_plan
from clinit.extract.progress import Progress
from clinit.extract.recorded import Networks, images_root
from clinit.extract.repair.head_names import recorded_names
from clinit.extract.repair.parts import DamagedCache, Mended, RepairConfig
from clinit.extract.run import ExtractConfig, Network, extract
from clinit.extract.views import VIEWS_FOLDER


@dataclass(frozen=True, slots=True, eq=False)
class ExtractionRepair:
    """The extraction of a damaged cache, as the cache records it."""

    cache: DamagedCache
    config: RepairConfig
    on_progress: Callable[[Progress], None]
    networks: Networks

    def extract_again(self, name: str) -> dict[Path, Mended]:
        """Run the extraction of a split again; return what has been written, by its folder.

        Raises:
            CacheError: If images, weights, manifest or names of the head's rows are not known
                any more, or the features here would be others.
            ClinitError: If the extraction fails.
        """
        cache = self.cache
        root = images_root(cache.path, self.config.root, cache.facts(name))
        network = self.networks.of(cache.plans[name], cache.facts(name))
        settings = self._settings(name, network)
        written: dict[Path, Mended] = {}
        try:
            for result in extract(
                {name: cache.manifest(name)},
                root,
                cache.path,
                settings,
                network=network,
                on_progress=self.on_progress,
            ):
                if result.split.path in cache.damaged or result.computed_rows:
                    mended = Mended(result.split.plan.title, result.computed_rows)
                    written[result.split.path] = mended
        except ImageError as error:
            raise CacheError(
                f"{error}; nothing whole in {cache.path} says that this row had no features",
                remedy="Put the image back or say where all are with `--root DIR`, or run the"
                " `clinit extract` command of this cache: it marks the row invalid.",
            ) from error
        return written

    def _settings(self, name: str, network: Network) -> ExtractConfig:
        """Return the settings that a split was extracted with."""
        cache, plan = self.cache, self.cache.plans[name]
        views = cache.views if name == "train" else ()
        seed = None
        if views:
            view = read_plan(cache.path / VIEWS_FOLDER / str(views[0]))
            seed = view.fingerprint.view_seed
        told = cache.summaries.get(cache.path / name)
        invalid = () if told is None else told.invalid
        return ExtractConfig(
            backbone=network.backbone.config,
            batch_size=plan.batch_size,
            workers=self.config.workers or cpu_count(),
            dtype=plan.dtype,
            shard_rows=plan.shard_rows,
            max_pixels=cache.facts(name).max_pixels or MAX_PIXELS,
            views=max(views, default=-1) + 1,
            view_seed=int(seed or 0),
            as_before=AsBefore(
                recorded_names(cache, name, network.backbone.head),
                frozenset(entry.row for entry in invalid),
            ),
        )
