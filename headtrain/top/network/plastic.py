"""Which parameters learn: everything else is frozen.

Low rank     the factors A and B of `lora.add_lora` and the classifier; norms, GRN, layer scales,
             biases, depthwise convolutions and attention keep their values.
Full rank    every parameter of the plastic blocks, norms included, and the classifier.

What lies between and behind the blocks (a downsampling, the last norm) is frozen in both. The
network stays in evaluation mode: batch norms use their stored statistics, nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from clinit.headtrain.top.network.lora import LowRank, updated_weights

CLASSIFIER_WEIGHT = "classifier.weight"
CLASSIFIER_BIAS = "classifier.bias"
CLASSIFIER: tuple[str, ...] = (CLASSIFIER_WEIGHT, CLASSIFIER_BIAS)
"""Names of the classifier's parameters among those that are trained, in every network."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of a network's parameters learn; A and B are no part of `total`."""

    trained: int
    """Parameters with a gradient: A and B, or the whole blocks, and the classifier."""
    plastic: int
    """Parameters whose value can change: a layer with an update counts with its weight."""
    block: int
    """All parameters of the plastic blocks and the classifier, frozen ones too."""
    total: int
    """All parameters of the network, once merged."""

    def line(self) -> str:
        """Return the shares in one line of text."""
        return (
            f"{self.trained:,} parameters are trained; "
            f"{self.plastic:,} of {self.total:,} ({self.plastic / self.total:.1%}) can change; "
            f"top blocks and head hold {self.block:,} ({self.block / self.total:.1%})"
        )


def make_plastic(network: nn.Module, blocks: Sequence[str], *, full_rank: bool) -> None:
    """Freeze the network but for what learns, and put it into evaluation mode.

    Call it after `add_lora`, and again after each merge and when the classifier is replaced.

    Raises:
        ValueError: If `full_rank` is set and a layer has a low-rank update, or not set and none
            has one.
    """
    updates = [module for module in network.modules() if isinstance(module, LowRank)]
    if full_rank and updates:
        raise ValueError(f"{len(updates)} layers have low-rank updates: merge before full rank")
    if not full_rank and not updates:
        raise ValueError("no layer has a low-rank update: call add_lora first")
    network.eval().requires_grad_(False)
    learning = [network.get_submodule(name) for name in blocks] if full_rank else updates
    for module in (*learning, classifier_of(network)):
        module.requires_grad_(True)


def classifier_of(network: nn.Module) -> nn.Linear:
    """Return the network's own classifier."""
    classifier = network.get_classifier()  # type: ignore[operator]
    assert isinstance(classifier, nn.Linear), "load_backbone refuses other classifiers"
    return classifier


def shares(network: nn.Module, blocks: Sequence[str]) -> Shares:
    """Count the parameters of a network after `make_plastic`, in any state of the merge."""
    factors = _identities(m for m in network.modules() if isinstance(m, LowRank))
    updated = set(map(id, updated_weights(network)))
    inside = _identities([*map(network.get_submodule, blocks), classifier_of(network)])

    def count(chosen: Callable[[nn.Parameter], bool]) -> int:
        return sum(p.numel() for p in network.parameters() if chosen(p))

    def lasting(parameter: nn.Parameter) -> bool:
        return id(parameter) not in factors

    return Shares(
        trained=count(lambda p: p.requires_grad),
        plastic=count(lambda p: lasting(p) and (p.requires_grad or id(p) in updated)),
        block=count(lambda p: lasting(p) and id(p) in inside),
        total=count(lasting),
    )


def _identities(modules: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}
