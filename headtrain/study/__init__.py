"""A study: what one run is asked to do, as a frozen value.

    Study
      stream      which classes arrive when, what is kept of earlier ones, how long training takes
      start       how the rows of new classes start
      training    loss and optimizer, and what is corrected after a task
      closed      what closed forms over the stream need beyond that; heads alone
      top         which blocks of the backbone learn as well; None where the head learns alone

Nothing here imports PyTorch or NumPy: the command line is made from these fields. Values that
depend on other settings are None until `resolved` settles them. `RULES` says which settings mean
nothing to which run: refusals, records, the identity of runs and reports all ask it.

From the ground up:

    methods     what closed forms, top blocks, EWC and DER++ need
    parts       stream, start, training; all parts as one value
    rules       settings by name; which mean nothing to which run or exclude each other
    study       one run, the run that recorded settings identify, what tells runs apart
"""

from __future__ import annotations

from clinit.headtrain.study.methods import (
    Closed,
    DerppConfig,
    EwcConfig,
    FecamConfig,
    KldaConfig,
    RanpacConfig,
    SldaConfig,
    Top,
)
from clinit.headtrain.study.parts import (
    CLOSED_METHODS,
    HEAD_METHODS,
    INITS,
    PAPER_INITS,
    SCALES,
    SOLVED_METHODS,
    TOP_METHODS,
    Device,
    Start,
    Stream,
    Training,
    Weighting,
)
from clinit.headtrain.study.rules import (
    BUFFER,
    CLOSED,
    DEFAULT_BUFFER,
    DERPP,
    EWC,
    LOW_RANK,
    PARTS,
    PER_HEAD,
    PLACES,
    RIVALS,
    RULES,
    defaults,
    refusals,
    settings_of,
)
from clinit.headtrain.study.study import (
    Study,
    as_of_today,
    by_stream,
    identity_of,
    names_of,
    run_name,
)

__all__ = [
    "BUFFER",
    "CLOSED",
    "CLOSED_METHODS",
    "DEFAULT_BUFFER",
    "DERPP",
    "EWC",
    "HEAD_METHODS",
    "INITS",
    "LOW_RANK",
    "PAPER_INITS",
    "PARTS",
    "PER_HEAD",
    "PLACES",
    "RIVALS",
    "RULES",
    "SCALES",
    "SOLVED_METHODS",
    "TOP_METHODS",
    "Closed",
    "DerppConfig",
    "Device",
    "EwcConfig",
    "FecamConfig",
    "KldaConfig",
    "RanpacConfig",
    "SldaConfig",
    "Start",
    "Stream",
    "Study",
    "Top",
    "Training",
    "Weighting",
    "as_of_today",
    "by_stream",
    "defaults",
    "identity_of",
    "names_of",
    "refusals",
    "run_name",
    "settings_of",
]
