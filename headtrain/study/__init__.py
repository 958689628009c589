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

    words       words that settings take; settings that are the same for several commands
    stream, start, training, closed, top
                one part each
    settings    all of them by name, and their groups; parts: all of them as one value
    rules       which mean nothing to which run; checks: which exclude each other, and defaults
    study       one run
    recorded    the run that recorded settings identify; names: what tells runs apart
    streams     runs that share a stream
"""

from __future__ import annotations

from clinit.headtrain.study.checks import DEFAULT_BUFFER, defaults
from clinit.headtrain.study.closed import Closed, FecamConfig, KldaConfig, RanpacConfig, SldaConfig
from clinit.headtrain.study.names import names_of, run_name
from clinit.headtrain.study.recorded import as_of_today, identity_of
from clinit.headtrain.study.rules import RULES, refusals
from clinit.headtrain.study.settings import (
    BUFFER,
    CLOSED,
    DERPP,
    EWC,
    LOW_RANK,
    PARTS,
    PER_HEAD,
    PLACES,
    RIVALS,
    settings_of,
)
from clinit.headtrain.study.start import Start
from clinit.headtrain.study.stream import Stream
from clinit.headtrain.study.streams import by_stream
from clinit.headtrain.study.study import Study
from clinit.headtrain.study.top import DerppConfig, EwcConfig, Top
from clinit.headtrain.study.training import Training
from clinit.headtrain.study.words import (
    CLOSED_METHODS,
    HEAD_METHODS,
    INITS,
    PAPER_INITS,
    SCALES,
    SOLVED_METHODS,
    TOP_METHODS,
    Device,
    Weighting,
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
