"""Options of an extraction; PyTorch is loaded only when the extraction begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.errors import ManifestError
from clinit.extract.cache.plan import WHOLE, Part
from clinit.extract.dataset.known import check_known
from clinit.extract.work.settings import Settings

if TYPE_CHECKING:
    from clinit.extract.dataset.manifest import Manifest
    from clinit.extract.dataset.scan import Scan
    from clinit.extract.work.run import ExtractConfig
    from clinit.extract.work.split_run import Progress, SplitResult


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions(Settings):
    """Options of a timm network and of the transform of its images."""

    backbone: str | None = None
    weights: Path | None = None
    model_arg: Sequence[str] | None = None
    """Arguments of `timm.create_model`, as `name=value`."""
    autocast: str = "off"
    output: str = "pooled"
    """`pooled`, or `projected` features of a CLIP tower."""
    device: str = "auto"

    def extraction(self, device: str | None = None) -> ExtractConfig:
        """Return the configuration of an extraction on `device`; None means `self.device`."""
        from clinit.extract.network.backbone import BackboneConfig, parse_model_args
        from clinit.extract.work.run import ExtractConfig
        from clinit.machine import choose_device

        backbone = BackboneConfig(
            name=self.backbone or "",
            weights=self.weights,
            model_args=parse_model_args(self.model_arg or ()),
            device=device or str(choose_device(self.device)),
            autocast=self.autocast,
            output=self.output,
        )
        settings = {each.name: getattr(self, each.name) for each in fields(Settings)}
        return ExtractConfig(backbone=backbone, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions(NetworkOptions):
    """The options of `clinit extract`: a data set, a network and a cache."""

    root: Path
    out: Path
    dataset: str | None = None
    manifest: Path | None = None
    labels: str | None = None
    split: str | None = None
    """`train`, `val`, or `test` (test images become the split val); None means all splits."""
    backbone: str | None = "convnextv2_femto.fcmae_ft_in1k"
    limit_per_class: int | None = None
    part: str | None = None
    """`i/n`; None means all parts."""
    ray: str | None = None
    """Address of a Ray cluster to extract on; None extracts on this machine."""

    def scans(
        self,
        *,
        doing: Callable[[str], AbstractContextManager[object]],
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> Mapping[str, Scan]:
        """List the images of each split.

        Args:
            doing: Shows a text while a folder is scanned.
            warn: Called with each difference from the description of the data set.
            note: Called with files that are left out, and if there are no images to evaluate on.

        Raises:
            ManifestError: If images are missing, or the manifest is of another split.
        """
        found = {each.manifest.split: each for each in self._scan(doing, warn, note)}
        if self.dataset is not None and self.split is None and "val" not in found:
            note(f"{self.root} has no val split: no class can be evaluated")
        if self.head_classes not in (None, "dataset"):
            from clinit.extract.dataset.names import HEAD_LIST, near_names, read_class_names

            named = read_class_names(Path(self.head_classes), HEAD_LIST)
            own = next(iter(found.values())).manifest.class_names
            if near := near_names(own, named, "the data set", self.head_classes):
                warn(near)
        if self.limit_per_class is None:
            return found
        most = self.limit_per_class
        return {
            name: replace(each, manifest=each.manifest.limit_per_class(most))
            for name, each in found.items()
        }

    def _scan(
        self,
        doing: Callable[[str], AbstractContextManager[object]],
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> Iterator[Scan]:
        if self.dataset is not None:
            check_known(self.dataset)  # refuse a wrong name before the slow imports below
        from clinit.extract.dataset.manifest import read_manifest
        from clinit.extract.dataset.scan import Scan, scan_splits

        if self.manifest is not None:
            if self.labels is not None:
                raise ManifestError(
                    "a manifest contains labels: --labels would not be used",
                    remedy="Leave out --labels, or give --dataset folder instead of --manifest.",
                )
            given = read_manifest(self.manifest)
            wanted = {"test": "val", None: given.split}.get(self.split, self.split)
            if wanted != given.split:
                raise ManifestError(
                    f"{self.manifest} is the manifest of split {given.split}, not of {self.split}",
                    remedy="Leave out `--split`, or give the manifest of that split.",
                )
            yield Scan(given, ())
            return
        assert self.dataset is not None
        splits = () if self.split is None else (self.split,)
        for scanned in scan_splits(
            self.dataset, self.root, splits, strict=self.strict, labels=self.labels, doing=doing
        ):
            scanned.tell(warn, note)
            yield scanned

    def run(
        self,
        manifests: Mapping[str, Manifest],
        on_progress: Callable[[Progress], None],
        on_note: Callable[[str], object],
    ) -> Iterator[SplitResult]:
        """Extract on this machine or on a cluster; see `extract`."""
        from clinit.extract.work.run import extract, extract_on_ray

        if self.ray is not None:
            config = self.extraction(self.device)
            return extract_on_ray(manifests, self.root, self.out, config, self.ray, on_progress)
        part = WHOLE if self.part is None else Part.parse(self.part)
        config = self.extraction()
        return extract(
            manifests,
            self.root,
            self.out,
            config,
            part,
            on_progress=on_progress,
            on_note=on_note,
        )
