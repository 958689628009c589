"""Classes of a model that are removed, renamed or put in another order, and the model written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import nn

from clinit.errors import BackboneError, HeadError, ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.class_names import is_text
from clinit.extract.decode import decoder_version
from clinit.extract.head_names import name_rows
from clinit.extract.network.backbone import Backbone, state_sha256
from clinit.extract.network.transform import Transform
from clinit.extract.work.run import ExtractConfig, Network, load_network
from clinit.headtrain.model.folder import MEMORY_FILE, check_free, read_whole, write_model_folder
from clinit.headtrain.model.memory import Memory, check_backbone, memory_in, write_memory
from clinit.headtrain.model.model_file import Change, ModelFacts, features_of, for_timm, write_model
from clinit.headtrain.model.predict import load_model
from clinit.headtrain.stream.source import Source
from clinit.headtrain.temperature import divided
from clinit.words import examples, visible


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that classes can be added to."""

    facts: ModelFacts
    backbone: Backbone
    """The network on its device, its classifier included."""
    memory: Memory | None
    """None where it remembers nothing."""
    origin: str
    """Where it is from, for messages and its history."""

    def __repr__(self) -> str:
        return f"<Model {self.origin}: {self.facts}, memory {self.memory}>"

    @property
    def head(self) -> Head:
        """The classifier as it was trained, with the names of its classes.

        Its logits are those of the network times the temperature, so that rows of added classes
        start at the scale that the training left the old ones at.
        """
        exported = replace(self.backbone.head, class_names=self.facts.class_names)
        temperature = self.facts.temperature
        return exported if temperature is None else temperature.multiplied(exported)

    @property
    def depends_on(self) -> dict[str, str]:
        """What the features of the model depend on, as its memory says it."""
        return features_of(self.facts, self.backbone)

    def network(self, dtype: str) -> Network:
        """Return the network as an extraction needs it.

        Its features do not depend on the classifier: models with other classes on the same body
        have features of the same fingerprint.

        Args:
            dtype: How features are stored.
        """
        import timm

        fingerprint = Fingerprint.of_network(
            backbone=self.facts.backbone,
            weights=self.depends_on["body"],
            model_args=self.facts.model_args,
            timm=timm.__version__,
            transform=self.facts.transform.describe(),
            decoder=decoder_version(),
            dtype=dtype,
            autocast=self.facts.autocast,
        )
        return Network(self.backbone, self.facts.transform, fingerprint)


def check_features(model: Model, source: Source) -> None:
    """Check that the features of a cache are those of a model.

    They are, where they were computed by its network, or by the one that its base head was trained
    on.

    Raises:
        ModelError: If neither is the case; the message names what differs.
    """
    found = source.fingerprint.without_rows
    own = model.network(found.dtype or "float16").fingerprint
    differing = [found.differences(each.without_rows) for each in (model.facts.fingerprint, own)]
    if all(differing):
        raise ModelError(
            f"the features in {source.path} are not of the network of {model.origin}: they differ"
            f" in {', '.join(map(str, differing[0]))}",
            remedy="Give the cache of this network, or the images: `clinit remember`.",
        )


def open_model(path: str | os.PathLike[str], *, device: str = "auto") -> Model:
    """Open a model folder or file of `clinit export`.

    Raises:
        ModelError: If there is none, or it or its memory is damaged or of another backbone.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    path = Path(path)
    return read_whole(path, lambda: _open_model(path, device))


def _open_model(path: Path, device: str) -> Model:
    classifier = load_model(path, device=device)
    memory = memory_in(path, classifier.facts)
    model = Model(classifier.facts, classifier.backbone, memory, str(path))
    if memory is None:
        return model
    if memory.dim != model.head.dim:
        raise ModelError(
            f"{path / MEMORY_FILE} remembers features of width {memory.dim}, the model's are"
            f" {model.head.dim} wide",
            remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
        )
    check_backbone(model.depends_on, memory.backbone)
    return model


def stock_model(config: ExtractConfig) -> Model:
    """Return a pretrained network of timm as a model that remembers nothing.

    Args:
        config: Backbone and transform; `head_classes` names its rows, where they are not stored
            with the weights and not those of ImageNet-1K.

    Raises:
        BackboneError: If it cannot be had or does not serve.
        ModelError: If nobody says what its rows stand for.
    """
    network = load_network(config)
    head, _ = name_rows(network.backbone.head, (), config.head_classes)
    if head.class_names is None:
        raise ModelError(
            f"the {head.num_classes:,} rows of {config.backbone.name} have no class names",
            remedy="Give a file with one name per row: `--head-classes FILE`.",
        )
    facts = ModelFacts(
        backbone=config.backbone.name,
        model_args={k: v for k, v in config.backbone.model_args.items() if k != "num_classes"},
        class_names=head.class_names,
        tasks=(0,) * head.num_classes,
        transform=network.transform,
        autocast=config.backbone.autocast,
        weights=network.backbone.weights_sha256,
        fingerprint=network.fingerprint,
        record={},
    )
    return Model(facts, network.backbone, None, config.backbone.name)


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The classes of a model: what it says of them, their rows, and what it remembers."""

    facts: ModelFacts
    head: Head
    memory: Memory | None

    def __repr__(self) -> str:
        return f"<Classes: {self.facts}, memory {self.memory}>"

    @classmethod
    def of(cls, model: Model) -> Classes:
        """Return the classes of a model as they are."""
        return cls(model.facts, model.head, model.memory)

    def after(self, change: Change) -> Classes:
        """Return the classes with one more change in their history."""
        return replace(self, facts=self.facts.after(change))

    def of_rows(self, rows: Sequence[int]) -> Classes:
        """Return some classes, in another order: `rows` are their numbers here."""
        picked = list(rows)
        names = tuple(self.facts.class_names[row] for row in picked)
        tasks = tuple(self.facts.tasks[row] for row in picked)
        return Classes(
            replace(self.facts, class_names=names, tasks=tasks),
            replace(
                self.head,
                weight=self.head.weight[picked],
                bias=self.head.bias[picked],
                class_names=names,
            ),
            None if self.memory is None else self.memory.of_rows(picked),
        )

    def without(self, names: Sequence[str]) -> Classes:
        """Return all classes but those of some names.

        Raises:
            ModelError: If there is no class of a name, or none would be left.
        """
        check_known(self.facts, names)
        gone = set(names)
        left = [row for row, name in enumerate(self.facts.class_names) if name not in gone]
        if len(left) < 1:
            raise ModelError(
                f"without these {len(gone):,} classes the model has none",
                remedy="Leave at least one class.",
            )
        return self.of_rows(left)

    def renamed(self, new_names: Mapping[str, str]) -> Classes:
        """Return the same classes under other names.

        Raises:
            ModelError: If there is no class of a name, or two would have the same.
        """
        check_known(self.facts, list(new_names))
        _check_names(new_names.values())
        names = tuple(new_names.get(name, name) for name in self.facts.class_names)
        if twice := sorted({name for name in new_names.values() if names.count(name) > 1}):
            raise ModelError(
                f"two classes would have the same name ({examples(twice)})",
                remedy="Choose names that the model does not have; `clinit model show MODEL` lists"
                " its classes.",
            )
        return Classes(
            replace(self.facts, class_names=names),
            replace(self.head, class_names=names),
            None if self.memory is None else self.memory.renamed(names),
        )


def removed(classes: Classes, names: Sequence[str], *, data: Mapping[str, Any]) -> Classes:
    """Return the classes without those of some names, and with that in their history.

    Raises:
        ModelError: If there is no class of a name, or none would be left.
    """
    left = classes.without(names)
    if (temperature := left.facts.temperature) is not None:
        left = replace(left, facts=replace(left.facts, temperature=temperature.unmeasured))
    return left.after(Change.now("remove", tuple(dict.fromkeys(names)), data=data))


def renamed(classes: Classes, new_names: Mapping[str, str], *, data: Mapping[str, Any]) -> Classes:
    """Return the classes under other names, and with that in their history.

    Raises:
        ModelError: If there is no class of a name, or two would have the same.
    """
    settings = {"names": dict(new_names)}
    change = Change.now("rename", tuple(new_names.values()), data=data, settings=settings)
    return classes.renamed(new_names).after(change)


def _check_names(names: Iterable[str]) -> None:
    bad = [name for name in names if not name.strip() or not is_text(name) or visible(name) != name]
    if bad:
        raise ModelError(
            f"{visible(bad[0])!r} cannot be the name of a class: it is blank or holds characters"
            " that cannot be printed",
            remedy="Choose a name of letters that can be seen.",
        )


def check_known(facts: ModelFacts, names: Sequence[str]) -> None:
    """Check that the model has classes of these names.

    Raises:
        ModelError: If it lacks one; the message names those that are nearly alike.
    """
    known = set(facts.class_names)
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    near = get_close_matches(unknown[0], facts.class_names, n=3)
    raise ModelError(
        f"the model has no class {examples(unknown)}"
        + (f"; its classes of similar names: {', '.join(near)}" if near else ""),
        remedy="`clinit model show MODEL` lists its classes.",
    )


ExtraFiles = Mapping[str, Callable[[Path], object]]
Extra = Callable[[nn.Module, ModelFacts], ExtraFiles]


def no_extra(network: nn.Module, facts: ModelFacts) -> ExtraFiles:
    """Write no further files."""
    return {}


def check_apart(writes: Path, reads: Path) -> None:
    """Check that nothing is written into what is only read.

    Raises:
        ModelError: If it would be.
    """
    place, other = writes.resolve(), reads.resolve()
    if place == other or other in place.parents:
        raise ModelError(
            f"{writes} lies in {reads}, which is only read",
            remedy="Choose another place for the new model (`--out`) or for features"
            " (`--features`).",
        )


def write_classes(
    model: Model,
    classes: Classes,
    out: Path,
    extra: Extra = no_extra,
    *,
    overwrite: bool = False,
) -> ModelFacts:
    """Write the network of `model` with other classes to `out`; return what the model says.

    A folder holds what the model remembers; a file, whose name ends in .safetensors, does not.

    Args:
        model: Whose network.
        classes: Facts, rows as they were trained, and memory.
        out: The folder or the file; there must be nothing yet, unless it is overwritten.
        extra: Given the network and the facts, returns writers of further files of a folder by
            their names.
        overwrite: Whether a model that is there is replaced.

    Raises:
        ModelError: If there is something at `out` that may not be replaced.
        BackboneError: If the network cannot hold the head.
        ClinitError: If it cannot be written.
    """
    check_free(out, overwrite=overwrite)
    head = divided(classes.head, classes.facts.temperature)
    network = assemble(model.backbone, head)
    check_same_logits(network, model.backbone, head, classes.facts.transform)
    facts = replace(
        classes.facts,
        weights=state_sha256(network.state_dict()),
        timm=for_timm(network, classes.facts.model_args),
    )
    if out.suffix == ".safetensors":
        write_model(network, facts, out)
        return facts
    files = dict(extra(network, facts))
    if (memory := classes.memory) is not None:
        if memory.class_names != facts.class_names:
            raise ModelError(
                "the classes of the memory are not those of the model",
                remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
            )
        check_backbone(model.depends_on, memory.backbone)
        files[MEMORY_FILE] = lambda path: write_memory(memory, path)
    write_model_folder(out, network, facts, extra=files, overwrite=overwrite)
    return facts


TOLERANCE = 1e-5
"""Between the network's logits and features times head, relative to what is added up in them."""


def assemble(backbone: Backbone, head: Head) -> nn.Module:
    """Build the network of `backbone` with `head` as its classifier, as timm builds it.

    Raises:
        HeadError: If the head reads features of another width.
        BackboneError: If the network cannot hold the head.
    """
    if head.dim != backbone.dim:
        raise HeadError(
            f"the head reads features of width {head.dim}, {backbone.config.name} gives"
            f" {backbone.dim}",
            remedy="Export the run with the cache that it was trained on: `--base CACHE`.",
        )
    name = _classifier_name(backbone.network)
    state = dict(backbone.network.state_dict())
    state[f"{name}.weight"] = torch.from_numpy(head.weight.astype(np.float32))
    if state.pop(f"{name}.bias", None) is not None:
        state[f"{name}.bias"] = torch.from_numpy(head.bias.astype(np.float32))
    elif head.bias.any():
        raise BackboneError(
            f"the classifier of {backbone.config.name} has no bias, the head has one",
            remedy="Choose a backbone whose classifier has a bias.",
        )
    config = backbone.config
    network: nn.Module = timm.create_model(
        config.name, pretrained=False, num_classes=head.num_classes, **model_args(backbone)
    )
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise BackboneError(
            f"{config.name} with {head.num_classes:,} classes differs in more than its classifier:"
            f" {' '.join(str(error).split())[:300]}",
            remedy="Choose another backbone.",
        ) from error
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def check_same_logits(
    network: nn.Module, backbone: Backbone, head: Head, transform: Transform
) -> None:
    """Check, on seeded noise, that `network` computes `head` on the features of `backbone`.

    Raises:
        BackboneError: If it does not.
    """
    exact = replace(backbone, config=replace(backbone.config, autocast="off"))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, 3, *transform.crop), generator=generator, dtype=torch.uint8)
    images = transform.normalise(noise)
    features = exact.features(images).numpy()
    expected = features @ head.weight.T + head.bias
    scale = np.abs(features) @ np.abs(head.weight).T + np.abs(head.bias)
    # In the memory format of the backbone: another one rounds otherwise in every layer.
    found = network.to(memory_format=torch.channels_last)(images).numpy()
    if found.shape != expected.shape or (abs(found - expected) > TOLERANCE * scale.max()).any():
        raise BackboneError(
            f"{backbone.config.name} with the head in place of its classifier does not give the"
            " logits of the head on its features",
            remedy="Choose another backbone: something follows or surrounds its classifier.",
        )


def model_args(backbone: Backbone) -> dict[str, Any]:
    """Return the keyword arguments of `timm.create_model`, the number of classes left out."""
    return {k: v for k, v in backbone.config.model_args.items() if k != "num_classes"}


def _classifier_name(network: nn.Module) -> str:
    classifier = network.get_classifier()  # type: ignore[operator]
    names = (name for name, module in network.named_modules() if module is classifier)
    return str(next(names))
