"""What the page is told, and how little is read for it."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import InvalidInputError, NodeNotFoundError, Repository, SnapshotNotFoundError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.viewer.answers import Answers
from icefloe.viewer.sampling import MAX_CHUNKS, MAX_PIXELS, Plane, sample_axis
from tests.viewer.repositories import climate_repository, field

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class CountingStorage(ForwardingStorage):
    """Counts the objects that are read and their bytes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.reads: list[str] = []
        self.writes: list[str] = []

    def _run(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        with self._lock:
            (self.reads if verb.startswith(("get", "head", "list")) else self.writes).append(key)
        return act()


def values_of(answer: dict[str, Any]) -> np.ndarray:
    shape = (answer["height"], answer["width"])
    return np.frombuffer(base64.b64decode(answer["values"]), "<f8").reshape(shape)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers(climate_repository(MemoryStorage()))


def test_a_picture_has_the_decoded_values_of_its_plane(answers: Answers) -> None:
    answer = answers.picture("main", "surface/t2m", Plane(1, 2, (3, 0, 0)))
    expected = np.where(field(3) == -999, np.nan, field(3) * 0.1)
    np.testing.assert_allclose(values_of(answer), expected, rtol=1e-6)
    assert answer["is_complete"]
    assert answer["missing"] == np.isnan(expected).sum()
    turned = answers.picture("main", "surface/t2m", Plane(2, 1, (3, 0, 0)))
    np.testing.assert_array_equal(values_of(turned), values_of(answer).T)


@pytest.mark.parametrize("attributes", [{"units": "degrees_north"}, {"standard_name": "latitude"}])
@pytest.mark.parametrize("is_ascending", [True, False])
def test_north_is_at_the_top_of_a_map(attributes: dict[str, Any], *, is_ascending: bool) -> None:
    repository = Repository.create(MemoryStorage())
    latitudes = np.linspace(-60, 60, 5)[:: 1 if is_ascending else -1]
    values = np.repeat(latitudes[:, None], 3, axis=1)
    for version in (1, 2):
        with repository.transaction("main", message=f"version {version}") as store:
            root = zarr.open_group(store, mode="a")
            lat = root.create_array(
                "lat",
                data=latitudes,
                dimension_names=("lat",),
                attributes=attributes,
                overwrite=True,
            )
            root.create_array(
                "t", data=version * values, dimension_names=("lat", "lon"), overwrite=True
            )
    assert lat.shape == (5,)
    answers, plane = Answers(repository), Plane(0, 1, (0, 0))
    expected = np.repeat(np.linspace(60, -60, 5)[:, None], 3, axis=1)
    for picture, factor in (
        (answers.picture("main", "/t", plane), 2),
        (answers.difference("main~1", "main", "/t", plane), 1),
    ):
        assert values_of(picture).tolist() == (factor * expected).tolist()
        assert picture["rows"] == ([4, 3, 2, 1, 0] if is_ascending else [0, 1, 2, 3, 4])
    turned = answers.picture("main", "/t", Plane(1, 0, (0, 0)))
    assert turned["rows"] == [0, 1, 2]


def test_a_series_is_one_row(answers: Answers) -> None:
    answer = answers.picture("main", "/time", Plane(None, 0, (0,)))
    assert values_of(answer).tolist() == [list(range(12))]


def test_a_difference_is_newer_minus_older(answers: Answers) -> None:
    plane = Plane(1, 2, (0, 0, 0))
    values = values_of(answers.difference("v1", "main", "surface/t2m", plane))
    expected = np.zeros((72, 144))
    expected[24:48, 48:96] = 5
    np.testing.assert_allclose(values, expected, atol=1e-4)
    assert answers.difference("main", "main", "surface/t2m", plane)["changed"] == 0
    assert [each["path"] for each in answers.changes("v1", "main")["changes"]] == [
        "/",
        "/surface/t2m",
    ]


def test_the_chunk_map_has_the_share_of_chunks_that_exist(answers: Answers) -> None:
    over_time = answers.chunks("main", "surface/t2m", 0, 1)
    assert over_time["cells"] == [6, 3]
    assert np.reshape(over_time["share"], (6, 3)).tolist() == [[1] * 3] * 4 + [[0] * 3] * 2
    over_space = answers.chunks("main", "surface/t2m", 1, 2)
    assert over_space["share"] == pytest.approx([4 / 6] * 9)
    assert answers.chunks("main", "/time", None, 0)["cells"] == [1, 1]


def test_history_comes_in_pages(answers: Answers) -> None:
    messages, cursor, pages = [], "", 0
    while True:
        page = answers.history(cursor, 4)
        messages += [commit.message for commit in page["commits"]]
        pages, cursor = pages + 1, page["next"]
        if not cursor:
            break
    assert pages == 3
    assert len(messages) == len(set(messages)) == 9
    with pytest.raises(SnapshotNotFoundError):
        answers.history("not-an-id", 4)


def test_nodes_have_metadata_and_sizes(answers: Answers) -> None:
    node = answers.node("main", "surface/t2m")
    assert node["metadata"]["attributes"]["units"] == "K"
    assert sum(node["bytes"].values()) > 0
    assert [each["path"] for each in answers.tree("v1")["nodes"]] == [
        "/",
        "/name",
        "/number",
        "/surface",
        "/surface/t2m",
        "/time",
    ]
    with pytest.raises(NodeNotFoundError):
        answers.node("main", "/nothing")


def test_sizes_are_added_up_below_a_group(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answers.sizes("main", "/")
    assert whole["arrays"][0]["path"] == "/surface/t2m"
    assert whole["total"] == sum(row["bytes"] for row in whole["arrays"])
    part = answers.sizes("main", "/surface")
    assert part["arrays"] == whole["arrays"][:1]
    assert answers.sizes("main~7", "/surface")["total"] < part["total"]
    monkeypatch.setattr("icefloe.viewer.answers.MAX_REFERENCES", 3)
    with pytest.raises(InvalidInputError, match="icefloe stats"):
        answers.sizes("main", "/")


@pytest.fixture(scope="module")
def odd() -> Answers:
    """Arrays of types and values that are no plain numbers, in two versions."""
    repository = Repository.create(MemoryStorage())
    with repository.transaction("main", message="odd") as store:
        root = zarr.create_group(store)
        days = np.array(["1970-01-02", "NaT", "2020-01-01"], dtype="M8[D]")
        for name, values in {
            "days": days,
            "times": days.astype("M8[ns]"),
            "durations": np.array([1500, -1, 0], dtype="m8[ms]"),
            "complex": np.array([3 + 4j, 0, 1j]),
            "large": np.array([1e300, -1e300, 2.0**24 + 1]),
            "infinite": np.array([np.inf, -np.inf, np.nan]),
            "missing": np.full(3, np.nan),
        }.items():
            root.create_array(name, shape=(3,), chunks=(3,), dtype=values.dtype)[:] = values
    repository.create_tag("v1", repository.lookup_branch("main"))
    with repository.transaction("main", message="later") as store:
        zarr.open_array(store, path="times")[0] = np.datetime64("1970-01-03", "ns")
        zarr.open_array(store, path="complex")[2] = 1
    return Answers(repository)


@pytest.mark.parametrize(
    ("path", "kind", "values"),
    [
        ("days", "time", [86_400, np.nan, 1_577_836_800]),
        ("times", "time", [86_400, np.nan, 1_577_836_800]),
        ("durations", "seconds", [1.5, -0.001, 0]),
        ("complex", "magnitude", [5, 0, 1]),
        ("large", "number", [1e300, -1e300, 16_777_217]),
        ("infinite", "number", [np.inf, -np.inf, np.nan]),
    ],
)
def test_pictures_say_what_their_numbers_are(
    odd: Answers, path: str, kind: str, values: list[float]
) -> None:
    answer = odd.picture("v1", path, Plane(None, 0, (0,)))
    assert answer["kind"] == kind
    np.testing.assert_array_equal(values_of(answer), [values])


def test_infinite_values_are_not_missing_ones(odd: Answers) -> None:
    for path, infinite in (("infinite", 2), ("missing", 0)):
        answer = odd.picture("v1", path, Plane(None, 0, (0,)))
        assert (answer["lowest"], answer["infinite"]) == (None, infinite)


def test_differences_of_times_are_seconds_and_of_complex_numbers_magnitudes(odd: Answers) -> None:
    for path, kind, values in (
        ("times", "seconds", [86_400, 0, 0]),
        ("complex", "magnitude", [0, 0, np.sqrt(2)]),
    ):
        answer = odd.difference("v1", "main", path, Plane(None, 0, (0,)))
        assert answer["kind"] == kind
        np.testing.assert_allclose(values_of(answer), [values])


def test_what_cannot_be_drawn_is_refused_with_a_reason(answers: Answers) -> None:
    for path, plane, reason in [
        ("/name", Plane(None, 0, (0,)), "not numbers"),
        ("surface/t2m", Plane(1, 1, (0, 0, 0)), "two different"),
        ("surface/t2m", Plane(1, 3, (0, 0, 0)), "two different"),
        ("surface/t2m", Plane(1, 2, (12, 0, 0)), "0 to 11"),
        ("surface/t2m", Plane(1, 2, (0,)), "found 1 indexes"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            answers.picture("main", path, plane)
    with pytest.raises(NodeNotFoundError, match="is a group"):
        answers.picture("main", "/surface", Plane(None, 0, (0,)))


def test_a_misspelt_path_is_refused_with_paths_like_it(answers: Answers) -> None:
    with pytest.raises(NodeNotFoundError, match="/surface/t2m"):
        answers.node("main", "/surface/tm2")
    with pytest.raises(NodeNotFoundError, match="/surface/t2m"):
        answers.picture("main", "/surface/tm2", Plane(1, 2, (0, 0, 0)))


# --- how little is read


@pytest.fixture
def huge() -> tuple[CountingStorage, Repository]:
    """An array of 8 TB, of which a few chunks are written."""
    storage = CountingStorage(MemoryStorage())
    repository = Repository.create(storage)
    with repository.transaction("main", message="a little of a lot") as store:
        array = zarr.create_array(
            store,
            name="huge",
            shape=(1000, 1_000_000, 1_000_000),
            chunks=(1, 1000, 1000),
            dtype="f8",
            fill_value=1.5,
        )
        array[0, :2000, :2000] = np.random.default_rng(1).random((2000, 2000))
    storage.clear()
    return storage, repository


def test_a_picture_of_terabytes_reads_a_few_chunks(
    huge: tuple[CountingStorage, Repository],
) -> None:
    storage, repository = huge
    answer = Answers(repository).picture("main", "/huge", Plane(1, 2, (0, 0, 0)))
    assert (answer["height"], answer["width"]) == (MAX_PIXELS, MAX_PIXELS)
    assert answer["chunks_read"] * 8_000_000 <= 64 * 1024 * 1024
    assert not answer["is_complete"]
    chunk_reads = [key for key in storage.reads if "chunks/" in key]
    assert len(chunk_reads) <= answer["chunks_read"]
    assert storage.writes == []


def test_a_chunk_above_the_budget_is_not_read(huge: tuple[CountingStorage, Repository]) -> None:
    storage, repository = huge
    with pytest.raises(InvalidInputError, match="one chunk of /huge has 8,000,000 bytes"):
        Answers(repository, max_bytes=1_000_000).picture("main", "/huge", Plane(1, 2, (0, 0, 0)))
    assert not [key for key in storage.reads if "chunks/" in key]


def test_a_page_of_history_reads_as_much_however_long_it_is() -> None:
    def reads_after(commits: int) -> int:
        storage = CountingStorage(MemoryStorage())
        repository = Repository.create(storage)
        for number in range(commits):
            with repository.transaction("main", message=f"commit {number}") as store:
                zarr.create_group(store, path=f"g{number % 3}", overwrite=True)
        # Another process, with empty caches.
        fresh = CountingStorage(storage.inner)
        Answers(Repository.open(fresh)).history("", 10)
        return len(fresh.reads)

    assert reads_after(120) <= reads_after(40) + 2


@given(
    st.integers(1, 10**12), st.integers(1, 10**7), st.integers(1, 300), st.integers(1, MAX_CHUNKS)
)
def test_samples_are_inside_ordered_and_within_the_budget(
    extent: int, chunk: int, pixels: int, allowed: int
) -> None:
    sample = sample_axis(extent, chunk, pixels, allowed)
    assert len(sample.indexes) == min(extent, pixels)
    assert sample.indexes.min() >= 0
    assert sample.indexes.max() < extent
    assert len(sample.chunks) <= allowed
    assert set((sample.indexes // chunk).tolist()) == set(sample.chunks.tolist())
    if extent <= pixels and -(-extent // chunk) <= allowed:
        assert sample.indexes.tolist() == list(range(extent))
        assert sample.is_complete
