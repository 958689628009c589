"""The origin of every random number, in one place.

Every draw has its own generator, seeded by (seed, kind of draw, index). A draw therefore does not
depend on earlier draws: with more heads, another batch size or another number of iterations, class
order, buffer and random rows stay the same.

    CLASS_ORDER   index 0            order in which the new classes arrive
    BUFFER        index = head row   rank of the class among equals, then the order of its rows
    BATCHES       index = task       rows of each batch
    RANDOM_ROWS   index = task       random rows of the task's new classes
    LOSS_SAMPLE   index = task       training rows on which the new-task loss is measured
    ALIGNMENT     index = epoch      order of the rows in an alignment or a linear probe
    HELD_OUT      index = side       training rows held out by a search or a linear probe;
                                     0 base, or the data of the probe; 1 new
    FISHER        index = task       training rows of EWC's Fisher information; 0 the base
    PROBE         index = task       head and batches of the linear probe after a task
    LOW_RANK      index = task       factors A of low-rank updates of a backbone's top blocks
    SHOTS         index = new class  training rows kept of a class, if not all are used
    FEATURE_MAP   index 0            random features of a closed form
    RIDGE         index = task       training rows on which a closed form chooses its lambda
    PSEUDO_ROWS   index 0            features drawn from the memory of a model;
                  index = task       rows drawn from statistics, for the start of new rows
    ASIDE         index = name       new images held out to measure an added class
    OLD_ROWS      index = task       rows drawn from statistics of earlier classes, for batches
    ANCHOR        index = task       training rows by which the strength of an anchor is chosen
    OWN_ORDER     index 0            direction in which added images are ordered, and their order
"""

import enum

import numpy as np


class Draw(enum.IntEnum):
    """Kinds of random draws; the numbers are part of every stored result."""

    CLASS_ORDER = 0
    BUFFER = 1
    BATCHES = 2
    RANDOM_ROWS = 3
    LOSS_SAMPLE = 4
    ALIGNMENT = 5
    HELD_OUT = 6
    FISHER = 7
    PROBE = 8
    LOW_RANK = 9
    # 10 was a second draw of batches.
    SHOTS = 11
    FEATURE_MAP = 12
    RIDGE = 14
    PSEUDO_ROWS = 20
    ASIDE = 21
    # 22 was the draw of episodes.
    OLD_ROWS = 23
    ANCHOR = 24
    OWN_ORDER = 25


def generator(seed: int, draw: Draw, index: int = 0) -> np.random.Generator:
    """Return the generator of one draw."""
    return np.random.default_rng([seed, int(draw), index])
