"""Data-driven initialisation of new classes for continual learning.

The parts of this package are the top-level folders of the repository, linked here:
`extract` turns images into cached features, `headtrain` learns heads from them, `analysis`
reads the records of runs, and `cli` is the only part that talks to the terminal.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clinit.headtrain.export.classifier import load_model as load_model
    from clinit.headtrain.least_squares.api import least_squares as least_squares

__version__ = version("clinit")
__all__ = ["__version__", "least_squares", "load_model"]


def __getattr__(name: str) -> Any:
    """Load a public function when it is first used, so that `import clinit` stays light."""
    if name == "least_squares":
        from clinit.headtrain.least_squares.api import least_squares

        return least_squares
    if name == "load_model":
        from clinit.headtrain.export.classifier import load_model

        return load_model
    raise AttributeError(f"module 'clinit' has no attribute {name!r}")
