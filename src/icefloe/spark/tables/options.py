"""The options of the data source `icefloe`: text by name, parsed strictly."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import json_value, shortened, whole_number
from icefloe.spark.tables.tickets import RepositoryLocation, registered, url_with
from icefloe.tables.decoding import Reading
from icefloe.tables.table_plan import DEFAULT_BATCH_ROWS, LAYOUTS, ScanRequest
from icefloe.tables.target_arrays import WriteRequest
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALIASES = {
    "snapshot": "snapshot-id",
    "versionasof": "snapshot-id",
    "timestampasof": "as-of-timestamp",
    "txn-app-id": "txnappid",
    "txn-version": "txnversion",
}
# Names of settings of storages: theirs by ours.
_STORAGE = {
    "endpoint": "endpoint_url",
    "region": "region",
    "anonymous": "anonymous",
    "allow-http": "allow_http",
    "force-path-style": "force_path_style",
}
_PLACE = {"path", "storage-provider", "authorize-virtual", *_STORAGE}
_VERSION = {"branch", "tag", "snapshot-id", "as-of-timestamp"}
_READ = {
    *("group", "variables", "dims", "columns", "sel", "isel", "where", "layout", "inner-dims"),
    *("partition-bytes", "batch-rows", "decode", "nan", "timestamps", "statistics"),
    *("start-snapshot-id", "end-snapshot-id", "inspect", "change-data"),
}
_STREAM = {
    *("starting-snapshot-id", "max-commits-per-trigger", "checkpointlocation"),
    *("stream-from-timestamp",),
}
_WRITE = {
    *("group", "dims", "variables", "branch", "message", "operation", "append-dim", "region"),
    *("chunks", "shards", "encoding", "fill", "attributes", "coordinates", "txnappid"),
    *("txnversion", "commit-tries", "statistics", "checkpointlocation", "max-staged-bytes"),
}
PROPERTY_PREFIX = "snapshot-property."


class SourceOptions:
    """The options of a reader, writer or stream, as Spark passes them."""

    def __init__(
        self, options: Mapping[str, str], providers: Mapping[str, bytes] | None = None
    ) -> None:
        """Take the options, and the storage providers that they may name; checks nothing yet."""
        self._providers = providers or {}
        self._options = {}
        for key, value in options.items():
            name = key.lower()
            if not name.startswith(PROPERTY_PREFIX):
                name = name.replace("_", "-")
            self._options[_ALIASES.get(name, name)] = value

    def check(self, *, writing: bool = False) -> None:
        """Raise for unknown options, so that a typo does not scan the whole table silently."""
        known = _PLACE | (_WRITE if writing else _VERSION | _READ | _STREAM)
        for name in self._options:
            if name in known or (writing and name.startswith(PROPERTY_PREFIX)):
                continue
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"; did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}"
            raise InvalidInputError(f"unknown option {name!r} of format icefloe{advice}")

    def text(self, name: str) -> str | None:
        """The text of an option; None if it is missing or empty."""
        value = self._options.get(name)
        return value.strip() or None if isinstance(value, str) else value

    def properties(self) -> dict[str, Any]:
        """Properties for the snapshot to write; JSON numbers, lists and objects stay such."""
        return {
            name[len(PROPERTY_PREFIX) :]: _plain(value)
            for name, value in self._options.items()
            if name.startswith(PROPERTY_PREFIX)
        }

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list of names: JSON, or separated by commas."""
        text = self.text(name)
        if text is None:
            return None
        if text.startswith("["):
            names = self.json(name)
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                raise InvalidInputError(
                    f"option {name!r} is a list of names, found {shortened(text)!r}"
                )
            return tuple(names)
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def json(self, name: str) -> Any:
        """A value in JSON."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return json_value(text)
        except ValueError as error:
            raise InvalidInputError(
                f"option {name!r} is JSON, found {shortened(text)!r}: {error}"
            ) from None

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object; empty if the option is missing."""
        value = self.json(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise InvalidInputError(
                f'option {name!r} is a JSON object such as {{"lat": 50}}, found {value!r}'
            )
        return value

    def number(self, name: str) -> int | None:
        """A whole number above zero."""
        text = self.text(name)
        if text is None:
            return None
        number = whole_number(text)
        if number is None or number < 1:
            raise InvalidInputError(
                f"option {name!r} is a whole number above 0, found {shortened(text)!r}"
            )
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise InvalidInputError(f"option {name!r} is true or false, found {text!r}")
        return text.lower() == "true"

    def one_of(self, name: str, *choices: str) -> str:
        """One of some words, the first by default."""
        text = (self.text(name) or choices[0]).lower()
        if text not in choices:
            raise InvalidInputError(f"option {name!r} is one of {choices}, found {text!r}")
        return text

    # --- several options as one value

    def location(self) -> RepositoryLocation:
        """Where the repository is."""
        path = self.text("path")
        if path is None:
            raise InvalidInputError(
                "give the URL of a repository: load(url) or option('path', url); plain spark.sql "
                "loses the options of CREATE TABLE … USING icefloe: use icefloe.spark.sql for it"
            )
        settings = {
            theirs: value
            for ours, theirs in _STORAGE.items()
            if (value := self.text(ours)) is not None
        }
        virtual = self.names("authorize-virtual") or ()
        provider = registered(self.text("storage-provider"), self._providers)
        return RepositoryLocation(url_with(path, settings), provider, virtual)

    def selector(self) -> SnapshotSelector:
        """Which snapshot to read."""
        return SnapshotSelector(
            branch=self.text("branch"),
            tag=self.text("tag"),
            snapshot_id=self.text("snapshot-id"),
            as_of=self.text("as-of-timestamp"),
        )

    def scan_request(self) -> ScanRequest:
        """Which cells to read, and in which layout."""
        return ScanRequest(
            group=self.text("group") or "/",
            variables=self.names("variables"),
            dims=self.names("dims"),
            columns=self.names("columns"),
            sel=self.mapping("sel"),
            isel=self.mapping("isel"),
            where=self.text("where"),
            layout=self.one_of("layout", *LAYOUTS),  # type: ignore[arg-type]
            inner_dims=self.number("inner-dims"),
            changed_since=self.text("start-snapshot-id"),
            task_bytes=self.number("partition-bytes"),
            batch_rows=self.number("batch-rows") or DEFAULT_BATCH_ROWS,
            reading=Reading(
                decode=self.flag("decode", default=True),
                nan_is_null=self.one_of("nan", "null", "keep") == "null",
                zoned_times=self.one_of("timestamps", "ntz", "utc") == "utc",
            ),
            use_statistics=self.flag("statistics", default=True),
        )

    def write_request(self, *, overwrite: bool) -> WriteRequest:
        """How to write rows."""
        operation: Any = self.text("operation")
        if operation is None and overwrite:
            operation = "replace"
        encoding = self.mapping("encoding")
        for name, settings in encoding.items():
            if not isinstance(settings, dict):
                raise InvalidInputError(
                    'option "encoding" is a JSON object such as {"column": {"dtype": "f4"}}, found '
                    f"{settings!r} for {name!r}"
                )
        for name, fill in self.mapping("fill").items():
            encoding[name] = {**encoding.get(name, {}), "_FillValue": fill}
        return WriteRequest(
            group=self.text("group") or "/",
            dims=self.names("dims"),
            operation=operation,
            append_dim=self.text("append-dim"),
            region=self.mapping("region"),
            chunks=self.mapping("chunks"),
            encoding=encoding,
            attributes=self.mapping("attributes"),
            coordinates=self.mapping("coordinates"),
            statistics=self.flag("statistics", default=False),
        )

    def transaction(self) -> tuple[str | None, int | None]:
        """The application and version that name a transaction."""
        app, version = self.text("txnappid"), self.text("txnversion")
        if (app is None) != (version is None):
            raise InvalidInputError("give both txnAppId and txnVersion, or neither")
        number = None if version is None else whole_number(version)
        if version is not None and number is None:
            raise InvalidInputError(
                f"txnVersion is a whole number of 64 bits, found {shortened(version)!r}"
            )
        return app, number


def _plain(text: str) -> Any:
    try:
        found = json_value(text)
    except ValueError:
        return text
    return found if isinstance(found, dict | list | int | float | bool) else text
