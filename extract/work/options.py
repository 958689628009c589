"""Options of an extraction; PyTorch is loaded only when the extraction begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clinit.errors import ManifestError
from clinit.extract.dataset.known import MAX_PIXELS, check_known
from clinit.machine import cpu_count
from clinit.observer import Noted, Observer, Warned
from clinit.setting import SettingGroup, setting

if TYPE_CHECKING:
    from clinit.extract.dataset.manifest import Manifest
    from clinit.extract.dataset.scan import Scan

MOST_THREADS = {"cpu": 8, "cuda": 2}
"""Maximum default number of threads, by decoder: they wait for the interpreter lock. On 16 cores, 8
threads decode 4.3 times as many images/s as one, 16 threads 3.2 times; for a device, which decodes
itself, one thread reads twice as many as 8."""
CPUS = f"usable CPUs, at most {MOST_THREADS['cpu']}"
COMPUTATION, DATA, NETWORK, OUTPUT = "Computation", "Data", "Network", "Output"
"""Headings of the help."""


@dataclass(frozen=True, kw_only=True)
class _Transform(SettingGroup):
    """Class names of the classifier, and the transform of the images."""

    panel: ClassVar = NETWORK

    head_classes: str | None = setting(
        None,
        "Class names of the classifier's rows: a file with one name per line, or `dataset` for the"
        " classes of this data set in order.",
        otherwise="stored with the weights; ImageNet-1K for 1,000 rows",
    )
    transform: Literal["timm", "paper"] = setting(
        "timm", "The model's own, or the paper's (256 x 256, centre crop 224)."
    )
    input_size: int | None = setting(
        None,
        "Height and width of the network's input in pixels.",
        least=1,
        most=4096,
        otherwise="model's",
    )
    mean: tuple[float, ...] | None = setting(
        None, "Pixel mean in [0, 1]: 0.5 or 0.5,0.5,0.5.", least=0, otherwise="model's", joined=True
    )
    std: tuple[float, ...] | None = setting(
        None,
        "Pixel deviation in (0, 1], in the same form.",
        above=0,
        otherwise="model's",
        joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Computation(SettingGroup):
    """How images become features."""

    panel: ClassVar = COMPUTATION

    batch_size: int | None = setting(
        None,
        "Images per forward pass.",
        least=1,
        most=10**9,
        otherwise="as in the existing cache; else 32 on a CPU, 256 on a GPU",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto",
        "Compile the network, which takes some seconds and makes convolutional networks two to four"
        " times as fast; auto: as before if the cache exists, otherwise if it saves time.",
    )
    workers: int | None = setting(
        None,
        "Threads that read and decode.",
        least=1,
        otherwise="usable CPUs, at most 8, or 2 with --decoder cuda",
    )
    decoder: Literal["cpu", "cuda"] = setting(
        "cpu",
        "Decoder of JPEG files. A CUDA device relieves the CPUs; its pixels differ slightly, so its"
        " features cannot be used together with features of the CPU decoder.",
    )


@dataclass(frozen=True, kw_only=True)
class _Output(SettingGroup):
    """How features are stored."""

    panel: ClassVar = OUTPUT

    dtype: Literal["float16", "float32"] = setting("float16", "Type of stored features.")
    shard_rows: int = setting(
        4096, "Rows per shard. A killed run loses at most one shard.", least=1, most=10**9
    )


@dataclass(frozen=True, kw_only=True)
class _Images(SettingGroup):
    """Which images are read."""

    panel: ClassVar = DATA

    max_pixels: int = setting(
        MAX_PIXELS,
        "Maximum number of pixels of an image, width x height; larger images count as unreadable.",
        least=1,
    )
    strict: bool = setting(
        False,
        "Stop at an unreadable image, or if the folder differs from the data set's description.",
    )


@dataclass(frozen=True, kw_only=True)
class _Views(SettingGroup):
    """Random views of the training images."""

    panel: ClassVar = "Views"
    views: int = setting(
        0,
        "Number of random crops of every training image, half of them mirrored, whose features are"
        " also stored, for `clinit head align`; existing views are kept.",
        least=0,
        most=1000,
    )
    view_seed: int = setting(0, "Seed of the views.", least=0, most=2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Settings(_Views, _Images, _Output, _Computation, _Transform):
    """Settings that an extraction (`ExtractConfig`) and the command-line options share."""

    command: str | None = None
    """The command line, which `cache verify` prints if a shard is damaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and (len(value) not in (1, 3) or max(value) > 1):
                raise ValueError(
                    f"{name} takes one number or three, in [0, 1] (127 is 0.498), got {value!r}"
                )

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return self.workers or min(cpu_count(), MOST_THREADS[self.decoder])


LABELS = (
    "For images that are not in class folders: a CSV, TSV or Parquet table with a column of paths"
    " and one of classes, perhaps one of splits and one of groups. FILE:path=NAME,class=NAME names"
    " unusual columns (also split=, group=)."
)
READ_AS_VAL = " test: the test images become the split val, on which results are measured."


@dataclass(frozen=True, kw_only=True)
class _Network(SettingGroup):
    """A timm network."""

    panel: ClassVar = NETWORK

    backbone: str | None = setting(None, "timm's name of the network, with its tag.")
    weights: Path | None = setting(
        None,
        "Checkpoint (.safetensors, or .pth that contains only tensors), or a folder with"
        " model.safetensors and config.json of timm.",
        metavar="PATH",
        otherwise="timm's download",
    )
    model_arg: tuple[str, ...] | None = setting(None, "Argument of timm.create_model: name=value.")
    precision: Literal["float32", "tf32", "bf16", "f16"] = setting(
        "float32",
        "Arithmetic of the forward pass. tf32 (CUDA): products and convolutions of rounded numbers,"
        " up to five times as fast; features differ by about 1e-3.",
    )
    output: Literal["pooled", "projected"] = setting(
        "pooled",
        "For a CLIP tower: pooled features before its projection, or projected features, which are"
        " comparable with text features.",
        alias="features",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Settings, _Network):
    """Options of a timm network and of the transform of its images."""

    panel: ClassVar = COMPUTATION

    device: str = setting(
        "auto", "Device to compute on: auto (CUDA if available), cpu, cuda or cuda:N."
    )


@dataclass(frozen=True, kw_only=True)
class _Places(SettingGroup):
    """Where the images are, and where the features go."""

    panel: ClassVar = DATA

    root: Path = setting(MISSING, "Folder of the images.", metavar="FOLDER")
    out: Path = setting(MISSING, "Folder of the feature cache.", panel=OUTPUT, metavar="FOLDER")
    dataset: str | None = setting(
        None,
        "imagenet1k, places365 or digits; or `folder` for any tree of class folders, `webdataset`"
        " for tar shards, `huggingface` for Parquet files.",
    )
    manifest: Path | None = setting(
        None, "Manifest of `clinit manifest build`, instead of --dataset.", metavar="FILE"
    )
    labels: str | None = setting(None, LABELS, metavar="FILE")
    split: Literal["train", "val", "test"] | None = setting(
        None, "Extract only this split." + READ_AS_VAL, otherwise="train and val, if they exist"
    )
    limit_per_class: int | None = setting(
        None,
        "Maximum number of images per class; the first images in the manifest are used.",
        least=1,
        otherwise="all",
    )


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(NetworkOptions, _Places):
    """The options of `clinit extract`: a data set, a network and a cache."""

    backbone: str | None = setting(
        "convnextv2_femto.fcmae_ft_in1k", "timm's name of the network, with its tag.", panel=NETWORK
    )
    part: str | None = setting(
        None,
        "Compute only part i of n of the shards. Give each process another part; the last process"
        " completes the cache.",
        metavar="I/N",
    )
    ray: str | None = setting(
        None,
        "Compute on the Ray cluster at this address: one part per GPU, else one per node"
        " (--workers: processors per part). Images and cache must be on shared storage.",
        metavar="ADDRESS",
    )

    def scans(self, observer: Observer) -> Mapping[str, Scan]:
        """List the images of each split.

        The observer is warned of each difference from the description of the data set, and told of
        files that are left out, and if there are no images to evaluate on.

        Raises:
            ManifestError: If images are missing, or the manifest is of another split.
        """
        if self.dataset is not None:
            check_known(self.dataset)  # refuse a wrong name before the slow imports below
        from clinit.extract.dataset.names import HEAD_LIST, near_names, read_class_names
        from clinit.extract.dataset.scan import Scan, scan_splits

        if self.dataset is None:
            scans = [Scan(self._given(), ())]
        else:
            splits, strict = () if self.split is None else (self.split,), self.strict
            listed = partial(scan_splits, strict=strict, labels=self.labels, observer=observer)
            scans = [*listed(self.dataset, self.root, splits)]
        found = {each.manifest.split: each for each in scans}
        for each in scans:
            each.tell(observer)
        if self.dataset is not None and self.split is None and "val" not in found:
            observer(Noted(f"{self.root} has no val split: no class can be evaluated"))
        if self.head_classes not in (None, "dataset"):
            named = read_class_names(Path(self.head_classes), HEAD_LIST)
            own = scans[0].manifest.class_names
            if near := near_names(own, named, "the data set", self.head_classes):
                observer(Warned(near))
        if (most := self.limit_per_class) is None:
            return found
        return {
            name: replace(each, manifest=each.manifest.limit_per_class(most))
            for name, each in found.items()
        }

    def _given(self) -> Manifest:
        """Read the manifest of `--manifest`."""
        from clinit.extract.dataset.manifest import read_manifest

        assert self.manifest is not None
        if self.labels is not None:
            raise ManifestError(
                "a manifest contains labels: --labels would not be used",
                remedy="Leave out --labels, or give --dataset folder instead of --manifest.",
            )
        given = read_manifest(self.manifest)
        if {"test": "val", None: given.split}.get(self.split, self.split) != given.split:
            raise ManifestError(
                f"{self.manifest} is the manifest of split {given.split}, not of {self.split}",
                remedy="Leave out `--split`, or give the manifest of that split.",
            )
        return given


@dataclass(frozen=True, kw_only=True)
class ImportConfig(SettingGroup):
    """The options of `clinit cache import`: names and class names for imported features."""

    backbone: str = setting(
        MISSING,
        "Name of the extractor and its weights, such as clip-vit-b-32. Only caches with the same"
        " name can be used together.",
    )
    split: Literal["train", "val", "test"] = setting(
        "train", "Split that the rows belong to." + READ_AS_VAL
    )
    classes: Path | None = setting(
        None,
        "Class names, one per line.",
        metavar="FILE",
        otherwise="names in the file, or the labels themselves",
    )
    features_name: str | None = setting(None, "Array or tensor of features.", otherwise="features")
    labels_name: str | None = setting(None, "Array or tensor of labels.", otherwise="labels, label")
    dataset: str = setting("imported", "Name of the data set.")
    command: str | None = None
    """The command line, which `cache verify` prints if a shard is damaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Without a name, or with the default of earlier versions, all extractors would be one.
        if self.backbone in ("", "imported"):
            raise ValueError("backbone takes the name of the extractor, such as clip-vit-b-32")

    @property
    def stored(self) -> str:
        """The split of the cache."""
        return "train" if self.split == "train" else "val"
