"""The data sets of `clinit train-top`, their activations, and the notes about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.console import note, say
from clinit.cli.context import Context, given
from clinit.cli.options import MaxPixels
from clinit.cli.progress import doing, progress
from clinit.cli.study_options import Command, expand
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.words import byte_count

if TYPE_CHECKING:
    from clinit.extract.work.shard_work import Progress
    from clinit.headtrain.runs import RunData
    from clinit.headtrain.study import Study
    from clinit.headtrain.top.inputs import Side, StoredPart, TopInputs


def _option(help: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Activations", **settings)


Weights = Annotated[
    Path | None,
    _option(
        "Weights of the backbone; they must be those of the features.",
        metavar="FILE",
        show_default="where they were at extraction",
    ),
]
BaseRoot = Annotated[
    Path | None,
    _option("Folder of the base images.", metavar="FOLDER", show_default="as at extraction"),
]
NewRoot = Annotated[
    Path | None,
    _option("Folder of the new images.", metavar="FOLDER", show_default="as at extraction"),
]
TrunkCacheFolder = Annotated[
    Path | None,
    _option(
        "Folder of stored activations; runs may share it.",
        metavar="FOLDER",
        show_default="OUT/trunk-cache",
    ),
]
NoTrunkCache = Annotated[
    bool, _option("Compute activations from the images each time.", "--no-trunk-cache")
]
TrunkBudget = Annotated[
    str,
    _option(
        "Most bytes that are stored; the rest is computed from the images each time.",
        metavar="SIZE",
    ),
]
Workers = Annotated[
    int | None,
    _option("Threads that read and decode images.", min=1, show_default="usable CPUs"),
]
CheckpointEvery = Annotated[
    int, _option("Updates between two checkpoints; 0: only after each task.", min=0)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Places of everything that is read and stored."""

    base: Path
    new: Path
    base_root: Path | None
    new_root: Path | None
    weights: Path | None
    trunk_cache: Path
    budget: int
    """Bytes of stored activations."""
    workers: int | None
    max_pixels: int


def takes_images(command: Command) -> Command:
    """Let a command take the options of images, and receive their value in `images`.

    The command takes `context`, `base`, `new` and `out` itself.
    """
    options: dict[str, tuple[Any, Any]] = {
        "weights": (Weights, None),
        "base_root": (BaseRoot, None),
        "new_root": (NewRoot, None),
        "trunk_cache": (TrunkCacheFolder, None),
        "no_trunk_cache": (NoTrunkCache, False),
        "trunk_budget": (TrunkBudget, "20GB"),
        "workers": (Workers, None),
        "max_pixels": (MaxPixels, MAX_PIXELS),
    }

    def build(values: Mapping[str, Any]) -> Images:
        same = ("base_root", "new_root", "weights", "workers", "max_pixels")
        return Images(
            base=_one_cache(values["base"], "--base"),
            new=_one_cache(values["new"], "--new"),
            trunk_cache=values["trunk_cache"] or values["out"] / "trunk-cache",
            budget=_trunk_budget(
                values["context"],
                values["trunk_budget"],
                no_trunk_cache=values["no_trunk_cache"],
            ),
            **{name: values[name] for name in same},
        )

    types = {name: kind for name, (kind, _) in options.items()}
    defaults = {name: default for name, (_, default) in options.items()}
    return expand("images", types, defaults, build)(command)


def _one_cache(given: Path | list[Path], option: str) -> Path:
    """Return the only cache; `clinit sweep` takes several for runs without --top."""
    caches = given if isinstance(given, list) else [given]
    if len(caches) > 1:
        raise typer.BadParameter(f"{option} takes one cache for runs with top blocks")
    return caches[0]


def _trunk_budget(context: Context, budget: str, *, no_trunk_cache: bool) -> int:
    """Return the bytes that may be stored.

    Raises:
        BadParameter: If `budget` is not a size, or given beside --no-trunk-cache.
    """
    if given(context, "no_trunk_cache") == "commandline":
        for name in ("trunk_cache", "trunk_budget"):
            if given(context, name) == "commandline":
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{option} does not go with --no-trunk-cache")
    if no_trunk_cache:
        return 0
    try:
        return byte_count(budget)
    except ValueError as error:
        raise typer.BadParameter(f"--trunk-budget {error}") from error


def open_data(
    images: Images, heads: Mapping[str, Path | None]
) -> tuple[tuple[Side, Side], RunData]:
    """Open the two data sets, with their images, and the pretrained heads by loss."""
    from clinit.headtrain.runs import RunData
    from clinit.headtrain.top.inputs import open_side

    with doing("Reading the caches …"):
        base = open_side(images.base, images.base_root, option="--base-root")
        new = open_side(images.new, images.new_root, option="--new-root")
    return (base, new), RunData.of(base.source, new.source, heads, on_note=note)


def read_inputs(
    images: Images, sides: tuple[Side, Side], data: RunData, studies: Sequence[Study]
) -> TopInputs:
    """Load the backbone, and compute and store the activations that the runs look at."""
    from clinit.headtrain.study import names_of
    from clinit.headtrain.top.experiment import top_notes
    from clinit.headtrain.top.inputs import Storage, prepare_inputs, reload_backbone

    with doing("Reading the weights …"):
        training = studies[0].training
        backbone, transform = reload_backbone(sides[0], images.weights, training.device)
    storage = Storage(
        folder=images.trunk_cache,
        budget=images.budget,
        max_pixels=images.max_pixels,
        **({} if images.workers is None else {"workers": images.workers}),
    )
    with _part_progress() as on_progress:
        inputs = prepare_inputs(
            *sides,
            data.head_for(training.loss),
            backbone,
            transform,
            studies[0],
            storage,
            random_only=all(each.start.init == "random" for each in studies),
            on_parts=lambda parts: _say_parts(parts, images.trunk_cache),
            on_progress=on_progress,
            on_busy=lambda name: note(
                f"Another process computes the activations of {name}: waiting for it"
            ),
        )
    if cost := cost_line(inputs.parts, [names_of([each])[0] for each in studies]):
        say(cost)
    for text in top_notes(inputs, studies, data.facts_for(training.loss)):
        note(text)
    return inputs


def _say_parts(parts: tuple[StoredPart, ...], folder: Path) -> None:
    stored = [part for part in parts if part.stored]
    total = sum(part.bytes for part in stored)
    if stored:
        words = ", ".join(f"{part.name} {part.bytes / 1e9:.2f} GB" for part in stored)
        say(f"Activations in {folder}, float16: {total / 1e9:.2f} GB ({words})")
    if left := [part for part in parts if not part.stored and part.rows]:
        words = ", ".join(f"{part.name} ({part.bytes / 1e9:.2f} GB)" for part in left)
        say(f"Computed from the images each time: {words}")


def cost_line(parts: Sequence[StoredPart], runs: Sequence[str]) -> str | None:
    """Print in one line what the stored activations cost, and which run pays for them.

    Args:
        parts: As the first run finds them.
        runs: Names of the runs, in their order.
    """
    now = [part for part in parts if part.computed_here]
    before = [part for part in parts if part.stored and not part.computed_here]
    words = []
    if now:
        more = len(runs) - 1
        reused = f" and reused by {more} more run{'s' if more > 1 else ''}" if more else ""
        words.append(f"{_cost(now)}, paid by {runs[0]}{reused}")
    if before:
        words.append(f"{_cost(before)}, paid by an earlier call")
    return f"Activations: {'; '.join(words)}" if words else None


def _cost(parts: Sequence[StoredPart]) -> str:
    seconds = [part.seconds for part in parts if part.seconds is not None]
    return f"{sum(seconds):,.1f} s" if len(seconds) == len(parts) else "of unknown cost"


@contextmanager
def _part_progress() -> Iterator[Any]:
    with progress() as shown:

        def show(name: str, now: Progress) -> None:
            line = shown.only(f"Activations of {name}", unit="images", tells_rate=True)
            line.count(now.rows_done, now.rows_total)

        yield show
