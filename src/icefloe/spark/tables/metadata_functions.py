"""Metadata tables as SQL table functions: `icefloe_snapshots('s3://…')` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.spark.tables.arrow_types import spark_schema
from icefloe.spark.tables.storage_providers import registered_providers
from icefloe.tables.metadata_tables import METADATA_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

PREFIX = "icefloe_"


def register_functions(spark: SparkSession) -> list[str]:
    """Register an SQL table function for each metadata table of a repository.

    The functions are `icefloe_snapshots`, `icefloe_refs`, `icefloe_history`, `icefloe_nodes`,
    `icefloe_manifests`, `icefloe_chunks`, `icefloe_files`, `icefloe_transactions`,
    `icefloe_virtual_sources`, `icefloe_ingested_files` and `icefloe_statistics`. They take the URL
    of a repository and, by name, `branch`, `tag`, `snapshot_id`, `as_of` or `storage_provider`.

    Args:
        spark: The session, classic or Connect. The functions last as long as it does, and know
            the storage providers that were registered before.

    Returns:
        The names of the functions.

    Example:
        >>> icefloe.spark.register_functions(spark)[:2]
        ['icefloe_snapshots', 'icefloe_refs']
        >>> query = f"SELECT message FROM icefloe_snapshots('{url}', branch => 'main')"
        >>> [row.message for row in spark.sql(query).collect()]
        ['weather', 'Repository initialized']
    """
    from pyspark.sql.functions import udtf

    providers = registered_providers()
    names = []
    for name, table in METADATA_TABLES.items():
        handler = _handler(name, providers)
        function: Any = udtf(handler, returnType=spark_schema(table.schema).simpleString())
        spark.udtf.register(PREFIX + name, function)
        names.append(PREFIX + name)
    return names


def _handler(name: str, providers: Mapping[str, bytes]) -> type:
    class Handler:
        """Yields the rows of a metadata table."""

        def eval(
            self,
            url: str,
            branch: str | None = None,
            tag: str | None = None,
            snapshot_id: str | None = None,
            as_of: str | None = None,
            storage_provider: str | None = None,
        ) -> Iterator[Any]:
            from icefloe.spark.tables.tickets import MetadataTicket, RepositoryLocation, registered
            from icefloe.tables.versions import SnapshotSelector

            selector = SnapshotSelector(
                branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of
            )
            location = RepositoryLocation(url, registered(storage_provider, providers))
            for batch in MetadataTicket(location, selector, name).read():
                maps = {f.name for f in batch.schema if str(f.type).startswith("map")}
                for row in batch.to_pylist():
                    # Arrow gives maps as pairs, Spark takes dictionaries.
                    yield tuple(dict(v or ()) if k in maps else v for k, v in row.items())

    Handler.__name__ = f"Icefloe{name.title().replace('_', '')}"
    return Handler
