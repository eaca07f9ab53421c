"""Whatever a text from outside is, what reads it returns, or raises an error of ours."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

import icefloe
from icefloe.cf.calendars import CALENDARS, parse_units
from icefloe.config import from_json, from_yaml
from icefloe.config.locations import parse_location
from icefloe.errors import IcefloeError
from icefloe.model.ids import SnapshotId
from icefloe.model.moments import parse_age, parse_moment
from icefloe.model.paths import canonical
from icefloe.spark.tables.options import SourceOptions
from icefloe.storage.access.url import storage_from_url
from icefloe.tables.indexing import time_period
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from icefloe.tables.versions import SnapshotSelector, parse_timestamp
from icefloe.tables.where import parse_condition

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = ("time", "x", "name", "v", "n", "flag")
PIECES = [
    *("(", ")", "[", "]", "{", "}", ",", ":", "'", '"', "`", "=", "<", ">=", "<>", "~", "^", "@{"),
    *(" ", "\n", "\0", "\ud800", "\\", "/", "//", "..", ".", "-", "+", "%", "%00", "%ff", "?", "#"),
    *("not ", " and ", " or ", " in (", " between ", " is null", "true", "null", "NaN", "Infinity"),
    *("9", "0", "²", "٣", "e", "1e999", "-0.0", "0x", "main", "v", "x", "time", "name", "flag"),
    *("2020", "-01", "-99", "T", "99:99", "+23:59", "Z", "0001-01-01", "9999-12-31", "days since "),
    *("s3://", "http://", "file:///", "memory://", "az://", "[::1", "user:secret@", ":99999"),
    *("- ", "? ", "&a ", "*a", "!x ", '{"a":', "'2020-01'", "1.5", "a: "),
]
REPEATS = st.sampled_from([1, 1, 1, 1, 2, 3, 20, 500, 5000])
TEXTS = st.lists(
    st.tuples(st.sampled_from(PIECES) | st.text(max_size=3), REPEATS), min_size=1, max_size=8
).map(lambda parts: "".join(piece * count for piece, count in parts))


def option(text: str) -> SourceOptions:
    return SourceOptions({"a": text})


def repository() -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.in_memory_storage())


def written(text: str) -> Any:
    names = ("region", "chunks", "encoding", "fill", "attributes", "coordinates")
    return [SourceOptions({name: text}).write_request(overwrite=False) for name in names]


PARSERS: dict[str, Callable[[str], Any]] = {
    "condition": lambda text: parse_condition(text, COLUMNS),
    "number": lambda text: option(text).number("a"),
    "json": lambda text: option(text).json("a"),
    "names": lambda text: option(text).names("a"),
    "mapping": lambda text: option(text).mapping("a"),
    "flag": lambda text: option(text).flag("a", default=True),
    "name of an option": lambda text: SourceOptions({text: "1"}).check(),
    "place": lambda text: SourceOptions({"path": f"s3://b/{text}", "region": text}).location(),
    "transaction": lambda text: SourceOptions({"txnappid": "a", "txnversion": text}).transaction(),
    "properties": lambda text: SourceOptions({"snapshot-property.a": text}).properties(),
    "options of a write": written,
    "moment or milliseconds": parse_timestamp,
    "moment": parse_moment,
    "age": parse_age,
    "period": lambda text: time_period("time", text),
    "units": lambda text: [parse_units(text, calendar) for calendar in sorted(CALENDARS)],
    "URL": storage_from_url,
    "endpoint": lambda text: icefloe.s3_storage(
        bucket=text, prefix="a", endpoint_url=text, anonymous=True
    ),
    "web address": icefloe.http_storage,
    "location": parse_location,
    "YAML": from_yaml,
    "YAML bytes": lambda text: from_yaml(text.encode("utf-8", "surrogatepass")),
    "JSON configuration": lambda text: from_json(text.encode("utf-8", "surrogatepass")),
    "path": canonical,
    "id": SnapshotId.parse,
    "branch": lambda text: repository().readonly_session(text),
    "steps": lambda text: repository().readonly_session(f"main~{text}"),
    "time of a branch": lambda text: repository().readonly_session(f"main@{{{text}}}"),
    "tag": lambda text: repository().readonly_session(tag=text),
    "snapshot": lambda text: repository().readonly_session(snapshot_id=text),
    "new branch": lambda text: repository().create_branch(text, repository().lookup_branch("main")),
    "as of": lambda text: SnapshotSelector(as_of=text).session(repository()),
    "node": lambda text: repository().readonly_session("main").get_node(text),
    "message": lambda text: (
        repository().writable_session("main").commit(text, metadata={"a": text}, allow_empty=True)
    ),
}


@pytest.mark.parametrize("parser", PARSERS)
@given(text=TEXTS)
@example(text="(" * 5000)
@example(text="not " * 5000 + "v = 1")
@example(text="(" * 200 + "v = 1" + ")" * 200)
@example(text="v = " + "9" * 5000)
@example(text="9" * 5000)
@example(text="9" * 20)
@example(text="²" * 10)
@example(text="--999999999")
@example(text="[" * 100_000)
@example(text="[" * 900 + "]" * 900)
@example(text='{"a":' * 5000 + "1" + "}" * 5000)
@example(text='{"a": NaN}')
@example(text="a\ud800b")
@example(text="file:///a%00b")
@example(text="http://[")
@example(text="s3://a]b/c")
@example(text="2020-13")
@example(text="0001-01-01T00:00+23:59")
@example(text="days since 2000-99-01")
def test_parsers_return_or_raise_an_error_of_ours(parser: str, text: str) -> None:
    with contextlib.suppress(IcefloeError):
        PARSERS[parser](text)


@pytest.fixture(scope="module")
def session() -> Any:
    """A table with times, floats, texts, numbers and truth values."""
    made = repository().writable_session("main")
    group = zarr.create_group(made.store)

    def add(name: str, values: np.ndarray, dims: list[str], **attributes: str) -> None:
        array = group.create_array(
            name,
            shape=values.shape,
            chunks=values.shape,
            dtype=values.dtype,
            dimension_names=dims,
            attributes=attributes,  # type: ignore[arg-type]
        )
        array[...] = values

    add("time", np.arange(3), ["time"], units="days since 2020-01-01")
    add("x", np.array([0.5, 1.5]), ["x"])
    add("v", np.ones((3, 2), "f4"), ["time", "x"])
    add("n", np.ones((3, 2), "i8"), ["time", "x"])
    add("flag", np.ones((3, 2), "?"), ["time", "x"])
    return made


def cells(session: Any, **request: Any) -> None:
    with contextlib.suppress(IcefloeError):
        scan = Scan(session, ScanRequest(**request))
        for boxes in scan.splits():
            for batch in scan.read(boxes):
                assert batch.num_rows <= 6


LITERALS = st.sampled_from(
    [
        *(
            "0",
            "-1",
            "9" * 30,
            "9" * 400,
            "1e999",
            "-1e999",
            "1e-999",
            "true",
            "false",
            "'a'",
            "''",
        ),
        *("'2020-01'", "'2020-99'", "'0001-01-01T00:00+23:59'", "'9999-12-31T23:59-23:59'"),
        *(
            "'a'",
            "''",
            "date '2020'",
            "timestamp 'no'",
            "'٢٠٢٠'",
            "'\0'",
            "'\ud800'",
            "null",
            "x",
            "1.",
            ".5",
        ),
    ]
)
COMPARISONS = st.tuples(
    st.sampled_from(COLUMNS),
    st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "in (", "between 0 and"]),
    LITERALS,
).map(lambda parts: f"{parts[0]} {parts[1]} {parts[2]}" + (")" if "(" in parts[1] else ""))


@given(st.lists(COMPARISONS, min_size=1, max_size=3), st.sampled_from([" and ", " or not "]))
@example(["x = " + "9" * 400], " and ")
@example(["n < 1e999"], " and ")
def test_conditions_with_any_value_are_applied_or_refused(
    session: Any, parts: list[str], join: str
) -> None:
    cells(session, where=join.join(parts))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["2020-01", "2020-99", "a", "", "\ud800", 10**400, -(10**30)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["start", "stop", "step", "nearest", "a"]), inner)
    ),
    max_leaves=4,
)


@given(st.sampled_from(["time", "x", "y"]), VALUES, st.sampled_from(["sel", "isel"]))
@example("x", 10**400, "sel")
@example("x", {"nearest": "a"}, "sel")
@example("time", {"nearest": None}, "sel")
@example("x", {"start": "a", "stop": 1}, "sel")
@example("x", {"start": 0.5}, "isel")
@example("x", {"step": 0}, "isel")
@example("x", [[1], [1, 2]], "isel")
@example("x", 10**30, "isel")
def test_selections_of_any_json_are_obeyed_or_refused(
    session: Any, dim: str, value: Any, how: str
) -> None:
    text = json.dumps({dim: value})
    try:
        chosen = SourceOptions({how: text}).mapping(how)
    except IcefloeError:
        return
    cells(session, **{how: chosen})
