"""Headers on their way to the driver: what arrives does not depend on how files are batched."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.ingest.header_batches import ANOTHER_VALUE, HeaderCollector, pack
from icefloe.ingest.headers import FileHeader, VariableHeader
from icefloe.ingest.read import HeaderResult

GRID = np.arange(2000.0)

attributes = st.fixed_dictionaries(
    {},
    optional={
        "history": st.sampled_from(["one", "two", ""]),
        "number": st.sampled_from([1, 1.0, True, None, [1], [1.0]]),
        "_FillValue": st.sampled_from([0, 0.0, -1]),
        "scale_factor": st.sampled_from([1, 1.0, 0.1]),
        "units": st.sampled_from(["K", "1"]),
    },
)


def document(of_variable: dict[str, Any], fill_value: Any) -> dict[str, Any]:
    return {
        "shape": [1],
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "fill_value": fill_value,
        "dimension_names": ["time"],
        "attributes": of_variable,
    }


def result(number: int, of_file: dict[str, Any], documents: list[dict[str, Any]]) -> HeaderResult:
    variables = {
        f"v{at}": VariableHeader(each, 1, 8, [None, np.array([number]), GRID][at % 3])
        for at, each in enumerate(documents)
    }
    url = f"s3://a/{number}"
    return HeaderResult(url, "read", None, FileHeader(url, "hdf5", None, of_file, variables))


@given(
    st.lists(
        st.tuples(
            attributes,
            st.lists(st.builds(document, attributes, st.sampled_from([0, 0.0])), max_size=3),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sets(st.integers(1, 5)),
)
def test_headers_arrive_as_they_were_but_for_marks(files: list[Any], cuts: set[int]) -> None:
    sent = [result(number, *file) for number, file in enumerate(files)]
    collector = HeaderCollector()
    ends = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    for start, end in pairwise(ends):
        collector.add(pack(sent[start:end]))
    arrived = collector.fill(lambda *_: GRID)
    assert [each.url for each in arrived] == [each.url for each in sent]
    for before, after in zip(sent, arrived, strict=True):
        assert before.header is not None
        assert after.header is not None
        assert_alike(before.header.attributes, after.header.attributes)
        assert list(before.header.variables) == list(after.header.variables)
        for name, variable in before.header.variables.items():
            found = after.header.variables[name]
            np.testing.assert_array_equal(found.values, variable.values)
            assert repr({**found.document, "attributes": 0}) == repr(
                {**variable.document, "attributes": 0}
            )
            own = variable.attributes
            assert_alike(own, found.attributes)
            for meaningful in ("_FillValue", "scale_factor", "units"):
                assert repr(found.attributes.get(meaningful)) == repr(own.get(meaningful))


def assert_alike(before: dict[str, Any], after: dict[str, Any]) -> None:
    """All that is left of an attribute is its value, or that it differs from file to file."""
    for key in {*before, *after}:
        assert after.get(key) in (before.get(key), ANOTHER_VALUE)


def test_files_that_differ_in_their_histories_share_everything_else() -> None:
    files = [
        result(number, {"history": f"of {number}"}, [document({"history": f"of {number}"}, 0)])
        for number in range(300)
    ]
    collector = HeaderCollector()
    packed = [pack(files[start : start + 100]) for start in (0, 100, 200)]
    for batch in packed:
        collector.add(batch)
    headers = [each.header for each in collector.results if each.header is not None]
    assert len({id(header.attributes) for header in headers}) == 2  # of the first, and of others
    assert len({id(header.variables["v0"].document) for header in headers}) == 2
    assert sum(map(len, packed)) < 300 * 150
