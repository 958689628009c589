"""Hostile input: files and words made to harm.

Nothing that a file says may end in a traceback, run code, change a file that the command was not
asked to write, take more memory or time than its limit, or put a control character on the
terminal. A sentence of refusal is right; so is an answer where the input turns out to be harmless.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from fault_trials.hostile.arguments import arguments
from fault_trials.hostile.arrays import arrays
from fault_trials.hostile.documents import documents, metadata
from fault_trials.hostile.images import images
from fault_trials.hostile.links import links
from fault_trials.hostile.names import names
from fault_trials.hostile.shards import shards
from fault_trials.hostile.tables import tables
from fault_trials.hostile.words import words
from fault_trials.trial import Trial


def hostiles(*, count: int, seed: int) -> Iterator[Trial]:
    """Yield about `count` trials: every one that is listed, then as many of chance as are left.

    Where `count` is less than that, as many of each kind as of any other, as far as there are.
    """
    text = str(seed)
    endless = (documents(text), metadata(text), images(text), tables(text))
    listed = (arguments(text), links(text), shards(text), names(text), words(text), arrays(text))
    kinds: list[Iterator[Trial]] = [*endless, *map(_shuffled, listed)]
    given = 0
    while given < count and kinds:
        for kind in list(kinds):
            trial = next(kind, None)
            if trial is None:
                kinds.remove(kind)
                continue
            yield trial
            given += 1
            if given == count:
                return


def _shuffled(trials: Iterator[Trial]) -> Iterator[Trial]:
    """Return trials in an order of their own, so that any number of them is a mixture."""
    found = list(trials)
    random.Random(0).shuffle(found)
    return iter(found)
