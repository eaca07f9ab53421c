"""Options of jobs, and what a job says of itself when it is printed."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import icefloe.spark
from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import JobKeywords, JobOptions, JobPlan, JobReport, job_options
from icefloe.spark.tables.read_table import TableKeywords

PLAN = JobPlan("reduce", ("/a",), tasks=2, chunks=3, num_bytes=100, manifests=1)


def test_a_job_says_what_its_tasks_moved() -> None:
    wrote = JobReport(PLAN, "X", chunks=3, bytes_read=9, bytes_written=5000)
    only_read = JobReport(PLAN, "X", chunks=3, bytes_read=5000)
    assert str(wrote).startswith("reduce: 3 chunks, 4.9 KiB written in")
    assert str(only_read).startswith("reduce: 3 chunks, 4.9 KiB read in")


def test_a_job_without_a_commit_says_so() -> None:
    assert str(JobReport(PLAN)).endswith("nothing was committed")
    assert str(JobReport(PLAN, "X", repeated=True)) == "reduce: done before, in X"


def test_keyword_arguments_override_shared_options() -> None:
    shared = JobOptions(branch="staging", task_bytes=10)
    assert job_options(None, {}) == JobOptions()
    assert job_options(shared, {}) == shared
    assert job_options(shared, {"branch": "dev"}) == JobOptions(branch="dev", task_bytes=10)
    assert shared.branch == "staging"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="brnch"):
        job_options(None, {"brnch": "dev"})  # type: ignore[typeddict-unknown-key]


def test_half_a_transaction_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="both txn_app_id and txn_version"):
        JobOptions(txn_app_id="nightly").check()


def test_the_keywords_are_the_fields_of_the_options() -> None:
    assert get_type_hints(JobKeywords) == get_type_hints(JobOptions)


JOBS = ("compute_statistics", "copy", "ingest", "map_blocks", "rechunk", "reduce", "write")


@pytest.mark.parametrize("name", [*JOBS, "write_table"])
def test_jobs_take_options_in_both_forms(name: str) -> None:
    function = getattr(icefloe.spark, name)
    assert function.__annotations__["options"] == "JobOptions | None"
    assert function.__annotations__["keywords"] == "Unpack[JobKeywords]"
    shown = inspect.signature(function).parameters
    for field, option in inspect.signature(JobOptions).parameters.items():
        assert shown[field].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[field].default == option.default


def test_the_keywords_of_register_are_those_of_table() -> None:
    table = icefloe.spark.table.__annotations__
    assert {**table, **TableKeywords.__annotations__}.keys() == table.keys()
    expected = {name: table[name] for name in TableKeywords.__annotations__}
    found = {name: each.__forward_arg__ for name, each in TableKeywords.__annotations__.items()}
    assert found == expected
    signature = inspect.signature(icefloe.spark.register)
    for name, parameter in inspect.signature(icefloe.spark.table).parameters.items():
        assert signature.parameters[name] == parameter
    assert icefloe.spark.register.__annotations__["keywords"] == "Unpack[TableKeywords]"


@pytest.mark.parametrize("name", sorted(icefloe.spark.__all__))
def test_no_public_name_takes_arguments_that_it_does_not_show(name: str) -> None:
    value = getattr(icefloe.spark, name)
    shown = inspect.signature(value).parameters.values()
    assert not [each.name for each in shown if each.kind is each.VAR_KEYWORD]


@pytest.mark.parametrize("use_jedi", [False, True])
def test_ipython_completes_the_options_of_jobs(use_jedi: bool) -> None:
    shell = InteractiveShell()
    shell.Completer.use_jedi = use_jedi
    shell.user_ns.update({name: getattr(icefloe.spark, name) for name in (*JOBS, "register")})
    for call, expected in {f"{name}(spark, repo, txn_a": "txn_app_id=" for name in JOBS}.items():
        assert expected in completions(shell, call)
    assert "snapshot_id=" in completions(shell, "register(spark, repo, 'weather', snap")


def completions(shell: InteractiveShell, text: str) -> set[str]:
    with provisionalcompleter():
        return {each.text for each in shell.Completer.completions(text, len(text))}
