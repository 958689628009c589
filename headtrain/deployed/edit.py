"""Classes of a model that are removed, renamed or put in another order, and the model written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from clinit.errors import ModelError
from clinit.extract.backbone import state_sha256
from clinit.extract.dataset.class_names import is_text
from clinit.extract.head import Head
from clinit.headtrain.deployed.model import Model
from clinit.headtrain.examples import examples
from clinit.headtrain.export.assemble import assemble, check_same_logits
from clinit.headtrain.export.change import Change
from clinit.headtrain.export.memory import Memory, check_backbone
from clinit.headtrain.export.memory_file import write_memory
from clinit.headtrain.export.model_file import ModelFacts, for_timm, write_model
from clinit.headtrain.export.model_folder import MEMORY_FILE, check_free, write_model_folder
from clinit.headtrain.temperature import divided
from clinit.words import visible


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
