"""Runs that share a stream: class order, buffer and batches are computed once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from clinit.headtrain.study.study import Study

_ONE_HEAD: Mapping[str, str] = MappingProxyType({})


def by_stream(runs: Iterable[Study], heads: Mapping[str, str] = _ONE_HEAD) -> list[list[Study]]:
    """Group runs that differ at most in their heads, in the order in which they come.

    Args:
        runs: Resolved studies.
        heads: By loss, which pretrained head its runs start from, where there are several: the
            runs of a group start from one.
    """
    groups: dict[tuple[Study, str], list[Study]] = {}
    for run in runs:
        groups.setdefault((run.shared, heads.get(run.training.loss, "")), []).append(run)
    return list(groups.values())
