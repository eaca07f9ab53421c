"""Metadata tables of a repository: snapshots, refs, nodes, manifests, chunks, files and more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.record import Record
from icefloe.storage.concurrency import each_at_once
from icefloe.tables.job_summary import JobSummary
from icefloe.tables.schema import read_variables
from icefloe.tables.statistics import GROUP as STATISTICS_GROUP
from icefloe.tables.statistics import read_entries
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.engine.info import SnapshotInfo
    from icefloe.repository import Repository
    from icefloe.zarr_store.session_port import SessionPort

    Rows = Iterator[pa.RecordBatch]

_BATCH_ROWS = 50_000
_TIME = pa.timestamp("us", "UTC")
_KINDS = {int(kind): kind.name.lower() for kind in ChunkKind}


class MetadataTable(Record, frozen=True, eq=False):
    """A metadata table: its columns, and how to read it."""

    name: str
    schema: Any
    rows: Any
    """A function of a repository and a selector that yields rows or batches."""


def metadata_table(name: str) -> MetadataTable:
    """The metadata table with a name; raises InvalidInputError."""
    found = METADATA_TABLES.get(name.strip().lower())
    if found is None:
        raise InvalidInputError(f"inspect is one of {', '.join(METADATA_TABLES)}; found {name!r}")
    return found


def read_metadata_table(repository: Repository, selector: SnapshotSelector, name: str) -> Rows:
    """The batches of a metadata table of a repository."""
    kind = metadata_table(name)
    for rows in kind.rows(repository, selector):
        if isinstance(rows, pa.RecordBatch):
            yield rows
        else:
            yield pa.RecordBatch.from_pylist(rows, schema=kind.schema)


# --- history


_SUMMARY_SCHEMA = [
    ("job", pa.string()),
    ("application_id", pa.string()),
    ("application_name", pa.string()),
    ("user", pa.string()),
    ("spark_version", pa.string()),
    ("icefloe_version", pa.string()),
    ("input_snapshots", pa.list_(pa.string())),
    ("files", pa.int64()),
    ("chunks", pa.int64()),
    ("bytes_read", pa.int64()),
    ("bytes_written", pa.int64()),
    ("rows", pa.int64()),
    ("tasks", pa.int64()),
    ("seconds", pa.float64()),
    ("task_seconds", pa.float64()),
]
"""Columns of `snapshots` that are null for commits that no job of Spark made."""


def _snapshot_rows(repository: Repository, infos: list[SnapshotInfo]) -> list[dict[str, Any]]:
    # Where a history lists commits without their manifests, many are read at the same time.
    each_at_once(repository.storage, lambda info: info.manifests, infos)
    return [_snapshot_row(info) for info in infos]


def _snapshot_row(info: SnapshotInfo) -> dict[str, Any]:
    summary = JobSummary.of(info.metadata)
    return {
        **({} if summary is None else msgspec.structs.asdict(summary)),
        "committed_at": info.written_at,
        "snapshot_id": info.id,
        "parent_id": info.parent_id,
        "message": info.message,
        "metadata": list(_texts(info.metadata).items()),
        "manifests": len(info.manifests),
        "manifest_bytes": sum(m.size_bytes for m in info.manifests),
        "chunk_refs": sum(m.num_chunk_refs for m in info.manifests),
    }


def _texts(properties: dict[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in properties.items()}


def _lines(repository: Repository, selector: SnapshotSelector) -> Iterator[SnapshotInfo]:
    yield from repository.ancestry(snapshot_id=selector.session(repository).snapshot_id)


def _snapshots(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The history of the selected snapshot; of all branches and tags if none is selected."""
    if selector != SnapshotSelector():
        yield _snapshot_rows(repository, list(_lines(repository, selector)))
        return
    seen: dict[str, SnapshotInfo] = {}
    for ref in _ref_rows(repository):
        for info in repository.ancestry(snapshot_id=ref["snapshot_id"]):
            if info.id in seen:
                break
            seen[info.id] = info
    ordered = sorted(seen.values(), key=lambda info: info.written_at, reverse=True)
    yield _snapshot_rows(repository, ordered)


def _ref_rows(repository: Repository) -> list[dict[str, Any]]:
    branches = [
        {"name": name, "type": "branch", "snapshot_id": repository.lookup_branch(name)}
        for name in sorted(repository.list_branches())
    ]
    tags = [
        {"name": name, "type": "tag", "snapshot_id": repository.lookup_tag(name)}
        for name in sorted(repository.list_tags())
    ]
    return branches + tags


def _refs(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:  # noqa: ARG001
    yield _ref_rows(repository)


def _history(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The ancestors of the selected snapshot, with their distance."""
    yield [
        {
            "made_current_at": info.written_at,
            "snapshot_id": info.id,
            "parent_id": info.parent_id,
            "steps_back": back,
            "message": info.message,
        }
        for back, info in enumerate(_lines(repository, selector))
    ]


def _transactions(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The changes of each commit, a row for each kind of change of each node."""
    for info in _lines(repository, selector):
        if info.parent_id is None:
            continue
        diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
        rows: list[tuple[str, str, str | None, int | None]] = [
            (kind, path, None, None)
            for kind in (
                *("new_groups", "new_arrays", "updated_groups", "updated_arrays"),
                *("deleted_groups", "deleted_arrays"),
            )
            for path in sorted(getattr(diff, kind))
        ]
        rows += [("moved_nodes", old, new, None) for old, new in diff.moved_nodes]
        rows += [
            ("updated_chunks", path, None, len(index.coords()))
            for path, index in diff.chunk_indexes().items()
        ]
        yield [
            {
                "committed_at": info.written_at,
                "snapshot_id": info.id,
                "change": kind.removesuffix("s"),
                "path": path,
                "new_path": target,
                "chunks": chunks,
            }
            for kind, path, target, chunks in rows
        ]


# --- one snapshot


def _nodes(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    session = selector.session(repository)
    yield [_node_row(session, path) for path in ("/", *session.tree.node_paths("/"))]


def _node_row(session: SessionPort, path: str) -> dict[str, Any]:
    node = session.get_node(path)
    if node is None:
        return {"path": path}
    document = parsed_document(session.tree, path)
    row: dict[str, Any] = {
        "path": path,
        "node_id": str(node.id),
        "type": "array" if node.is_array else "group",
        "attributes": json.dumps(document.get("attributes") or {}),
    }
    if node.is_array:
        row |= {
            "shape": list(node.array.shape),
            "chunk_shape": None if node.array.chunk_shape is None else list(node.array.chunk_shape),
            "dimension_names": list(node.array.dimension_names or []) or None,
            "data_type": node.array.data_type,
            "chunks": node.num_refs,
            "grid_chunks": node.array.num_chunks,
            "manifests": len(node.manifests),
        }
    return row


def _manifests(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    session = selector.session(repository)
    used: dict[str, list[str]] = {}
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        for ref in () if node is None else node.manifests:
            used.setdefault(str(ref.manifest_id), []).append(path)
    yield [
        {
            "manifest_id": info.id,
            "size_bytes": info.size_bytes,
            "chunk_refs": info.num_chunk_refs,
            "arrays": used.get(info.id, []),
        }
        for info in repository.list_manifest_files(session.snapshot_id)
    ]


def _array_paths(session: SessionPort) -> Iterator[str]:
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        if node is not None and node.is_array:
            yield path


def _chunks(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    session = selector.session(repository)
    for path in _array_paths(session):
        for batch in session.chunk_batches(path, _BATCH_ROWS):
            count = len(batch.kinds)
            coords = np.ascontiguousarray(batch.coords, dtype=np.int64)
            offsets = np.arange(count + 1, dtype=np.int32) * coords.shape[1]
            kinds = pa.array([_KINDS[kind] for kind in batch.kinds.tolist()], pa.string())
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([path], pa.string()).take(pa.array(np.zeros(count, np.int32))),
                    pa.ListArray.from_arrays(pa.array(offsets), pa.array(coords.reshape(-1))),
                    kinds,
                    pa.array([p or None for p in batch.paths], pa.string()),
                    pa.array(batch.offsets.astype(np.int64)),
                    pa.array(batch.lengths.astype(np.int64)),
                ],
                schema=_CHUNK_SCHEMA,
            )


def _summed(repository: Repository, selector: SnapshotSelector, kind: str) -> dict[str, list[Any]]:
    """Chunks and bytes by the object that holds them."""
    files: dict[str, list[Any]] = {}
    for batch in _chunks(repository, selector):
        path = batch.column("path")[0].as_py() if batch.num_rows else ""
        rows = zip(
            batch.column("kind").to_pylist(),
            batch.column("location").to_pylist(),
            batch.column("length").to_pylist(),
            strict=True,
        )
        for found, location, length in rows:
            if found == kind and location is not None:
                entry = files.setdefault(location, [0, 0, set()])
                entry[0] += 1
                entry[1] += length
                entry[2].add(path)
    return files


def _files(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The chunk files and metadata files of the repository that a snapshot uses."""
    session = selector.session(repository)
    rows = [
        {"file_id": session.snapshot_id, "kind": "snapshot", "bytes": None, "chunks": None},
        *(
            {
                "file_id": info.id,
                "kind": "manifest",
                "bytes": info.size_bytes,
                "chunks": info.num_chunk_refs,
            }
            for info in repository.list_manifest_files(session.snapshot_id)
        ),
        *(
            {
                "file_id": name,
                "kind": "chunks",
                "bytes": size,
                "chunks": count,
                "arrays": sorted(arrays),
            }
            for name, (count, size, arrays) in _summed(repository, selector, "native").items()
        ),
    ]
    yield rows


def _virtual_sources(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The objects outside of the repository that a snapshot refers to."""
    yield [
        {"location": location, "chunks": count, "bytes": size, "arrays": sorted(arrays)}
        for location, (count, size, arrays) in sorted(
            _summed(repository, selector, "virtual").items()
        )
    ]


def _statistics(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """Chunk statistics, and whether they are up to date."""
    session = selector.session(repository)
    for path in _array_paths(session):
        if path.startswith(STATISTICS_GROUP):
            continue
        name = path.rpartition("/")[2]
        variable = read_variables(session, path.rpartition("/")[0] or "/")[name]
        found = read_entries(session, variable)
        if found is None:
            continue
        numbers, current = found
        places = np.argwhere((numbers != 0).any(axis=-1) | current)
        yield [
            {
                "path": path,
                "coordinates": place,
                "low": _number(low),
                "high": _number(high),
                "missing": int(missing),
                "is_current": bool(current[tuple(place)]),
            }
            for place, (low, high, missing) in zip(
                places.tolist(), numbers[tuple(places.T)].tolist(), strict=True
            )
        ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _ingested_files(repository: Repository, selector: SnapshotSelector) -> Iterator[Any]:
    """The files that were ingested, one row for each time."""
    from icefloe.ingest.log import ingested_files

    columns = ingested_files(selector.session(repository))
    columns["region"] = [json.dumps(region) for region in columns["region"]]
    columns["variables"] = [list(names) for names in columns["variables"]]
    names = _INGESTED_SCHEMA.names
    yield from pa.table({n: columns[n] for n in names}, schema=_INGESTED_SCHEMA).to_batches()


_INGESTED_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("url", pa.string()),
        ("format", pa.string()),
        ("mode", pa.string()),
        ("state", pa.string()),
        ("ingested_at", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.int64()),
        ("variables", pa.list_(pa.string())),
        ("region", pa.string()),
        ("error", pa.string()),
        ("is_current", pa.bool_()),
    ]
)

_CHUNK_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("coordinates", pa.list_(pa.int64())),
        ("kind", pa.string()),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
    ]
)

_ALL: list[tuple[str, Callable[[Repository, SnapshotSelector], Iterator[Any]], pa.Schema]] = [
    (
        "snapshots",
        _snapshots,
        pa.schema(
            [
                ("committed_at", _TIME),
                ("snapshot_id", pa.string()),
                ("parent_id", pa.string()),
                ("message", pa.string()),
                ("metadata", pa.map_(pa.string(), pa.string())),
                ("manifests", pa.int32()),
                ("manifest_bytes", pa.int64()),
                ("chunk_refs", pa.int64()),
                *_SUMMARY_SCHEMA,
            ]
        ),
    ),
    (
        "refs",
        _refs,
        pa.schema([("name", pa.string()), ("type", pa.string()), ("snapshot_id", pa.string())]),
    ),
    (
        "history",
        _history,
        pa.schema(
            [
                ("made_current_at", _TIME),
                ("snapshot_id", pa.string()),
                ("parent_id", pa.string()),
                ("steps_back", pa.int32()),
                ("message", pa.string()),
            ]
        ),
    ),
    (
        "nodes",
        _nodes,
        pa.schema(
            [
                ("path", pa.string()),
                ("node_id", pa.string()),
                ("type", pa.string()),
                ("shape", pa.list_(pa.int64())),
                ("chunk_shape", pa.list_(pa.int64())),
                ("dimension_names", pa.list_(pa.string())),
                ("data_type", pa.string()),
                ("chunks", pa.int64()),
                ("grid_chunks", pa.int64()),
                ("manifests", pa.int32()),
                ("attributes", pa.string()),
            ]
        ),
    ),
    (
        "manifests",
        _manifests,
        pa.schema(
            [
                ("manifest_id", pa.string()),
                ("size_bytes", pa.int64()),
                ("chunk_refs", pa.int64()),
                ("arrays", pa.list_(pa.string())),
            ]
        ),
    ),
    ("chunks", _chunks, _CHUNK_SCHEMA),
    (
        "files",
        _files,
        pa.schema(
            [
                ("file_id", pa.string()),
                ("kind", pa.string()),
                ("bytes", pa.int64()),
                ("chunks", pa.int64()),
                ("arrays", pa.list_(pa.string())),
            ]
        ),
    ),
    (
        "transactions",
        _transactions,
        pa.schema(
            [
                ("committed_at", _TIME),
                ("snapshot_id", pa.string()),
                ("change", pa.string()),
                ("path", pa.string()),
                ("new_path", pa.string()),
                ("chunks", pa.int64()),
            ]
        ),
    ),
    (
        "virtual_sources",
        _virtual_sources,
        pa.schema(
            [
                ("location", pa.string()),
                ("chunks", pa.int64()),
                ("bytes", pa.int64()),
                ("arrays", pa.list_(pa.string())),
            ]
        ),
    ),
]

_ALL.append(("ingested_files", _ingested_files, _INGESTED_SCHEMA))
_ALL.append(
    (
        "statistics",
        _statistics,
        pa.schema(
            [
                ("path", pa.string()),
                ("coordinates", pa.list_(pa.int64())),
                ("low", pa.float64()),
                ("high", pa.float64()),
                ("missing", pa.int64()),
                ("is_current", pa.bool_()),
            ]
        ),
    )
)

METADATA_TABLES: dict[str, MetadataTable] = {
    name: MetadataTable(name, schema, rows) for name, rows, schema in _ALL
}
