"""Images to features: manifests, decoding, frozen backbones and the feature cache.

From a folder of images to a cache: `dataset.scan` lists the images, `network.backbone` loads the
network, `work.run` plans, `work.split_run` finds missing shards, and `work.pipeline` decodes and
computes. `cache` contains the file formats (`plan`, `shard`, `head`, `summary`); `cache.read` opens
a cache.
"""

import sys
from importlib import import_module
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any


class _Extract(ModuleType):
    """The package, which can be called: `clinit.extract(images, backbone)`."""

    def __call__(self, images: Any, backbone: str, out: Any = None, **settings: Any) -> Any:
        """Return the features of images: `clinit.extract_features`; without `out`, in memory."""
        # By its name, because this part imports none above it.
        extract_features = import_module("clinit.arrays").extract_features
        with TemporaryDirectory(prefix="clinit-") as folder:
            return extract_features(images, out or f"{folder}/cache", backbone, **settings)


sys.modules[__name__].__class__ = _Extract
