"""Pipeline files: what is valid, what errors say, and that the schema says the same."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config.safe_yaml import ExponentLoader, yaml_tree
from icefloe.errors import InvalidInputError
from icefloe.spark.publishing.pipeline_file import (
    SCHEMA_FILE,
    Pipeline,
    load_pipeline,
    parse_pipeline,
    pipeline_schema,
)

VALID = """\
name: era5-daily
target:
  repository: s3://bucket/era5?region=eu-central-1
  authorize: [s3://archive/]
sources:
  surface:
    files: [s3://archive/2024/*.nc, s3://archive/2025/]
steps:
  - do: ingest
    source: surface
    concat_dims: time
    chunks: {time: 24}
  - do: map_blocks
    function: wind_speed
    inputs: [u, v]
    output: speed
  - do: reduce
    array: speed
    how: quantile
    q: [0.5, 0.9]
    by: time.month
    output: speed_quantiles
  - do: copy
    source: ../masks
    variables: land
expectations:
  - expect: in_range
    arrays: [u, v]
    low: -150
    high: 150
  - expect: missing_at_most
    arrays: /*
    share: 0.01
    severity: warning
  - expect: equal_to
    arrays: u
    version: main
    absolute: 1e-6
publish:
  rebase: false
  message: daily update
maintenance:
  expire_snapshots: {older_than: 30d, keep_last: 10}
  garbage_collect: {older_than: 7d}
reports: reports
"""


def plain(text: str) -> Any:
    return yaml_tree(text, ExponentLoader)


def test_the_shipped_schema_is_that_of_the_types() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == pipeline_schema()


def test_a_valid_file_is_valid_by_the_schema_too() -> None:
    pipeline = parse_pipeline(VALID)
    assert [step.kind for step in pipeline.steps] == ["ingest", "map_blocks", "reduce", "copy"]
    assert pipeline.expectations[1].severity == "warning"
    assert pipeline.expectations[2].absolute == 1e-6  # which is text to YAML 1.1
    jsonschema.validate(plain(VALID), pipeline_schema())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("how: quantile", "how: median"), "line 19, steps[2].how: Invalid enum value 'median'"),
        (("  share: 0.01", "  share: 7"), "line 33, expectations[1].share: Expected `float` <= 1"),
        (("source: surface", "source: upper"), "line 10, steps[0].source: there is no source"),
        (("rebase: false", "rebse: false"), "line 40, publish.rebse: there is no such key"),
        (("files: [s3", "file: [s3"), "line 7, sources.surface.file: there is no such key"),
        (
            ("do: copy", "do: import os"),
            "line 23, steps[3].do: Invalid value 'import os'; expected",
        ),
        (("expect: equal_to", "expect: eval"), "line 35, expectations[2].expect: Invalid value"),
        (("name: era5-daily", "name: ../x"), "line 1, name: Expected `str` matching regex"),
        (
            ("    output: speed\n", "    output: u\n"),
            "line 16, steps[1].output: the output '/u' is",
        ),
        (("output: speed_quantiles", "output: /w"), None),
        (("array: speed", "array: x\n    # y"), None),
        (("output: speed_quantiles", "output: speed"), "steps[2].output: the output '/speed' is"),
        (
            (
                "variables: land",
                "variables: land\n  - {do: copy, source: ../masks, variables: sea}",
            ),
            "line 26, steps[4]: steps[3] is called 'copy ../masks into /', too; give one of them",
        ),
        (("variables: land", "name: a\n  - {do: copy, source: ../masks, variables: sea}"), None),
        (
            ("variables: land", "name: a\n  - {do: copy, source: ../sea, name: a}"),
            "line 26, steps[4]: steps[3] is called 'a', too",
        ),
        (
            ("older_than: 30d", "older_than: soon"),
            "line 43, maintenance.expire_snapshots.older_than",
        ),
        (("target:", "target: &a"), None),
        (("reports: reports", "reports: *a"), "not valid in line 45: expected no aliases"),
        (
            ("reports: reports", "reports: !!python/name:os.system ''"),
            "as tag:yaml.org,2002:python/name",
        ),
        (("reports: reports", "name: again"), "not valid in line 45: expected each key once"),
        (("name: era5-daily", "name: [era5"), "is not valid YAML"),
        (("\nsteps:", "\nstages:"), "line 8, stages: there is no such key"),
    ],
)
def test_errors_name_the_line_and_the_path(change: tuple[str, str], message: str | None) -> None:
    assert change[0] in VALID
    text = VALID.replace(*change, 1)
    if message is None:
        parse_pipeline(text)
        return
    with pytest.raises(InvalidInputError) as caught:
        parse_pipeline(text, "daily.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("daily.yaml")


def test_files_that_cannot_be_read(tmp_path: Any) -> None:
    with pytest.raises(InvalidInputError, match="there is no pipeline file"):
        load_pipeline(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="cannot be read as text"):
        load_pipeline(tmp_path / "binary.yaml")
    (tmp_path / "good.yaml").write_text(VALID)
    loaded = load_pipeline(str(tmp_path / "good.yaml"))
    assert loaded.path("../masks") == str(tmp_path.parent / "masks")
    assert loaded.path("s3://bucket/era5") == "s3://bucket/era5"


KEYS = st.sampled_from(["name", "target", "steps", "do", "expect", "files", "q", "x"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["ingest", "a", "in_range", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a tree."""
    pairs = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree if isinstance(tree, list) else ())
    )
    below = [place for key, value in pairs for place in places(value, (*path, key))]
    return [path, *below]


@given(st.data(), VALUES)
def test_any_change_is_valid_for_both_or_an_error_of_ours(data: Any, value: Any) -> None:
    """Types and schema agree on each file with one value exchanged for another."""
    tree = plain(VALID)
    place = data.draw(st.sampled_from(places(tree)[1:]))
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    try:
        jsonschema.validate(tree, pipeline_schema())
        by_schema = True
    except jsonschema.ValidationError:
        by_schema = False
    try:
        msgspec.convert(tree, Pipeline)
        by_types = True
    except msgspec.ValidationError as error:
        by_types = "found neither" in str(error)  # a rule between two keys, which types add
    assert by_types == by_schema
    message = "pipeline.yaml"
    try:
        parse_pipeline(yaml.safe_dump(tree, sort_keys=False))
    except InvalidInputError as error:
        message = str(error)
    assert message.startswith("pipeline.yaml")
