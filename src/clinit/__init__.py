"""Data-driven initialisation of new classes for continual learning.

The parts of this package are the top-level folders of the repository, linked here:
`extract` turns images into cached features, `headtrain` learns heads from them, `analysis`
reads the records of runs, and `cli` is the only part that talks to the terminal.
"""

from importlib.metadata import version

__version__ = version("clinit")
