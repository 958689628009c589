"""Data-driven initialisation of new classes for continual learning.

    base = clinit.load_cache("caches/base")
    new = clinit.Features(X, y, X_val, y_val, backbone=base)
    runs = clinit.train(base, new, tasks=5, init=["random", "least-square"], seeds=range(3))
    runs.table()

The parts of this package are links to the top-level folders of the repository: `extract` computes
cached features from images, `headtrain` trains heads on them, `analysis` reads the records of runs,
and `cli` is the only part that prints to the terminal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clinit.analysis.metrics.diagnosis import Diagnosis as Diagnosis
    from clinit.analysis.runs import Runs as Runs, load_runs as load_runs
    from clinit.api import diagnose as diagnose, probe as probe, train as train
    from clinit.arrays import (
        Features as Features,
        extract_features as extract_features,
        load_cache as load_cache,
        load_head as load_head,
        save_head as save_head,
    )
    from clinit.errors import ClinitError as ClinitError
    from clinit.extract.cache.features import FeatureSet as FeatureSet
    from clinit.extract.cache.head import Head as Head
    from clinit.headtrain.heads.linear import Rows as Rows
    from clinit.headtrain.heads.statistics.classifier import (
        LeastSquaresClassifier as LeastSquaresClassifier,
    )
    from clinit.headtrain.heads.statistics.solve import least_squares as least_squares
    from clinit.headtrain.model.addition import Addition as Addition
    from clinit.headtrain.model.estimator import AddedClassesClassifier as AddedClassesClassifier
    from clinit.headtrain.model.evaluation import Evaluation as Evaluation
    from clinit.headtrain.model.model import Model as Model, load as load
    from clinit.headtrain.model.predict import Prediction as Prediction, Rejection as Rejection
    from clinit.headtrain.probe.protocol import Probe as Probe
    from clinit.headtrain.protocol.stream.source import Source as Source

    __version__: str

_PLACES = {
    "clinit.analysis.metrics.diagnosis": "Diagnosis",
    "clinit.analysis.runs": "Runs load_runs",
    "clinit.api": "diagnose probe train",
    "clinit.arrays": "Features extract_features load_cache load_head save_head",
    "clinit.errors": "ClinitError",
    "clinit.extract.cache.features": "FeatureSet",
    "clinit.extract.cache.head": "Head",
    "clinit.headtrain.heads.linear": "Rows",
    "clinit.headtrain.heads.statistics.classifier": "LeastSquaresClassifier",
    "clinit.headtrain.heads.statistics.solve": "least_squares",
    "clinit.headtrain.model.addition": "Addition",
    "clinit.headtrain.model.estimator": "AddedClassesClassifier",
    "clinit.headtrain.model.evaluation": "Evaluation",
    "clinit.headtrain.model.model": "Model load",
    "clinit.headtrain.model.predict": "Prediction Rejection",
    "clinit.headtrain.probe.protocol": "Probe",
    "clinit.headtrain.protocol.stream.source": "Source",
}
"""The public names, by the module that defines them."""
__all__ = sorted(["__version__", *" ".join(_PLACES.values()).split()])


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import clinit` stays fast."""
    from importlib import import_module

    if name == "extract":
        return import_module("clinit.extract")
    if name == "__version__":
        from importlib.metadata import version

        return version("clinit")
    if name == "load_model":
        from warnings import warn

        warn("clinit.load_model goes in 0.3: use clinit.load", DeprecationWarning, stacklevel=2)
        name = "load"
    for module, names in _PLACES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'clinit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
