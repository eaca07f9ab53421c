"""What a commit does for each snapshot that a state file lists already: next to nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.formats.dataset import snapshot_list
from icefloe.formats.dataset.layout import id_of_file
from icefloe.formats.dataset.snapshot_list import NO_SNAPSHOTS, SnapshotList
from icefloe.formats.dataset.state import State
from icefloe.model.ids import SnapshotId

LISTED = 2_000


def entry(text: str, file: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "snapshot-id": text,
        "timestamp-ms": 1,
        "structure-file": file or f"{text}.parquet",
        "message": "m",
        **more,
    }


def own() -> dict[str, Any]:
    return entry(str(SnapshotId.random()))


def state_of(entries: list[dict[str, Any]]) -> bytes:
    newest = entries[-1]["snapshot-id"]
    return State(
        {
            "id": "x",
            "generation": len(entries),
            "snapshots": NO_SNAPSHOTS.appended(entries),
            "refs": {"main": {"name": "main", "snapshot-id": newest, "type": "branch"}},
        }
    ).encode()


@pytest.fixture
def parsed_ids(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of structure files that were made ids, one by one."""
    names: list[str] = []

    def counting(kind: Any, name: str) -> Any:
        names.append(name)
        return id_of_file(kind, name)

    monkeypatch.setattr(snapshot_list, "id_of_file", counting)
    return names


def test_listed_snapshots_are_neither_named_nor_encoded_again(parsed_ids: list[str]) -> None:
    entries = [own() for _ in range(LISTED)]
    state = State.parse(state_of(entries))
    later = state.with_refs({"main": state.snapshots.id_of(entries[0]["snapshot-id"])}, "branch")
    assert parsed_ids == []
    assert later.snapshots.text is state.snapshots.text


def test_a_state_that_goes_on_where_the_last_one_ended_is_parsed_from_there() -> None:
    entries = [own() for _ in range(LISTED)]
    before = State.parse(state_of(entries))
    after = State.parse(state_of([*entries, own()]), before)
    names = [each["snapshot-id"] for each in entries]
    assert all(after.snapshots.entry(name) is before.snapshots.entry(name) for name in names)
    assert len(after.snapshots) == LISTED + 1


NAMES = st.sampled_from(["first", "20-letters-long-name", "a b", "0" * 19 + "1", "ABC"])
ENTRIES = st.lists(
    st.builds(own)
    | NAMES.map(entry)
    | st.tuples(NAMES, st.sampled_from(["x.parquet", "y", "0" * 20])).map(lambda pair: entry(*pair))
    | st.builds(lambda: entry(str(SnapshotId.random()), unknown={"kept": [1]})),
    max_size=5,
)


def described(snapshots: SnapshotList) -> Any:
    texts = [snapshots.text_of(each) for each in snapshots]
    return list(snapshots), texts, snapshots.documents(), [snapshots.entry(text) for text in texts]


@given(ENTRIES, ENTRIES, st.sampled_from([None, 1]))
def test_a_list_is_read_alike_whatever_is_known(
    first: list[dict[str, Any]], more: list[dict[str, Any]], indent: int | None
) -> None:
    text = json.dumps([*first, *more], indent=indent).encode()
    try:
        alone = NO_SNAPSHOTS.reread(text)
    except FormatError:
        with pytest.raises(FormatError):
            NO_SNAPSHOTS.reread(json.dumps(first, indent=indent).encode()).reread(text)
        return
    known = NO_SNAPSHOTS.reread(json.dumps(first, indent=indent).encode())
    assert described(known.reread(text)) == described(alone)
    assert described(known.appended(more)) == described(alone)
    assert described(alone.reread(known.text)) == described(known)


@pytest.mark.parametrize("rest", [b"", b",]", b"x]", b"]]", b",{}]", b"}]"])
def test_what_follows_a_known_list_is_checked(rest: bytes) -> None:
    known = NO_SNAPSHOTS.appended([own()])
    start = known.text.removesuffix(b"\n]")
    with pytest.raises(msgspec.MsgspecError):
        known.reread(start + rest)


def test_a_snapshot_that_is_listed_twice_is_refused_also_behind_a_known_list() -> None:
    twice = own()
    known = State.parse(state_of([twice, own()]))
    data = known.encode().replace(b"\n],", b",\n " + json.dumps(twice).encode() + b"\n],")
    with pytest.raises(FormatError, match="two snapshots have one id"):
        State.parse(data, known)
