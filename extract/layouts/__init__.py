"""How data sets lie on the disk: one file per layout, found under the names used in the TOML files.

A layout is a function from a `Search` to a `Reader`; it raises `DoesNotFitError` where the
disk looks different.
"""

from __future__ import annotations

from collections.abc import Callable

from clinit.extract.layouts.search import Reader, Search

LAYOUTS: dict[str, Callable[[Search], Reader]] = {
    "class-folders": class_folders.find,
    "huggingface": huggingface.find,
    "imagenet-devkit": imagenet_devkit.find,
    "imagenet-kaggle": imagenet_kaggle.find,
    "places-easy": places_easy.find,
    "places-original-train": places_original_train.find,
    "places-original-val": places_original_val.find,
    "webdataset": webdataset.find,
}
