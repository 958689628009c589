"""The state of an optimizer and its schedule as plain values and tensors, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

_RATES = ("lr", "betas")
"""What the schedule changes in a group."""


def stored_optimizer(
    optimizer: torch.optim.Optimizer,
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the rates of each group, and the state as `<parameter>.<name>`."""
    content = optimizer.state_dict()
    rates = [{name: group[name] for name in _RATES} for group in content["param_groups"]]
    tensors = {
        f"{index}.{name}": value
        for index, state in content["state"].items()
        for name, value in state.items()
    }
    return rates, tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    tensors: Mapping[str, Tensor],
    rates: Sequence[Mapping[str, Any]],
    steps: int,
) -> None:
    """Take over a stored state after `steps` steps; optimizer and schedule are fresh ones."""
    content = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = [
        {**group, **{name: _plain(rate[name]) for name in _RATES}}
        for group, rate in zip(content["param_groups"], rates, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    schedule.last_epoch = steps


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
