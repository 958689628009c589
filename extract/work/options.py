"""What the options of an extraction say; PyTorch is loaded when it begins, not before."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.errors import ClinitError, ManifestError
from clinit.extract.cache.plan import WHOLE, Part
from clinit.extract.dataset.known import FOLDER, MAX_PIXELS, check_known
from clinit.machine import cpu_count

if TYPE_CHECKING:
    from clinit.extract.dataset.manifest import Manifest
    from clinit.extract.work.run import ExtractConfig
    from clinit.extract.work.shard_work import Progress
    from clinit.extract.work.split_run import SplitResult


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """A network of timm, and how images go through it; see `ExtractConfig`."""

    backbone: str | None = None
    weights: Path | None = None
    model_arg: Sequence[str] | None = None
    """Arguments of `timm.create_model`, as `name=value`."""
    head_classes: str | Path | None = None
    transform: str = "timm"
    input_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    batch_size: int | None = None
    workers: int | None = None
    device: str = "auto"
    max_pixels: int = MAX_PIXELS
    retry_invalid: bool = False

    def extraction(self, *, autocast: str = "off", **others: Any) -> ExtractConfig:
        """Return the configuration of an extraction; `others` are further fields of it."""
        from clinit.extract.network.backbone import BackboneConfig
        from clinit.extract.network.model_args import parse_model_args
        from clinit.extract.work.run import ExtractConfig
        from clinit.machine import choose_device

        others.setdefault("device", str(choose_device(self.device)))
        return ExtractConfig(
            backbone=BackboneConfig(
                name=self.backbone or "",
                weights=self.weights,
                model_args=parse_model_args(self.model_arg or ()),
                device=others.pop("device"),
                autocast=autocast,
            ),
            transform=self.transform,
            input_size=self.input_size,
            mean=self.mean,
            std=self.std,
            batch_size=self.batch_size,
            workers=self.workers or cpu_count(),
            max_pixels=self.max_pixels,
            retry_invalid=self.retry_invalid,
            head_classes=None if self.head_classes is None else str(self.head_classes),
            **others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions(NetworkOptions):
    """A data set, a network and a cache: what `clinit extract` is asked for."""

    root: Path
    out: Path
    dataset: str | None = None
    manifest: Path | None = None
    """A manifest of the images, instead of a data set."""
    split: str | None = None
    """`train`, `val`, or `test` for test images as the split val; None for those that exist."""
    backbone: str | None = "convnextv2_femto.fcmae_ft_in1k"
    dtype: str = "float16"
    autocast: str = "off"
    limit_per_class: int | None = None
    shard_rows: int = 4096
    views: int = 0
    view_seed: int = 0
    strict: bool = False
    part: str | None = None
    """`i/n`; None for everything."""
    ray: str | None = None
    """Address of a Ray cluster that extracts."""

    def check(self) -> None:
        """Refuse what is not there: the data set, the manifest, the folder, images in its layout.

        Raises:
            ClinitError: If something is absent, or the part is none.
        """
        from clinit.extract.dataset.tree import Tree

        if self.part is not None:
            Part.parse(self.part)
        if self.dataset is not None:
            check_known(self.dataset)
        Tree.at(self.root)
        if self.manifest is not None and not self.manifest.is_file():
            from clinit.extract.dataset.manifest import read_manifest

            read_manifest(self.manifest)  # says what is wrong with it
        if self.dataset is not None and self.split is None:
            from clinit.extract.dataset.scan import available_splits, scan

            if not available_splits(self.dataset, self.root):
                scan(self.dataset, self.root, "train")  # says what was looked for

    def manifests(
        self,
        *,
        doing: Callable[[str], AbstractContextManager[object]],
        warn: Callable[[str], None],
        note: Callable[[str], None],
    ) -> Mapping[str, Manifest]:
        """Return the images of each split.

        Args:
            doing: Entered with a few words while a folder is scanned.
            warn: Told what differs from the description of the data set.
            note: Told that nothing can be evaluated.

        Raises:
            ManifestError: If images or the manifest are not as expected.
        """
        found = dict(self._read() if self.dataset is None else self._scan(doing, warn))
        if self.dataset is not None and self.split is None and "val" not in found:
            note(no_val(self.dataset, self.root))
        if self.limit_per_class is None:
            return found
        return {name: each.limit_per_class(self.limit_per_class) for name, each in found.items()}

    def _read(self) -> Iterator[tuple[str, Manifest]]:
        from clinit.extract.dataset.manifest import read_manifest

        assert self.manifest is not None
        given = read_manifest(self.manifest)
        if self.split is not None and ("train" if self.split == "train" else "val") != given.split:
            raise ManifestError(
                f"{self.manifest} is the manifest of split {given.split}, not of {self.split}",
                remedy="Leave out `--split`, or give the manifest of that split.",
            )
        yield given.split, given

    def _scan(
        self, doing: Callable[[str], AbstractContextManager[object]], warn: Callable[[str], None]
    ) -> Iterator[tuple[str, Manifest]]:
        from clinit.extract.dataset.scan import available_splits, scan

        assert self.dataset is not None
        # Where no split is found, scanning for one says what was looked for.
        every = available_splits(self.dataset, self.root) or ("train",)
        for name in (self.split,) if self.split is not None else every:
            with doing(f"Scanning {name} …"):
                scanned = scan(self.dataset, self.root, name, strict=self.strict)
            for warning in scanned.warnings:
                warn(warning)
            yield scanned.manifest.split, scanned.manifest

    def run(
        self,
        manifests: Mapping[str, Manifest],
        *,
        command: str | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> Iterator[SplitResult]:
        """Extract, here or on a cluster; see `extract`. `command` is recorded with the cache."""
        from clinit.extract.work.run import extract, extract_on_ray

        told: dict[str, Any] = {
            "autocast": self.autocast,
            "dtype": self.dtype,
            "shard_rows": self.shard_rows,
            "strict": self.strict,
            "views": self.views,
            "view_seed": self.view_seed,
            "command": command,
        }
        if self.ray is not None:
            config = self.extraction(**told, device=self.device)
            yield from extract_on_ray(
                manifests,
                self.root,
                self.out,
                config,
                self.ray,
                threads=self.workers,
                on_progress=on_progress,
            )
            return
        part = WHOLE if self.part is None else Part.parse(self.part)
        yield from extract(
            manifests, self.root, self.out, self.extraction(**told), part, on_progress=on_progress
        )


def no_val(dataset: str, root: Path) -> str:
    """Say that no class can be evaluated, and ask whether the root is one folder too deep."""
    from clinit.extract.dataset.containers import split_folders
    from clinit.extract.dataset.scan import available_splits

    parent = Path(os.path.normpath(root / ".."))
    told = f"{root} has no val split: none of its classes can be evaluated"
    if dataset == FOLDER and split_folders([root.absolute().name], "val"):
        with suppress(ClinitError):
            if "val" in available_splits(dataset, parent):
                return f"{told}. {parent} has one: was --root {shlex.quote(str(parent))} meant?"
    return told
