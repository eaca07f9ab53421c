"""Procedures that CALL runs: maintenance and history, through the functions of the repository."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.moments import parse_moment
from icefloe.spark.jobs import maintenance
from icefloe.spark.jobs.statistics import compute_statistics as statistics_job
from icefloe.spark.statements.catalog import (
    check_location,
    moment_text,
    refresh,
    selector_of_version,
    written_branch,
)
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from icefloe.spark.statements.catalog import NamedTable
    from icefloe.spark.statements.parsing import Call
    from icefloe.spark.statements.queries import Statements

    Row = dict[str, Any]


def call(statements: Statements, call: Call) -> DataFrame:
    """Run a procedure; its result is a DataFrame."""
    function = PROCEDURES.get(call.procedure)
    if function is None:
        raise InvalidInputError(
            f"there is no procedure {call.procedure!r}; there are {', '.join(PROCEDURES)}"
        )
    arguments = _arguments(call, function)
    text = arguments.pop("table")
    if not isinstance(text, str):
        raise InvalidInputError(f"table is the name of a table in quotes, found {text!r}")
    named = statements.named(_parts(text))
    if named is None:
        raise InvalidInputError(
            f"there is no table {text!r}; give it a name with icefloe.spark.register"
        )
    result: DataFrame | tuple[str, Any] = function(_Call(statements, named), **arguments)
    refresh(statements.spark, named.table.repository)
    if not isinstance(result, tuple):
        return result
    schema, values = result
    return statements.spark.createDataFrame(values, schema)


def _parts(text: str) -> tuple[str, ...]:
    if "://" in text or text.startswith(("/", "`")):
        return (text.strip("`"),)
    return tuple(part.strip("`") for part in text.split("."))


def _arguments(call: Call, function: Callable[..., Any]) -> Row:
    """The arguments of a procedure by name, all of them known and of the types that it takes."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = ["table", *(p.name for p in parameters)]
    needed = {"table", *(p.name for p in parameters if p.default is inspect.Parameter.empty)}
    arguments = dict(zip(names, call.positional, strict=False)) | call.named
    wrong = _wrong_arguments(call, names, needed - set(arguments))
    if wrong is not None:
        listed = ", ".join(name if name in needed else f"[{name}]" for name in names)
        raise InvalidInputError(f"{call.procedure} takes ({listed}); {wrong}")
    for parameter in parameters:
        if parameter.name in arguments:
            _check_type(call, parameter, arguments[parameter.name])
    return arguments


def _wrong_arguments(call: Call, names: Sequence[str], missing: Collection[str]) -> str | None:
    unknown = [name for name in call.named if name not in names]
    if unknown:
        return f"unknown is {unknown[0]!r}"
    twice = [name for name in names[: len(call.positional)] if name in call.named]
    if twice:
        return f"{twice[0]!r} is given twice"
    if len(call.positional) > len(names):
        return f"found {len(call.positional)} arguments"
    return f"missing is {', '.join(sorted(missing))}" if missing else None


_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "a text or a time in quotes"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
}
"""The types of arguments by their annotations, and how SQL writes them."""


def _check_type(call: Call, parameter: inspect.Parameter, value: Any) -> None:
    kinds = str(parameter.annotation).split(" | ")
    if value is None and "None" in kinds:
        return
    if type(value) not in {_KINDS[kind][0] for kind in kinds if kind in _KINDS}:
        raise InvalidInputError(
            f"{parameter.name} of {call.procedure} is {_KINDS[kinds[0]][1]}, found "
            f"{shortened(repr(value))}"
        )


class _Call:
    """What a procedure works on."""

    def __init__(self, statements: Statements, named: NamedTable) -> None:
        self.spark = statements.spark
        self.zone = statements.zone
        self.locations = statements.locations
        self.repository = named.table.repository
        self.group = named.table.choice.request.group
        self.named = named

    @property
    def branch(self) -> str:
        """The branch that it changes: never another one than that of the table."""
        return written_branch(self.named)

    @property
    def snapshot_id(self) -> str:
        """The version that it reads."""
        return str(self.named.selector.session(self.repository).snapshot_id)

    def moment(self, text: Any) -> datetime:
        return parse_moment(moment_text(str(text), self.zone))

    def move(self, snapshot_id: str) -> Any:
        """Reset the branch, and tell from where to where."""
        before = self.repository.lookup_branch(self.branch)
        self.repository.reset_branch(self.branch, snapshot_id, from_snapshot_id=before)
        return (
            "previous_snapshot_id string, current_snapshot_id string",
            [(before, snapshot_id)],
        )


# --- history


def _rollback_to_snapshot(call: _Call, snapshot_id: str) -> Any:
    known = {info.id for info in call.repository.ancestry(branch=call.branch)}
    if snapshot_id not in known:
        raise InvalidInputError(
            f"{snapshot_id!r} is no ancestor of the branch {call.branch!r}; set_current_snapshot "
            "takes any snapshot"
        )
    return call.move(snapshot_id)


def _rollback_to_timestamp(call: _Call, timestamp: str | int) -> Any:
    moment = call.moment(timestamp).isoformat()
    session = SnapshotSelector(branch=call.branch, as_of=moment).session(call.repository)
    return call.move(session.snapshot_id)


def _set_current_snapshot(
    call: _Call, snapshot_id: str | None = None, ref: str | None = None
) -> Any:
    if (snapshot_id is None) == (ref is None):
        raise InvalidInputError("set_current_snapshot takes snapshot_id or ref, one of them")
    selector = SnapshotSelector(snapshot_id=snapshot_id)
    if ref is not None:
        selector = selector_of_version(call.repository, ref)
    return call.move(selector.session(call.repository).snapshot_id)


def _cherrypick_snapshot(call: _Call, snapshot_id: str) -> Any:
    done = call.repository.cherry_pick(snapshot_id, branch=call.branch)
    return "source_snapshot_id string, current_snapshot_id string", [(snapshot_id, done)]


def _fast_forward(call: _Call, branch: str, to: str) -> Any:
    before = call.repository.lookup_branch(branch)
    after = call.repository.publish(to, branch)
    schema = "branch_updated string, previous_ref string, updated_ref string"
    return schema, [(branch, before, after)]


def _ancestors_of(call: _Call, snapshot_id: str | None = None) -> Any:
    start = snapshot_id or call.snapshot_id
    rows = [(info.id, info.written_at) for info in call.repository.ancestry(snapshot_id=start)]
    return "snapshot_id string, timestamp timestamp", rows


# --- maintenance


def _expire_snapshots(
    call: _Call,
    older_than: str | int | None = None,
    retain_last: int | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002 (arguments of SQL)
) -> Any:
    return maintenance.expire_snapshots(
        call.spark,
        call.repository,
        None if older_than is None else call.moment(older_than),
        keep_last=retain_last,
        dry_run=dry_run,
        job="CALL expire_snapshots",
    )


def _remove_orphan_files(
    call: _Call,
    older_than: str | int | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    age = maintenance.ORPHAN_AGE if older_than is None else call.moment(older_than)
    return maintenance.remove_orphan_files(
        call.spark, call.repository, age, dry_run=dry_run, job="CALL remove_orphan_files"
    )


def _rewrite_manifests(call: _Call, message: str = "CALL rewrite_manifests") -> Any:
    return maintenance.rewrite_manifests(call.spark, call.repository, message, branch=call.branch)


def _rewrite_data_files(
    call: _Call,
    arrays: str | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002
    pack_bytes: int | None = None,
) -> Any:
    return maintenance.rewrite_data_files(
        call.spark,
        call.repository,
        "CALL rewrite_data_files",
        branch=call.branch,
        arrays=arrays,
        pack_bytes=pack_bytes,
        dry_run=dry_run,
        job="CALL rewrite_data_files",
    )


def _materialize(
    call: _Call,
    arrays: str | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    return maintenance.materialize(
        call.spark, call.repository, call.branch, arrays=arrays, dry_run=dry_run
    )


def _check_virtual_sources(call: _Call, arrays: str | None = None) -> Any:
    return maintenance.check_virtual_sources(
        call.spark, call.repository, snapshot_id=call.snapshot_id, arrays=arrays
    )


def _verify(call: _Call, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
    return maintenance.verify(call.spark, call.repository, deep=deep)


def _compute_statistics(call: _Call, dry_run: bool = False) -> Any:  # noqa: FBT001, FBT002
    report = statistics_job(
        call.spark, call.repository, group=call.group, branch=call.branch, dry_run=dry_run
    )
    return "snapshot_id string, chunks bigint", [(report.snapshot_id, report.plan.chunks)]


def _migrate(
    call: _Call,
    location: str,
    generation: str,
    spec_version: int | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    check_location(location, call.locations)
    return maintenance.migrate(
        call.spark,
        call.repository,
        location,
        generation=generation,
        spec_version=spec_version,
        dry_run=dry_run,
    )


PROCEDURES: dict[str, Callable[..., Any]] = {
    "rollback_to_snapshot": _rollback_to_snapshot,
    "rollback_to_timestamp": _rollback_to_timestamp,
    "set_current_snapshot": _set_current_snapshot,
    "cherrypick_snapshot": _cherrypick_snapshot,
    "fast_forward": _fast_forward,
    "ancestors_of": _ancestors_of,
    "expire_snapshots": _expire_snapshots,
    "remove_orphan_files": _remove_orphan_files,
    "rewrite_manifests": _rewrite_manifests,
    "rewrite_data_files": _rewrite_data_files,
    "materialize": _materialize,
    "check_virtual_sources": _check_virtual_sources,
    "verify": _verify,
    "compute_statistics": _compute_statistics,
    "migrate": _migrate,
}
"""The procedures of `icefloe.system` by name. Text of SQL only chooses among them."""
