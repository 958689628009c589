"""ImageNet's classes in words: its data sets name them by WordNet identifiers."""

from __future__ import annotations

import re
from functools import cache

from timm.data import ImageNetInfo

_IDENTIFIER = re.compile(r"n\d{8}")


@cache
def _info() -> ImageNetInfo:
    return ImageNetInfo()


def title(class_name: str) -> str:
    """Return a class name in words, the first of its synonyms; other names as they are.

    Two classes of ImageNet-1K are a `crane`.

    >>> title("n01440764"), title("campsite")
    ('tench', 'campsite')
    """
    if not _IDENTIFIER.fullmatch(class_name):
        return class_name
    try:
        return str(_info().label_name_to_description(class_name)).split(", ")[0]
    except KeyError:
        return class_name
