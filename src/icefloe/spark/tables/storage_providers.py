"""Functions that open storages, registered by name in the driver's own Python.

SQL text, options and configurations choose among the registered names. They never name code: no
text becomes an import or the call of a function that the driver did not register.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.spark.engine.runner import pickled_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.storage.port import Storage

    Provider = Callable[[str], Storage | Repository]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_registered: dict[str, bytes] = {}


def register_storage_provider(spark: SparkSession, name: str, provider: Provider) -> None:
    """Let `option("storage-provider", name)` and SQL open repositories through a function.

    The function is sent to executors with the data source, like a user-defined function, and every
    process that opens a repository calls it with the URL. It returns a storage or a repository.
    Registering a name again replaces its function, for queries that are planned later.

    Args:
        spark: The session, classic or Connect. The name is valid for tables, streams and writes of
            this session, and for the functions of `register_functions` if that is called
            afterwards.
        name: The value of the option: letters, digits, `.`, `_` and `-`.
        provider: The function. It should look up credentials where it runs instead of containing
            them, because it is pickled.
    """
    from icefloe.spark.tables.datasource import source_with

    _check(name, provider)
    (_registered[name],) = pickled_values([provider])
    spark.dataSource.register(source_with(registered_providers()))


def registered_providers() -> dict[str, bytes]:
    """The pickled functions of this process, by name."""
    return dict(_registered)


def _check(name: object, provider: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            "the name of a storage provider consists of letters, digits, '.', '_' and '-', "
            f"found {name!r}"
        )
    if not callable(provider):
        raise InvalidTypeError(
            f"a storage provider is a function that takes a URL, found {type(provider).__name__}"
        )
