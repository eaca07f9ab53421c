"""Big jobs: executors write the manifests and the driver links them."""

from __future__ import annotations

import numpy as np
import pytest

import icefloe
from icefloe.config import ManifestConfig, ManifestSplittingConfig
from icefloe.errors import TaskFailedError
from icefloe.spark import NewArray, arrays, write
from icefloe.spark.job import Job, JobOptions
from icefloe.spark.references import WrittenChunks, to_table
from icefloe.spark.tasks import Output
from tests.spark.many_references import link_references, virtual_references

ANY = icefloe.ManifestSplitCondition.AnyArray()
FIRST = icefloe.ManifestSplitDimCondition.Axis(0)


def make(tmp_path, rows):
    splitting = ManifestSplittingConfig.from_dict({ANY: {FIRST: rows}})
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    return icefloe.Repository.create(storage, config)


def test_virtual_references_never_reach_the_driver(spark, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("references came to the driver")

    monkeypatch.setattr("icefloe.versioning.session.Session.set_chunk_refs", refuse)
    repo = make(tmp_path, 128)
    report = link_references(spark, repo, 60_000)
    monkeypatch.undo()
    assert report.chunks == 60_000
    session = repo.readonly_session("main")
    found = session.chunk_table("/a")
    expected = virtual_references(0, 600)
    assert len(session.get_node("/a").manifests) == 5
    assert np.array_equal(found.index.coords(), expected.index.coords())
    assert np.array_equal(found.refs.offsets, expected.refs.offsets)
    assert session.locate("/a", (599, 99)) == expected.refs.get(59_999)


def numbers(region):
    return np.arange(region[0].start, region[0].stop)[:, None] * 10 + np.arange(3)


def test_chunks_that_tasks_write_are_linked_too(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("icefloe.spark.job.LINK_ABOVE_CHUNKS", 1)
    repo = make(tmp_path, 4)
    new = NewArray((22, 3), "f8", (1, 1), fill_value=0.0)
    report = write(spark, repo, {"a": numbers}, create={"a": new}, task_bytes=100)
    assert report.chunks == 66
    write(spark, repo, {"a": lambda region: -numbers(region)}, region=(slice(2, 9),))
    expected = numbers((slice(0, 22),)).astype(float)
    expected[2:9] *= -1
    found = repo.readonly_session("main")
    np.testing.assert_array_equal(found.read_region("/a"), expected)
    assert len(found.get_node("/a").manifests) == 6
    assert all(info.checksum for info in found._snapshot.manifests)


def test_two_tasks_with_one_chunk_commit_nothing(spark, tmp_path):
    def same(item, shared):
        written = WrittenChunks(virtual_references(0, 2), None)
        yield Output("/a", to_table(written), written.num_chunks)

    repo = make(tmp_path, 4)
    for linked in (True, False):
        job = Job(spark, repo, "twice", JobOptions())
        arrays.create(job.session, "/a", NewArray((8, 100), "f4", (1, 1)))
        with pytest.raises(TaskFailedError, match="wrote the same chunks of /a"):
            job.run(same, [0, 1], None, linked=linked)
