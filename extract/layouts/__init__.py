"""How data sets lie on the disk: one file per layout, found under the names used in the TOML files.

A layout is a function from a `Search` to a `Reader`; it raises `DoesNotFitError` where the
disk looks different.
"""

from __future__ import annotations

from collections.abc import Callable

from clinit.extract.layouts.class_folders import find as find_class_folders
from clinit.extract.layouts.huggingface import find as find_huggingface
from clinit.extract.layouts.imagenet_devkit import find as find_imagenet_devkit
from clinit.extract.layouts.imagenet_kaggle import find as find_imagenet_kaggle
from clinit.extract.layouts.places_easy import find as find_places_easy
from clinit.extract.layouts.places_original_train import find as find_places_original_train
from clinit.extract.layouts.places_original_val import find as find_places_original_val
from clinit.extract.layouts.search import Reader, Search
from clinit.extract.layouts.webdataset import find as find_webdataset

LAYOUTS: dict[str, Callable[[Search], Reader]] = {
    "class-folders": find_class_folders,
    "huggingface": find_huggingface,
    "imagenet-devkit": find_imagenet_devkit,
    "imagenet-kaggle": find_imagenet_kaggle,
    "places-easy": find_places_easy,
    "places-original-train": find_places_original_train,
    "places-original-val": find_places_original_val,
    "webdataset": find_webdataset,
}
