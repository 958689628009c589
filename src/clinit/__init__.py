"""Data-driven initialisation of new classes for continual learning.

    base, new = clinit.load_cache("caches/base"), clinit.load_cache("caches/new")
    runs = clinit.train_heads(base, new, clinit.Study.of({"tasks": 5}))
    runs.table()

The parts of this package are links to the top-level folders of the repository: `extract` computes
cached features from images, `headtrain` trains heads on them, `analysis` reads the records of runs,
and `cli` is the only part that prints to the terminal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clinit.analysis.report.report import Runs as Runs
    from clinit.analysis.report.report import load_runs as load_runs
    from clinit.api import diagnose as diagnose
    from clinit.api import extract_features as extract_features
    from clinit.api import load_cache as load_cache
    from clinit.api import load_head as load_head
    from clinit.api import probe as probe
    from clinit.api import save_head as save_head
    from clinit.api import train_heads as train_heads
    from clinit.api import train_top as train_top
    from clinit.headtrain.heads.start.settings import Start as Start
    from clinit.headtrain.heads.statistics.classifier import (
        LeastSquaresClassifier as LeastSquaresClassifier,
    )
    from clinit.headtrain.heads.statistics.solve import least_squares as least_squares
    from clinit.headtrain.model.predict import predict_features as predict_features
    from clinit.headtrain.model.reading import load_model as load_model
    from clinit.headtrain.protocol.stream.summed import read_summed as read_summed
    from clinit.headtrain.protocol.stream.summed import sum_caches as sum_caches
    from clinit.headtrain.protocol.study.methods import DerppConfig as DerppConfig
    from clinit.headtrain.protocol.study.methods import EwcConfig as EwcConfig
    from clinit.headtrain.protocol.study.methods import Top as Top
    from clinit.headtrain.protocol.study.parts import Stream as Stream
    from clinit.headtrain.protocol.study.parts import Training as Training
    from clinit.headtrain.protocol.study.study import Study as Study

    __version__: str

_PLACES = {
    "clinit.headtrain.protocol.study.methods": ("DerppConfig", "EwcConfig", "Top"),
    "clinit.headtrain.heads.start.settings": ("Start",),
    "clinit.headtrain.protocol.study.parts": ("Stream", "Training"),
    "clinit.headtrain.protocol.study.study": ("Study",),
    "clinit.headtrain.model.reading": ("load_model",),
    "clinit.headtrain.model.predict": ("predict_features",),
    "clinit.headtrain.heads.statistics.classifier": ("LeastSquaresClassifier",),
    "clinit.headtrain.heads.statistics.solve": ("least_squares",),
    "clinit.headtrain.protocol.stream.summed": ("read_summed", "sum_caches"),
    "clinit.analysis.report.report": ("Runs", "load_runs"),
    "clinit.api": (
        *("diagnose", "extract_features", "load_cache", "load_head"),
        *("probe", "save_head", "train_heads", "train_top"),
    ),
}
"""The public names, by the module that defines them."""
__all__ = sorted(["__version__", *(name for names in _PLACES.values() for name in names)])


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import clinit` stays fast."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("clinit")
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'clinit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
