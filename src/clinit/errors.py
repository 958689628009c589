"""Errors that a user can act on; the command line prints them without a traceback.

    ClinitError
    ├── ManifestError     a data set on disk, its description or its manifest
    ├── ImageError        one image that cannot be decoded
    ├── MachineError      the machine lacks memory, permissions or file handles, or a disk fails
    ├── BackboneError     a network that cannot be used as a frozen backbone
    ├── DeviceError       a device that does not exist
    ├── StorageError      a file that exists but cannot be read, although its content may be intact
    ├── ClusterError      a cluster that cannot be reached, or whose workers are lost
    ├── CacheError        a feature cache: missing, incomplete, damaged, with another fingerprint
    ├── HeadError         a classifier head: missing, of another width, of other classes
    ├── StatisticsError   class statistics that cannot be computed or solved
    ├── ExperimentError   an experiment that cannot be run with these settings and data
    ├── ConfigFileError   a file of options: missing, damaged, with a key that is not an option
    ├── ModelError        an exported model: missing, damaged, at the path of a new model
    ├── CheckpointError   a checkpoint of an unfinished run: damaged, of another run
    └── RecordError       a run record: missing, incomplete, with another layout

Wrong arguments of library functions raise `ValueError`; impossible cases are asserted.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import Any


class ClinitError(Exception):
    """Base of every error that the command line prints without a traceback.

    The message states what was found and expected; `remedy` is the next step.
    """

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the remedy too, so that an error can be passed to another process."""
        return partial(type(self), remedy=self.remedy), (str(self),)


LOOK_AT_STORAGE = "Check its permissions and its disk or network, then run the same command again."


def reason(error: OSError) -> str:
    """Return the operating system's text for an error."""
    return error.strerror or str(error)


def unreadable(path: object, error: OSError) -> StorageError:
    """Return the error for an existing file that cannot be read."""
    return StorageError(f"cannot read {path}: {reason(error)}", remedy=LOOK_AT_STORAGE)


def unwritable(path: object, error: OSError) -> ClinitError:
    """Return the error for a path that cannot be written."""
    why, remedy = reason(error), "Free space or choose a place that you can write to"
    if error.errno == errno.ENAMETOOLONG:
        remedy = "Choose a shorter name"
    if isinstance(error, FileExistsError | NotADirectoryError):
        why, remedy = "a file is where a folder is needed", "Choose another place"
    remedy += ", then run the same command again."
    return ClinitError(f"cannot write {path}: {why}", remedy=remedy)


class ManifestError(ClinitError):
    """A data set on disk, its description or its manifest is not as expected."""


class ImageError(ClinitError):
    """One image cannot be decoded."""


class MachineError(ClinitError):
    """The machine fails: it lacks memory, permissions or file handles, or its storage fails."""


class BackboneError(ClinitError):
    """A network cannot be used as a frozen backbone."""


class DeviceError(ClinitError):
    """The requested device does not exist."""


class StorageError(ClinitError):
    """A file exists but cannot be read, although its content may be intact."""


class ClusterError(ClinitError):
    """A cluster cannot be reached, or its workers are lost."""


class CacheError(ClinitError):
    """A feature cache is missing, incomplete, damaged or has another fingerprint."""


class HeadError(ClinitError):
    """A classifier head is missing, or its width or its classes do not fit."""


class StatisticsError(ClinitError, ValueError):
    """Class statistics cannot be computed, or their normal equations cannot be solved."""


class ExperimentError(ClinitError):
    """An experiment cannot be run with these settings and data."""


class RecordError(ClinitError):
    """A run record is missing, incomplete or has another layout."""


class ModelError(ClinitError):
    """An exported model is missing, damaged, or in the way of a new model."""


class ConfigFileError(ClinitError):
    """A file of options cannot be read, or sets something that is not an option."""


class CheckpointError(ClinitError):
    """The checkpoint of an unfinished run is damaged or belongs to another run."""
