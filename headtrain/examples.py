"""A few of many names, for a message."""

from collections.abc import Sequence

SHOWN = 3


def examples(names: Sequence[str]) -> str:
    """Return the first few names, and an ellipsis if there are more.

    >>> examples(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])])
