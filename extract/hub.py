"""Weights from the Hub of Hugging Face: an answer within seconds where it cannot be reached.

Its library tries each file six times, with pauses, before it looks into its cache: more than a
minute for a name that cannot be resolved. So the Hub is asked once before, and where it does not
answer the cache alone is looked into.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread

from huggingface_hub import constants, get_session

_TRIES = 3
"""Requests before a Hub that refuses them counts as out of reach; a name may be found later."""
_PAUSE_S = 1.0


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Let downloads look into the cache alone where the Hub is out of reach; yield why it is."""
    why = why_unreachable()
    if why is None or constants.HF_HUB_OFFLINE:
        yield why
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = False


def why_unreachable() -> str | None:
    """Return why the Hub cannot be reached; None where it answers, whatever it says.

    Asked as the library asks: with its proxies, certificates and time limit (HF_HUB_ETAG_TIMEOUT,
    ten seconds). Names are resolved without a limit, so a thread is waited for.
    """
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    limit = float(constants.HF_HUB_ETAG_TIMEOUT)
    answers: Queue[str | None] = Queue()
    Thread(target=_ask, args=(answers, limit), name="hub", daemon=True).start()
    try:
        why = answers.get(timeout=limit)
    except Empty:
        why = f"no answer in {limit:g} s"
    return why and f"{constants.ENDPOINT} cannot be reached ({why})"


def _ask(answers: Queue[str | None], limit: float) -> None:
    for number in range(_TRIES):
        if number:
            time.sleep(_PAUSE_S)
        try:
            get_session().head(constants.ENDPOINT, timeout=limit)
        except Exception as error:  # of whichever client this version of the library has
            why = " ".join(str(error).split()) or type(error).__name__
        else:
            answers.put(None)
            return
    answers.put(why)
