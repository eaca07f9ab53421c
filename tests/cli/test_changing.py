"""Commands that change a repository, what they ask before, and what they do without a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

from icefloe import Repository
from tests.builders import read_array
from tests.cli.conftest import tip
from tests.virtual.files import series_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import CommandLine


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


DANGEROUS = [
    ["branch", "reset", "PLACE", "main", "v1"],
    ["branch", "delete", "PLACE", "draft"],
    ["squash", "PLACE", "main", "v1", "-m", "one"],
    ["expire", "PLACE", "--older-than", "0m"],
    ["gc", "PLACE", "--older-than", "0m"],
    ["config", "set", "PLACE", "inline_chunk_threshold_bytes", "7"],
]


@pytest.mark.parametrize("command", DANGEROUS, ids=lambda words: "-".join(words[:2]))
def test_dangerous_commands_do_nothing_unless_someone_agrees(
    icefloe: CommandLine, changed: Path, command: list[str]
) -> None:
    words = [str(changed) if word == "PLACE" else word for word in command]
    before = contents(changed)
    assert "no terminal to ask at" in icefloe.run(*words, code=7)
    assert icefloe.run(*words, "--dry-run")
    assert contents(changed) == before
    icefloe.run(*words, "--yes")
    assert contents(changed) != before


def test_a_branch_is_created_reset_and_deleted(icefloe: CommandLine, changed: Path) -> None:
    icefloe.run("branch", "create", changed, "test", "--version", "v1")
    assert tip(changed, "test") == Repository.open(changed).lookup_tag("v1")
    done = icefloe.json("branch", "reset", changed, "test", "main", "--yes")
    assert done["to_snapshot_id"] == tip(changed, "test") == tip(changed)
    icefloe.run("branch", "delete", changed, "test", "--yes")
    assert Repository.open(changed).list_branches() == {"main", "fix", "draft"}
    assert "cannot be deleted" in icefloe.run("branch", "delete", changed, "main", "-y", code=2)
    assert "already" in icefloe.run("branch", "create", changed, "fix", code=4)


def test_a_tag_is_created(icefloe: CommandLine, changed: Path) -> None:
    icefloe.run("tag", "create", changed, "v2")
    assert Repository.open(changed).lookup_tag("v2") == tip(changed)
    icefloe.run("tag", "create", changed, "v2", code=4)
    refusal = icefloe.run("tag", "delete", changed, "v2", code=2)  # nobody is asked first
    assert "tags cannot be deleted" in refusal


def test_a_tag_of_an_official_repository_is_deleted(icefloe: CommandLine, tmp_path: Path) -> None:
    place = tmp_path / "official"
    repository = Repository.create(place, generation="icechunk")
    repository.create_tag("v1", repository.lookup_branch("main"))
    before = contents(place)
    assert "no terminal to ask at" in icefloe.run("tag", "delete", place, "v1", code=7)
    assert icefloe.json("tag", "delete", place, "v1", "--dry-run")["tag"] == "v1"
    assert contents(place) == before
    icefloe.run("tag", "delete", place, "v1", "--yes")
    assert Repository.open(place).list_tags() == set()


def test_a_branch_that_moved_while_the_question_was_open_is_not_deleted(
    icefloe: CommandLine, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.open(changed)

    def agree_after_a_commit(*_: object, **__: object) -> None:
        repository.reset_branch("draft", repository.lookup_tag("v1"))

    monkeypatch.setattr("icefloe.cli.output.Output.confirm", agree_after_a_commit)
    icefloe.run("branch", "delete", changed, "draft", "--yes", code=4)
    assert "draft" in repository.list_branches()


def test_a_branch_is_merged_and_published(icefloe: CommandLine, changed: Path) -> None:
    done = icefloe.json("publish", changed, "draft", "main")
    assert done["snapshot_id"] == tip(changed) == tip(changed, "draft")
    icefloe.run("branch", "create", changed, "late", "--version", "v1")
    repository = Repository.open(changed)
    with repository.transaction("late", message="late wind") as store:
        zarr.open_array(store, path="wind")[0, 0] = 99
    icefloe.run("merge", changed, "late", "-m", "bring wind", "-p", "run=7", "-p", "by=Ada")
    info = repository.lookup_snapshot(tip(changed))
    assert (info.message, info.metadata) == ("bring wind", {"run": 7, "by": "Ada"})
    assert read_array(repository, "wind", branch="main")[0, 0] == 99


def test_a_merge_of_nothing_says_so(icefloe: CommandLine, changed: Path) -> None:
    for words in (["merge", changed, "fix"], ["publish", changed, "main"]):
        done = icefloe.run(*words)
        assert done.startswith("Nothing to do: main already has it: ")
        assert icefloe.json(*words)["snapshot_id"] == tip(changed)


def test_advice_is_in_words_of_the_command_line(icefloe: CommandLine, changed: Path) -> None:
    missing = icefloe.run("merge", changed, "nothing", code=3)
    assert "there is no such branch; there are 'draft', 'fix', 'main'" in missing
    tagged = icefloe.run("publish", changed, "v1", code=3)
    assert "there is a tag of that name, and this needs a branch" in tagged
    assert "Repository" not in icefloe.run("init", changed, code=4)


def test_repair_says_what_it_cannot_repair(icefloe: CommandLine, changed: Path) -> None:
    next((changed / "manifests").iterdir()).unlink()
    text = icefloe.run("repair", changed, "--dry-run", code=1)
    assert "nothing to repair" in text
    assert "cannot be repaired: see icefloe verify" in text
    assert icefloe.run("repair", changed, "--yes", code=1) == text


def test_conflicts_are_named_and_can_be_decided(icefloe: CommandLine, changed: Path) -> None:
    repository = Repository.open(changed)
    repository.create_branch("other", repository.lookup_branch("main"))
    for branch, value in (("main", 1), ("other", 2)):
        with repository.transaction(branch, message=f"wind {value}") as store:
            zarr.open_array(store, path="wind")[:] = value
    before = tip(changed)
    assert "/wind" in icefloe.run("merge", changed, "other", code=4)
    assert tip(changed) == before
    icefloe.run("merge", changed, "other", "--prefer", "source")
    assert (read_array(repository, "wind", branch="main") == 2).all()


def test_a_commit_is_picked_and_reverted(icefloe: CommandLine, changed: Path) -> None:
    repository = Repository.open(changed)
    icefloe.run("cherry-pick", changed, "draft", "--branch", "fix", "-m", "March for fix")
    assert read_array(repository, "surface/t2m", branch="fix")[5, 0] == 283
    icefloe.run("revert", changed, "fix", "--branch", "fix")
    assert read_array(repository, "surface/t2m", branch="fix")[5, 0] == 0


def test_commits_are_squashed(icefloe: CommandLine, changed: Path) -> None:
    plan = icefloe.json("squash", changed, "main", "v1", "-m", "one", "--dry-run")
    assert [row["message"] for row in plan] == ["Merge the calibration", "Write February"]
    values = read_array(Repository.open(changed), "surface/t2m", branch="main")
    icefloe.run("squash", changed, "main", "v1", "-m", "one", "--yes")
    assert [each.message for each in Repository.open(changed).ancestry(branch="main")][:2] == [
        "one",
        "Write January",
    ]
    np.testing.assert_array_equal(
        read_array(Repository.open(changed), "surface/t2m", branch="main"), values
    )


def test_old_commits_expire_and_are_collected(icefloe: CommandLine, changed: Path) -> None:
    plan = icefloe.json("expire", changed, "--older-than", "0m", "--dry-run")
    expired = icefloe.json("expire", changed, "--older-than", "0m", "--yes")["snapshot_ids"]
    assert sorted(row["id"] for row in plan) == expired
    assert len(icefloe.json("log", changed)) == 2
    assert icefloe.json("gc", changed, "--older-than", "0m", "--dry-run")["snapshots_deleted"] > 0
    done = icefloe.json("gc", changed, "--older-than", "0m", "--yes")
    assert done["snapshots_deleted"] > 0
    assert done["dry_run"] is False
    assert "no problems found" in icefloe.run("verify", changed)
    assert "say what expires" in icefloe.run("expire", changed, code=2)
    assert "an age such as 30d" in icefloe.run("expire", changed, "--older-than", "soon", code=2)
    assert icefloe.run("expire", changed, "--older-than", "2000-01-01") == "nothing expires\n"


def test_the_configuration_is_set_shown_and_unset(icefloe: CommandLine, changed: Path) -> None:
    icefloe.run("config", "set", changed, "caching.num_chunk_refs", 1000, "--yes")
    icefloe.run("config", "set", changed, "verify_chunks", "true", "--yes")
    assert icefloe.json("config", "show", changed) == {
        "caching": {"num_chunk_refs": 1000},
        "verify_chunks": True,
    }
    assert "caching.num_chunk_refs = 1000" in icefloe.run("config", "show", changed)
    assert Repository.open(changed).config.verify_chunks is True
    change = icefloe.json("config", "unset", changed, "caching.num_chunk_refs", "--yes")
    assert (change["before"], change["after"]) == (1000, None)
    assert icefloe.json("config", "show", changed) == {"verify_chunks": True}
    assert icefloe.json("config", "show", changed, "--effective")["compression_level"] == 3
    shown = icefloe.run("config", "show", changed, "--effective")
    assert re.search(r"^verify_chunks +yes +set$", shown, re.MULTILINE)
    assert re.search(r"^caching.num_chunk_refs +[\d,]+ +default$", shown, re.MULTILINE)
    misspelt = icefloe.run("config", "unset", changed, "caching.num_chunk_ref", "--yes", code=2)
    assert "no setting 'caching.num_chunk_ref'; did you mean 'caching.num_chunk_refs'" in misspelt
    wrong = icefloe.run("config", "set", changed, "caching.nothing", 1, "--yes", code=2)
    assert "caching.nothing" in wrong
    assert "is a value" in icefloe.run("config", "set", changed, "verify_chunks.x", 1, code=2)


def test_compaction_and_manifests(icefloe: CommandLine, changed: Path) -> None:
    assert icefloe.json("compact", changed, "--pack-size", "1MiB", "--dry-run")["dry_run"] is True
    icefloe.json("compact", changed)
    before = tip(changed)
    done = icefloe.json("rewrite-manifests", changed, "-m", "again")
    assert done["snapshot_id"] == tip(changed) != before
    assert "expected a size" in icefloe.run("compact", changed, "--pack-size", "big", code=2)


def test_a_repository_is_created_cloned_and_migrated(
    icefloe: CommandLine, weather: Path, tmp_path: Path
) -> None:
    made = icefloe.json("init", tmp_path / "new", "--generation", "store")
    assert made["generation"] == "store"
    icefloe.run("init", tmp_path / "new", code=4)
    icefloe.run("clone", weather, tmp_path / "copy")
    icefloe.run("migrate", weather, tmp_path / "tables", "--generation", "dataset")
    for name in ("copy", "tables"):
        copy = Repository.open(tmp_path / name)
        assert copy.list_branches() == {"main", "fix", "draft"}
        np.testing.assert_array_equal(
            read_array(copy, "surface/t2m", branch="draft"),
            read_array(Repository.open(weather), "surface/t2m", branch="draft"),
        )
    assert Repository.open(tmp_path / "copy").generation == "repository"
    assert Repository.open(tmp_path / "tables").generation == "dataset"
    assert "nowhere" in icefloe.run(
        "migrate", weather, tmp_path / "x", "--generation", "nowhere", code=2
    )


def test_files_are_ingested_and_materialized(icefloe: CommandLine, tmp_path: Path) -> None:
    place, folder = tmp_path / "new", tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        series_file(folder / f"{number}.nc", 4 * number, 4)
    icefloe.run("init", place)
    pattern = folder / "*.nc"
    assert "container" in icefloe.run("ingest", place, pattern, code=2)
    report = icefloe.json("ingest", place, pattern, "--concat-dim", "time", "--add-container")
    assert report["files"] == 3
    assert report["snapshot_id"] == tip(place)
    assert "no file matches" in icefloe.run("ingest", place, folder / "*.grib", code=2)
    prefix = f"{folder.as_uri()}/"
    counted = icefloe.json("materialize", place, "--authorize", prefix, "--dry-run")
    done = icefloe.json("materialize", place, "--authorize", prefix)
    assert done["chunks"] == counted["chunks"] == report["references"] > 0
    assert "expected a region" in icefloe.run("materialize", place, "--region", "time", code=2)
    icefloe.run("export", place, tmp_path / "plain")
    assert zarr.open_group(tmp_path / "plain", mode="r")["time"].shape == (12,)
