"""Tables about a repository as SQL table functions: `icefloe_snapshots('s3://…')` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.spark.sql.arrow_types import spark_schema
from icefloe.spark.sql.storage_providers import registered_providers
from icefloe.tables.inspecting import INSPECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

PREFIX = "icefloe_"


def register_functions(spark: SparkSession) -> list[str]:
    """Register a table function for each kind of table about a repository; returns their names.

    They take the URL and, by name, `branch`, `tag`, `snapshot_id` or `as_of`:
    `SELECT * FROM icefloe_snapshots('/data/repository', branch => 'dev')`. A function lives as
    long as the Spark session, and knows the storage providers that were registered before it.
    """
    from pyspark.sql.functions import udtf

    providers = registered_providers()
    names = []
    for what, kind in INSPECTIONS.items():
        handler = _handler(what, providers)
        function: Any = udtf(handler, returnType=spark_schema(kind.schema).simpleString())
        spark.udtf.register(PREFIX + what, function)
        names.append(PREFIX + what)
    return names


def _handler(what: str, providers: Mapping[str, bytes]) -> type:
    class Handler:
        """Yields the rows of one table."""

        def eval(
            self,
            url: str,
            branch: str | None = None,
            tag: str | None = None,
            snapshot_id: str | None = None,
            as_of: str | None = None,
            storage_provider: str | None = None,
        ) -> Iterator[Any]:
            from icefloe.tables.inspecting import inspect
            from icefloe.tables.places import Place, Version, registered

            version = Version(branch, tag, snapshot_id, as_of)
            place = Place(url, registered(storage_provider, providers))
            for batch in inspect(place.open(), version, what):
                maps = {f.name for f in batch.schema if str(f.type).startswith("map")}
                for row in batch.to_pylist():
                    # Arrow gives maps as pairs, Spark takes dictionaries.
                    yield tuple(dict(v or ()) if k in maps else v for k, v in row.items())

    Handler.__name__ = f"Icefloe{what.title().replace('_', '')}"
    return Handler
