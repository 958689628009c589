"""Settings: fields of frozen dataclasses that declare their meaning and their valid values.

    tasks: int = setting(5, "Number of tasks.", least=1)

Such a field defines its check, its command-line option with the help text, its values in the grid
of a sweep and its key in a file, so that each setting is described once.

A setting of type `Imported` also takes a user's functions, by their import path.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clinit.errors import ExperimentError
from clinit.files.paths import is_file
from clinit.words import did_you_mean


class Imported(str):
    """A user's function, `package.module:function@digest`, with the digest of its source."""

    __slots__ = ()

    @classmethod
    def of(cls, given: str | Callable[..., Any], group: str = "clinit.starts") -> str:
        """Return the import path and digest of a function; return any other word unchanged.

        A path with a digest, as in records, is neither imported nor compared before `load`.

        Args:
            given: The function, its path `package.module:function`, or the name of an entry point.
            group: The group of such entry points.

        Raises:
            ExperimentError: If the function cannot be imported or called, or its path leads to
                another one: runs, other processes and later ones import it.
        """
        if callable(given):
            function = given
            given = f"{given.__module__}:{getattr(given, '__qualname__', type(given).__name__)}"
            if cls(given)._imported()[0] is not function:
                raise ExperimentError(
                    f"{given} is not the {type(function).__name__} that was given",
                    remedy="Give a function of a module by its name there, not an object or method,"
                    " and none that was wrapped, nested or defined again.",
                )
        if ":" not in given:
            points = entry_points(group=group, name=given)
            given = next((point.value for point in points), given)
        if ":" not in given or "@" in given:
            return cls(given) if ":" in given else given
        return cls(f"{given}@{cls(given)._imported()[1]}")

    @property
    def path(self) -> str:
        """The import path, without the digest."""
        return self.partition("@")[0]

    def load(self) -> Callable[..., Any]:
        """Import the function; if a call of it fails or exits, it raises an `ExperimentError`.

        Raises:
            ExperimentError: If the import fails, or the object is no function, or its source has
                another digest.
        """
        function = self._imported()[0]

        @wraps(function, updated=())
        def named(*arguments: Any) -> Any:
            try:
                with _here():
                    return function(*arguments)
            except BaseException as error:  # whatever its author has derived it from
                if type(error).__name__ in ("MemoryError", "OutOfMemoryError", "KeyboardInterrupt"):
                    raise
                raise ExperimentError(
                    f"{self.path} fails: {_in_words(error)}",
                    remedy="Correct the function: docs/extend.md shows what it is called with.",
                ) from error

        return named

    def _imported(self) -> tuple[Callable[..., Any], str]:
        (module, _, name), wanted = self.path.partition(":"), self.partition("@")[2]
        function: Any = None
        before = wanted
        try:
            # The digest of a file is compared before the file runs, or anything of its package;
            # for a function of `__main__`, the digest of its own source.
            with _here():
                digest = "" if module == "__main__" else _digest(_file_of(module).read_bytes())
                if not digest or wanted in ("", digest):
                    imported = import_module(module)
                    function, spec = attrgetter(name)(imported), imported.__spec__
                    if digest and spec:  # a new one for each import and each reload
                        before = vars(spec).setdefault("clinit_digest", digest)
            digest = digest or _digest(inspect.getsource(function).encode())
        except (Exception, SystemExit) as error:
            raise ExperimentError(
                f"cannot import {self.path}: {_in_words(error)}",
                remedy="Give package.module:function, of a module in this folder, in an installed"
                " package, or in a folder that PYTHONPATH names.",
            ) from error
        if wanted not in ("", digest):
            raise ExperimentError(
                f"the source of {self.path} has changed: its SHA-256 begins with {digest}, the run"
                f" has {wanted}",
                remedy="Restore the source, or train again with the path without the digest.",
            )
        if before not in ("", digest):
            raise ExperimentError(
                f"{module} was edited after its import",
                remedy="Start Python again, or give the module to importlib.reload.",
            )
        if not callable(function):
            raise ExperimentError(
                f"{self.path} is no function but {type(function).__name__}",
                remedy="Give a function: docs/extend.md shows what it is called with.",
            )
        return function, digest


@contextmanager
def _here() -> Iterator[None]:
    """Let imports find modules in the working folder, after all other folders."""
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        sys.path.remove("")


def _file_of(module: str) -> Path:
    """Return the file of a module; nothing is imported, not even the packages above it."""
    place = getattr(sys.modules.get(module), "__file__", None)
    names, folders = module.split("."), None
    for depth in range(1, len(names) + 1) if place is None else ():
        name = ".".join(names[:depth])
        finders = (each for each in sys.meta_path if hasattr(each, "find_spec"))
        found = next(filter(None, (each.find_spec(name, folders) for each in finders)), None)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        place, folders = found.origin, found.submodule_search_locations
        if folders is None and depth < len(names):
            raise ModuleNotFoundError(f"No module named {module!r}: {name!r} is not a package")
    if place is None or not is_file(Path(place)):
        raise ModuleNotFoundError(f"No file of a module named {module!r}")
    return Path(place)


def _in_words(error: BaseException) -> str:
    """Return an error of a user's code, with the line of that code."""
    others = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), __file__)
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(others)]
    where = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    text = traceback.TracebackException(type(error), error, None)  # also if `str` of it fails
    return f"{type(error).__name__}: {text}{where}"


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


MOST = 10**12
"""Largest integer for fields without `most`: larger than any sensible value."""
_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a word",
    tuple[str, ...]: "a list of words",
    tuple[float, ...]: "a list of numbers",
    Imported: "package.module:function",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The meaning of a field, and its values beyond its type."""

    help: str
    """Meaning and unit, for the command line."""
    least: int | float | None = None
    above: int | float | None = None
    """The value must be larger than this."""
    most: int | float | None = None
    alias: str | None = None
    """Name on the command line without leading dashes; default: the name of the field."""
    short: str = ""
    """A second name on the command line, of one letter."""
    otherwise: str | None = None
    """The default in words, if None means a default that depends on other settings."""
    metavar: str | None = None
    """Name of a value in the help; default: the name of its type."""
    joined: bool = False
    """Whether the command line takes a list of numbers as one text, such as `0.5,0.5,0.5`."""
    file: bool = False
    """Whether the command line takes the name of a file that contains the value."""
    top_help: str | None = None
    """Meaning for runs of top blocks, if it differs."""
    top_otherwise: str | None = None
    """The default in words for runs of top blocks, if it differs."""
    panel: str | None = None
    """Heading in the help; default: the heading of its part."""
    group: str = ""
    """Group of entry points by which packages offer functions for the setting."""
    of_heads: bool = False
    """Whether only runs of heads alone have this setting."""
    shared: bool = False
    """For a setting of starts or training: whether all heads of a bank have the same value."""
    earlier: str | float | None = None
    """Its value in records and identities of earlier versions, which lacked it and omit it."""
    decides: bool = False
    """Whether it decides which other settings are read."""
    recorded: bool = True
    """Whether records contain it."""
    identifies: bool = True
    """Whether runs that differ in it alone are different runs."""
    name: str = ""
    """Unique among all settings; for nested settings, it begins with the name of the part."""
    path: tuple[str, ...] = ()
    """Names of the attributes that lead to the value."""
    default: Any = None
    types: tuple[Any, ...] = ()
    """Accepted types, including `NoneType` and lists."""
    words: tuple[str, ...] = ()
    """Accepted words."""

    @property
    def of_top(self) -> Setting:
        """The setting for runs of top blocks."""
        otherwise = self.top_otherwise or self.otherwise
        return replace(self, help=self.top_help or self.help, otherwise=otherwise)

    @property
    def option(self) -> str:
        """The command-line option."""
        return f"--{self.key}"

    @property
    def key(self) -> str:
        """The key in a file: the option without leading dashes."""
        return self.alias or self.name.replace("_", "-")

    @property
    def is_number(self) -> bool:
        """Whether the setting takes numbers."""
        return int in self.types or float in self.types

    @property
    def is_integer(self) -> bool:
        """Whether the setting takes integers only."""
        return int in self.types

    @property
    def items(self) -> Any:
        """The type of the items of its lists; None if its values are no lists."""
        lists = [kind for kind in self.types if get_origin(kind) is tuple]
        return get_args(lists[0])[0] if lists else None

    @property
    def takes(self) -> str:
        """The accepted values, in words."""
        bounds = (("at least", self.least), ("above", self.above))
        named = [f"{word} {bound:,}" for word, bound in bounds if bound is not None]
        named += [f"at most {self.most:,}"] if self.most is not None else []
        kinds = [word for kind, word in _WORDS.items() if kind in self.types]
        words = " or ".join([*kinds, *map(repr, self.words)])
        return f"{words} ({', '.join(named)})" if named else words

    def taken(self, value: Any) -> Any:
        """Convert a value to the type of the field: a list to a tuple, an integer to a float.

        Numbers and arrays of other libraries become Python's.
        """
        value = value.tolist() if hasattr(value, "tolist") else value
        if Imported in self.types and value not in self.words:
            known = isinstance(value, str) or callable(value)
            return Imported.of(value, self.group) if known else value
        if self.joined and isinstance(value, str):
            with suppress(ValueError):
                return tuple(map(float, value.split(",")))
        if value == [] and type(None) in self.types:
            return None
        if isinstance(value, list) and self.items:
            return tuple(float(each) if self.items is float else each for each in value)
        if isinstance(value, int) and not isinstance(value, bool) and float in self.types:
            return float(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value that the field does not take.

        Raises:
            ValueError: If its type is wrong, it is not one of the words, or it is out of range.
        """
        if value is None and type(None) in self.types:
            return
        several = isinstance(value, tuple)
        kinds, values = ((self.items,), value) if several else (self.types, (value,))
        if not values or not all(self._takes(each, kinds) for each in values):
            near = did_you_mean(str(value), self.words, lead=". ")
            raise ValueError(f"{self.name} takes {self.takes}, got {value!r}{near}")

    def _takes(self, value: Any, kinds: tuple[Any, ...]) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            is_path = Path in kinds and isinstance(value, Path)
            return is_path or value in self.words or type(value) in kinds
        if float not in kinds and not (int in kinds and isinstance(value, int)):
            return False
        least = self.least is None or value >= self.least
        most = self.most or (MOST if self.is_integer else sys.float_info.max)
        return least and (self.above is None or value > self.above) and abs(value) <= most


def setting(default: Any, help: str, **rest: Any) -> Any:
    """Return a field of a dataclass that is a setting; `rest` as in `Setting`.

    `MISSING` as default means that the setting must be given.
    """
    return field(default=default, metadata={"setting": Setting(help=help, **rest)})


AnyGroup = TypeVar("AnyGroup")


class SettingGroup:
    """A frozen dataclass of settings, checked when it is made."""

    __slots__ = ()
    panel: ClassVar[str] = "Options"
    """Heading that the help puts its settings under."""

    @classmethod
    def by_name(cls: type[AnyGroup], values: Mapping[str, Any]) -> AnyGroup:
        """Return the settings with these values, by name.

        Raises:
            ValueError: If a name is unknown, or a field does not take its value.
        """
        check_known(values, fields_of(cls))  # type: ignore[arg-type]  # it is hashable
        return cls(**values)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If a field does not take its value.
        """
        for each in fields_of(type(self)).values():  # type: ignore[arg-type]  # it is hashable
            if len(each.path) == 1:  # nested parts have checked their own
                value = getattr(self, name := each.path[0])
                if Imported in each.types:
                    object.__setattr__(self, name, value := each.taken(value))
                each.check(value)


def check_known(names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names of settings that are not known.

    Raises:
        ValueError: If a name is not known.
    """
    for name in names:
        if name not in known:
            near = did_you_mean(name, known, lead=". ")
            raise ValueError(f"there is no setting {name!r}{near}")


@cache
def fields_of(*owners: type) -> Mapping[str, Setting]:
    """Return the settings of dataclasses by name, including nested settings, in their order."""
    found: dict[str, Setting] = {}
    for owner in owners:
        hints = get_type_hints(owner)
        for each in fields(owner):
            hint, name = hints[each.name], each.name
            if isinstance(hint, type) and is_dataclass(hint):
                for inner in fields_of(hint).values():
                    whole = f"{name}_{inner.name}"
                    found[whole] = replace(inner, name=whole, path=(name, *inner.path))
            elif known := each.metadata.get("setting"):
                kinds, words = _alternatives(hint)
                home = next(one for one in owner.__mro__ if each.name in one.__annotations__)
                panel = known.panel or getattr(home, "panel", SettingGroup.panel)
                told = {"name": name, "path": (name,), "default": each.default, "panel": panel}
                found[name] = replace(known, types=kinds, words=words, **told)
    return types.MappingProxyType(found)


def _alternatives(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_alternatives(each) for each in get_args(hint)]
        return sum((kinds for kinds, _ in parts), ()), sum((words for _, words in parts), ())
    if get_origin(hint) is Literal:
        return (), get_args(hint)
    return (hint,), ()
