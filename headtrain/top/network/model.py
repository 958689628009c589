"""The network of a top-block run: a frozen trunk, plastic blocks and a classifier that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clinit.headtrain.array import as_array, as_tensor
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Study
from clinit.headtrain.top.network.cut import Cut
from clinit.headtrain.top.network.lora import add_lora, layers, merge
from clinit.headtrain.top.network.plastic import (
    CLASSIFIER,
    classifier_of,
    make_plastic,
)


class PlasticModel:
    """A cut network whose top blocks and classifier are trained, one task after another."""

    def __init__(self, network: nn.Module, cut: Cut, head: Rows, study: Study) -> None:
        """Take over `network`, which is changed; its classifier becomes `head`."""
        self.network = network
        self.cut = cut
        assert study.top is not None
        self._settings = study.top
        self._mixed = study.training.precision == "bf16"
        self._device = next(network.parameters()).device
        self._whole = _Top(network, cut.top)
        self._top: Callable[[Tensor], Tensor] = self._whole
        self._classifier_name = _name_of(network, classifier_of(network))
        self._set_classifier(head.weight.shape[0])
        self.write(0, head)
        self._original = {name: value.clone() for name, value in self._block_values().items()}

    @property
    def device(self) -> torch.device:
        """The device that the network is on."""
        return self._device

    @property
    def num_classes(self) -> int:
        """Number of rows of the classifier as it is now."""
        return self._classifier.out_features

    @property
    def dim(self) -> int:
        """Width of a penultimate feature."""
        return self._classifier.in_features

    def features(self, activations: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Return what the classifier reads; differentiable."""
        with self._arithmetic():
            features = self._top(activations)
        return features.float()

    def features_at(
        self, parameters: Mapping[str, Tensor], activations: Float[Tensor, "batch ..."]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features with `parameters` in place of the model's own."""
        values = {
            f"network.{name}": value for name, value in parameters.items() if name not in CLASSIFIER
        }
        with self._arithmetic():
            features: Tensor = torch.func.functional_call(self._whole, values, (activations,))
        return features.float()

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Compute in float32 inside, whatever the configuration says."""
        self._mixed, before = False, self._mixed
        try:
            yield
        finally:
            self._mixed = before

    def logits(self, features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Return `features @ weight.T + bias`."""
        with self._arithmetic():
            logits: Tensor = self._classifier(features)
        return logits.float()

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained now, those of the classifier as CLASSIFIER."""
        prefix = f"{self._classifier_name}."
        return {
            f"classifier.{name.removeprefix(prefix)}" if name.startswith(prefix) else name: value
            for name, value in self.network.named_parameters()
            if value.requires_grad
        }

    def grow(self, rows: Rows) -> None:
        """Append rows to the classifier."""
        before = self._classifier
        self._set_classifier(before.out_features + rows.weight.shape[0])
        with torch.no_grad():
            self._classifier.weight[: before.out_features] = before.weight
            self._classifier.bias[: before.out_features] = before.bias
        self.write(before.out_features, rows)

    def rows(self) -> Rows:
        """Copy the classifier, as arrays where it is; see `clinit.headtrain.array.as_array`."""
        weight, bias = self._classifier.weight, self._classifier.bias
        return Rows(as_array(weight.double()), as_array(bias.double()))

    def tensors(self) -> Rows:
        """Return the classifier as tensors, without a copy."""
        return Rows(self._classifier.weight.detach(), self._classifier.bias.detach())

    @torch.no_grad()
    def write(self, start: int, rows: Rows) -> None:
        """Overwrite rows of the classifier from row `start` on."""
        stop = start + rows.bias.shape[0]
        self._classifier.weight[start:stop] = as_tensor(rows.weight).to(self._device)
        self._classifier.bias[start:stop] = as_tensor(rows.bias).to(self._device)

    def open(self, generator: torch.Generator) -> None:
        """Make the blocks plastic for a task: whole, or by low-rank updates drawn anew."""
        if not self._settings.full_rank:
            add_lora(
                self.network,
                layers(self.network, self.cut.blocks),
                rank=self._settings.rank,
                alpha=self._settings.alpha,
                a_init=self._settings.a_init,
                generator=generator,
            )
        make_plastic(self.network, self.cut.blocks, full_rank=self._settings.full_rank)
        self._top = torch.compile(self._whole) if self._settings.compile else self._whole

    def close(self) -> None:
        """Merge the low-rank updates into the blocks."""
        merge(self.network)
        self._top = self._whole

    def state(self) -> dict[str, Tensor]:
        """Return all that training may have changed, updates that are not merged included."""
        return {
            name: value.detach().clone()
            for name, value in self.network.state_dict().items()
            if name.startswith(self._prefixes)
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()` of as many classes, whether its updates are merged or not."""
        found = self.network.load_state_dict(dict(state), strict=False)
        missing = [name for name in found.missing_keys if name.startswith(self._prefixes)]
        wrong = sorted([*found.unexpected_keys, *missing])
        assert not wrong, f"a state of another network: {wrong[:3]}"

    @property
    def _prefixes(self) -> tuple[str, ...]:
        """Prefixes of the names of all that training may change."""
        return tuple(f"{name}." for name in (*self.cut.blocks, self._classifier_name))

    def changed(self) -> dict[str, np.ndarray]:
        """Return the parameters of the merged blocks that training has changed, by name."""
        return {
            name: value.cpu().numpy()
            for name, value in self._block_values().items()
            if not torch.equal(value, self._original[name])
        }

    @property
    def _classifier(self) -> nn.Linear:
        return classifier_of(self.network)

    def _set_classifier(self, classes: int) -> None:
        """Replace the classifier with one of `classes` rows, which are yet to be written."""
        # Empty: the default initialisation would draw from the global generator.
        classifier = nn.utils.skip_init(nn.Linear, self.dim, classes, device=self._device)
        assert isinstance(classifier, nn.Linear)
        parent, _, name = self._classifier_name.rpartition(".")
        setattr(self.network.get_submodule(parent), name, classifier)
        if hasattr(self.network, "num_classes"):
            self.network.num_classes = classes  # type: ignore[assignment]

    def _block_values(self) -> dict[str, Tensor]:
        prefixes = tuple(f"{name}." for name in self.cut.blocks)
        return {
            name: value.detach()
            for name, value in self.network.state_dict().items()
            if name.startswith(prefixes)
        }

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if self._mixed:
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()


class _Top(nn.Module):
    """The top of a network as a module, for `torch.func` and `torch.compile`."""

    def __init__(self, network: nn.Module, top: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._run = top

    def forward(self, activations: Tensor) -> Tensor:
        return self._run(activations)


def _name_of(network: nn.Module, module: nn.Module) -> str:
    names: dict[int, str] = {id(each): name for name, each in network.named_modules()}
    return names[id(module)]
