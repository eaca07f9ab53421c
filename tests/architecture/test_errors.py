"""Every error survives the journey between processes, and the tree is as documented."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import errors
from icefloe.cli import command
from icefloe.errors import ErrorKind, IcefloeError

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_error_classes() -> list[type[IcefloeError]]:
    """Every subclass that exists once every module of the package has been imported."""
    for module in pkgutil.walk_packages(icefloe.__path__, "icefloe."):
        importlib.import_module(module.name)

    def below(cls: type[IcefloeError]) -> Iterator[type[IcefloeError]]:
        yield cls
        for subclass in cls.__subclasses__():
            yield from below(subclass)

    found = {cls for cls in below(IcefloeError) if cls.__module__.startswith("icefloe")}
    return sorted(found, key=lambda cls: cls.__name__)


ERRORS = all_error_classes()


def example(cls: type[IcefloeError]) -> IcefloeError:
    """An instance with a distinct value for every argument."""
    names = list(inspect.signature(cls).parameters)
    parameters = inspect.signature(cls).parameters.values()
    values = [
        [f"{name} 1", f"{name} 2"] if name == "conflicts" else f"the {name}"
        for name, parameter in zip(names, parameters, strict=True)
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return cls(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_error_survives_pickling_with_all_its_fields(
    cls: type[IcefloeError], protocol: int
) -> None:
    error = example(cls)
    arrived = pickle.loads(pickle.dumps(error, protocol=protocol))
    assert type(arrived) is cls
    assert str(arrived) == str(error) == "the message"
    assert vars(arrived) == vars(error)
    assert vars(copy.deepcopy(error)) == vars(error)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_error_lives_in_the_errors_module_and_is_public(cls: type[IcefloeError]) -> None:
    assert cls.__module__ == "icefloe.errors"
    assert getattr(icefloe, cls.__name__) is cls
    assert cls.__name__ in icefloe.__all__


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_error_is_drawn_in_the_tree(cls: type[IcefloeError]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__


def test_each_error_has_a_kind_of_its_own() -> None:
    kinds = [cls.kind for cls in ERRORS]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == set(ErrorKind)


def test_errors_can_be_caught_as_the_builtin_that_callers_expect() -> None:
    assert issubclass(errors.NotFoundError, KeyError)
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.RebaseFailedError, errors.ConflictError)


def test_the_library_still_gives_the_advice_that_commands_reword() -> None:
    package = Path(icefloe.__path__[0])
    texts = "".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if not path.is_relative_to(package / "cli")
    )
    for advice in (*command._OF_PYTHON, "there is a tag of that name: pass tag="):
        assert advice in texts
