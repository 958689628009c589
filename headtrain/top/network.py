"""The network of a top-block run: a frozen trunk, plastic (trained) blocks, a growing classifier.

    normalised images --trunk--> activations --top--> penultimate features

`top(trunk(x))` equals `forward_head(forward_features(x), pre_logits=True)`: the same modules run in
the same order. The modules behind the last block (a norm, the pooling, a dense layer before the
classifier) and a downsampling between two plastic blocks are part of the top, but are not blocks.

All parameters are frozen, except:

Low rank     the factors A and B of `lora.add_lora` and the classifier; norms, GRN, layer scales,
             biases, depthwise convolutions and attention keep their values.
Full rank    every parameter of the plastic blocks, norms included, and the classifier.

Modules between and behind the blocks (a downsampling, the last norm) are frozen in both cases. The
network stays in evaluation mode: batch norms use their stored statistics, and dropout is off.

Low-rank updates of the linear layers of plastic blocks.

    W + (alpha / rank) (B A)        A (rank, in), B (out, rank), B = 0 at the start

The paper prints W + B A without a factor and refers to the LoRA paper. There alpha is the first
rank that is tried, so that the factor is 1, which is alpha = rank here. The default of loralib and
of this module is alpha = 1.

A convolution of k x k is a matrix (out, in k k), a 1 x 1 convolution a linear layer. The update is
a parametrisation of the weight: the layer keeps its class and its forward pass, and merging stores
the sum in place of W. Training and evaluation mode make no difference.

Source: E. J. Hu, Y. Shen, P. Wallis, Z. Allen-Zhu, Y. Li, S. Wang, L. Wang, W. Chen, "LoRA:
Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clinit.errors import BackboneError
from clinit.headtrain.heads.array import as_array, as_tensor
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.study.parts import Top
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.families import Step, linear_layers, steps_of


class LowRank(nn.Module):
    """Adds `scale * b @ a` to a weight."""

    def __init__(
        self, a: Float[Tensor, "rank fan_in"], b: Float[Tensor, "out rank"], scale: float
    ) -> None:
        super().__init__()
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(b)
        self.scale = scale

    def forward(self, weight: Float[Tensor, " out *fan_in"]) -> Float[Tensor, " out *fan_in"]:
        """Return the updated weight, in the weight's own precision."""
        # Autocast would round the sum to 8 or 11 bits; the merged weight would then differ.
        with torch.autocast(weight.device.type, enabled=False):
            # Not addmm: the sum has the memory format of the weight, channels last or not.
            return torch.add(weight, (self.b @ self.a).view(weight.shape), alpha=self.scale)


def layers(network: nn.Module, blocks: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted names of the linear layers of some blocks, in forward order.

    These are the two layers of the MLP (three if it is gated), the two convolutions of a basic
    block, the first and last convolution of a bottleneck, the pointwise convolutions of an inverted
    residual. Depthwise and grouped convolutions and projections of attention are not included.

    Raises:
        BackboneError: If the kind of a block is unknown.
    """
    names = []
    for block in blocks:
        module = network.get_submodule(block)
        found = linear_layers(module)
        if not found:
            raise _no_low_rank(f"{block} is a {type(module).__name__}")
        for name in found:
            layer = module.get_submodule(name)
            if not isinstance(layer, nn.Linear | nn.Conv2d) or getattr(layer, "groups", 1) != 1:
                raise _no_low_rank(f"{block}.{name} is a {type(layer).__name__}")
            names.append(f"{block}.{name}")
    return tuple(names)


def _no_low_rank(found: str) -> BackboneError:
    return BackboneError(
        f"{found}, whose linear layers are unknown",
        remedy="Train the whole blocks with `--full-rank`, or take fewer `--top-blocks`.",
    )


def add_lora(network: nn.Module, layers: Sequence[str], top: Top, random: torch.Generator) -> None:
    """Give the weights of `layers` an update that starts at zero.

    A is normal with variance 1 / (3 fan_in), as in loralib. It is drawn in float32 on the CPU, in
    the order of `layers`, whatever the network's device and precision. A rank above
    min(out, fan_in) is allowed, but useless.
    """
    for name in layers:
        module = network.get_submodule(name)
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        fan_in = weight[0].numel()
        a = torch.randn(top.rank, fan_in, generator=random) / math.sqrt(3 * fan_in)
        b = torch.zeros(len(weight), top.rank)
        update = LowRank(a.to(weight), b.to(weight), top.alpha / top.rank)
        parametrize.register_parametrization(module, "weight", update)


def merge(network: nn.Module) -> None:
    """Add every update to its weight and remove it; outputs do not change.

    The weight is the same `nn.Parameter` as before `add_lora`. Without updates, nothing happens.
    """
    for module in list(network.modules()):
        updates = getattr(module, "parametrizations", {})
        if "weight" in updates and isinstance(updates["weight"][0], LowRank):
            # A deep copy shares the class that `parametrize` made. A removal deletes the property
            # `weight` from this class, so that merging one network would break its copy.
            shared = type(module)
            module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            # Weight before bias, as in a network that never had an update.
            for name, parameter in list(module.named_parameters(recurse=False)):
                if name != "weight":
                    delattr(module, name)
                    module.register_parameter(name, parameter)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The two halves of a network.

    Both run the network's own modules: they move with it from device to device, and parametrising
    or training a module of the network changes `top`. A copy of the network needs its own cut.
    """

    trunk: Callable[[Tensor], Tensor]
    """Normalised images (batch, 3, height, width) -> activations (batch, *shape) in front of the
    first plastic block; no gradient flows back through it."""
    top: Callable[[Tensor], Tensor]
    """Activations -> penultimate features (batch, dim); differentiable; the input is unchanged."""
    blocks: tuple[str, ...]
    """Dotted names of the plastic blocks in the network, in forward order."""


def cut_network(network: nn.Module, top_blocks: int) -> Cut:
    """Cut a network in front of its last `top_blocks` blocks.

    Raises:
        BackboneError: If the network belongs to no supported family, or has fewer blocks.
    """
    steps = steps_of(network)
    names = tuple(step.block for step in steps if step.block is not None)
    if not 1 <= top_blocks <= len(names):
        raise BackboneError(
            f"cannot train {top_blocks} top blocks: this {type(network).__name__}"
            f" has {len(names)} blocks",
            remedy=f"Give `--top-blocks` from 1 to {len(names)}.",
        )
    blocks = names[-top_blocks:]
    first = next(index for index, step in enumerate(steps) if step.block == blocks[0])

    @torch.no_grad()
    def trunk(x: Tensor) -> Tensor:
        return _run(steps[:first], x)

    def top(x: Tensor) -> Tensor:
        maps = _run(steps[first:], x)
        features: Tensor = network.forward_head(maps, pre_logits=True)  # type: ignore[operator]
        return features

    return Cut(trunk, top, blocks)


def _run(steps: tuple[Step, ...], x: Tensor) -> Tensor:
    for step in steps:
        x = step.run(x)
    return x


@torch.no_grad()
def check_cut(cut: Cut, network: nn.Module, batch: Float[Tensor, "batch 3 height width"]) -> None:
    """Check on one batch of normalised images that the two halves give the network's features.

    Raises:
        BackboneError: If they do not, to 1e-4 of the largest feature.
    """
    maps = network.forward_features(batch)  # type: ignore[operator]
    expected: Tensor = network.forward_head(maps, pre_logits=True)  # type: ignore[operator]
    found = cut.top(cut.trunk(batch))
    scale = float(expected.abs().max().clamp(min=1))
    # Not `>`, because a comparison with NaN must fail, too.
    if found.shape != expected.shape or not float((found - expected).abs().max()) <= 1e-4 * scale:
        raise BackboneError(
            f"this {type(network).__name__}, cut in front of {cut.blocks[0]}, does not compute"
            " its original features",
            remedy="Choose another backbone, or train its head alone with `clinit train-head`.",
        )


CLASSIFIER = ("classifier.weight", "classifier.bias")
"""Names of the classifier's parameters among the trained parameters, in every network."""


def make_plastic(network: nn.Module, blocks: Sequence[str], *, full_rank: bool) -> None:
    """Freeze all parameters that are not trained, and set evaluation mode.

    Call this after `add_lora`, and again after each merge and each new classifier.
    """
    network.eval().requires_grad_(False)
    updates = [module for module in network.modules() if isinstance(module, LowRank)]
    learning = [network.get_submodule(name) for name in blocks] if full_rank else updates
    for module in (*learning, classifier_of(network)):
        module.requires_grad_(True)


def classifier_of(network: nn.Module) -> nn.Linear:
    """Return the network's own classifier."""
    classifier = network.get_classifier()  # type: ignore[operator]
    assert isinstance(classifier, nn.Linear), "load_backbone and prepare_runs ensure this"
    return classifier


class PlasticModel:
    """A cut network whose top blocks and classifier are trained, one task after another."""

    def __init__(self, network: nn.Module, cut: Cut, head: Rows, study: Study) -> None:
        """Change `network` in place; its classifier becomes `head`."""
        self.network = network
        self.cut = cut
        assert study.top is not None
        self._settings = study.top
        self._mixed = study.training.precision == "bf16"
        self.device = next(network.parameters()).device
        self._whole = _Top(network, cut.top)
        names = {module: name for name, module in network.named_modules()}
        self._classifier_name = names[classifier_of(network)]
        self._set_classifier(head.weight.shape[0])
        self.write(0, head)
        self._original = {name: value.clone() for name, value in self._values().items()}

    @property
    def num_classes(self) -> int:
        """Present number of rows of the classifier."""
        return self._classifier.out_features

    @property
    def dim(self) -> int:
        """Width of a penultimate feature."""
        return self._classifier.in_features

    def features(self, activations: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Return the features that the classifier reads; differentiable."""
        with self._arithmetic():
            features: Tensor = self._whole(activations)
        return features.float()

    def features_at(
        self, parameters: Mapping[str, Tensor], activations: Float[Tensor, "batch ..."]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features with `parameters` in place of the model's own."""
        values = {f"network.{name}": v for name, v in parameters.items() if name not in CLASSIFIER}
        with self._arithmetic():
            features: Tensor = torch.func.functional_call(self._whole, values, (activations,))
        return features.float()

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Compute in float32 within the block, whatever the configuration."""
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
        """Return the presently trained parameters; the classifier's names are CLASSIFIER."""
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
        """Copy the classifier, as arrays on its device, as `heads.array.as_array`."""
        weight, bias = self._classifier.weight, self._classifier.bias
        return Rows(as_array(weight.double()), as_array(bias.double()))

    def tensors(self) -> Rows:
        """Return the classifier as tensors, without a copy."""
        return Rows(self._classifier.weight.detach(), self._classifier.bias.detach())

    @torch.no_grad()
    def write(self, start: int, rows: Rows) -> None:
        """Overwrite rows of the classifier from row `start` on."""
        stop = start + rows.bias.shape[0]
        self._classifier.weight[start:stop] = as_tensor(rows.weight).to(self.device)
        self._classifier.bias[start:stop] = as_tensor(rows.bias).to(self.device)

    def open(self, generator: torch.Generator) -> None:
        """Make the blocks plastic for a task: whole, or by newly drawn low-rank updates."""
        if not self._settings.full_rank:
            found = layers(self.network, self.cut.blocks)
            add_lora(self.network, found, self._settings, generator)
        make_plastic(self.network, self.cut.blocks, full_rank=self._settings.full_rank)

    def close(self) -> None:
        """Merge the low-rank updates into the blocks."""
        merge(self.network)

    def state(self) -> dict[str, Tensor]:
        """Return everything that training may have changed, including unmerged updates."""
        return self._values(self._classifier_name)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state()` with the present number of classes.

        Low-rank updates must be merged both in `state` and here, or in neither.
        """
        wrong = self.state().keys() ^ state.keys()
        assert not wrong, f"a state of another network: {sorted(wrong)[:3]}"
        self.network.load_state_dict(dict(state), strict=False)

    def changed(self) -> dict[str, np.ndarray]:
        """Return the parameters of the merged blocks that training has changed, by name."""
        values, before = self._values(), self._original
        changed = (name for name in values if not torch.equal(values[name], before[name]))
        return {name: values[name].cpu().numpy() for name in changed}

    @property
    def _classifier(self) -> nn.Linear:
        return classifier_of(self.network)

    def _set_classifier(self, classes: int) -> None:
        """Replace the classifier with one of `classes` rows, which the caller must write."""
        # Uninitialised, because the default initialisation would use the global generator.
        classifier = nn.utils.skip_init(nn.Linear, self.dim, classes, device=self.device)
        assert isinstance(classifier, nn.Linear)
        parent, _, name = self._classifier_name.rpartition(".")
        setattr(self.network.get_submodule(parent), name, classifier)
        if hasattr(self.network, "num_classes"):
            self.network.num_classes = classes  # type: ignore[assignment]

    def _values(self, *others: str) -> dict[str, Tensor]:
        prefixes = tuple(f"{name}." for name in (*self.cut.blocks, *others))
        state = self.network.state_dict()
        return {name: state[name].detach() for name in state if name.startswith(prefixes)}

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if self._mixed:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


class _Top(nn.Module):
    """The top of a network as a module, for `torch.func`."""

    def __init__(self, network: nn.Module, top: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._run = top

    def forward(self, activations: Tensor) -> Tensor:
        return self._run(activations)
