from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage.access.url import storage_from_url
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.port import Storage

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "canary-secret"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)


@pytest.mark.parametrize("make", [str, Path])
def test_a_tilde_is_the_home_folder(
    make: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert storage_from_url(make("~/repo")).location == (tmp_path / "home" / "repo").as_uri()
    assert storage_from_url("./~/repo").location == (tmp_path / "~" / "repo").as_uri()
    assert storage_from_url(make("~me")).location == (tmp_path / "~me").as_uri()


@pytest.mark.parametrize("place", ["s3:/b/x", "S3:b/x", "gs:/b", "http:/host/x", "file:/data/x"])
def test_a_url_without_a_slash_is_no_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"is no URL: write .*://"):
        icefloe.Repository.create(place)
    assert not list(tmp_path.iterdir())
    assert isinstance(storage_from_url(f"./{place}"), LocalStorage)


def test_a_storage_is_itself() -> None:
    storage = MemoryStorage()
    assert storage_from_url(storage) is storage


@pytest.mark.parametrize(
    "make",
    [
        str,
        Path,
        lambda path: f"file://{path}",
        lambda path: f"file://localhost{path}",
        lambda path: Path(path).as_uri(),
    ],
)
def test_paths(tmp_path: Path, make: Callable[..., Any] | type[Any]) -> None:
    path = tmp_path / "with space #1 and ü%"
    made = make(path)
    if isinstance(made, str) and made.startswith("file://") and "%20" not in made:
        path = tmp_path / "plain"
        made = make(path)
    storage = storage_from_url(made)
    assert isinstance(storage, LocalStorage)
    storage.put("key", b"1")
    assert (path / "key").read_bytes() == b"1"
    assert storage_from_url(storage.location) == storage


def test_durability_is_an_option(tmp_path: Path) -> None:
    assert storage_from_url(f"file://{tmp_path}").durability == "fsync"  # type: ignore[attr-defined]
    assert storage_from_url(f"file://{tmp_path}?durability=none").durability == "none"  # type: ignore[attr-defined]


def test_memory_by_name() -> None:
    storage_from_url("memory://url-test").put("key", b"1")
    assert storage_from_url("memory://url-test").get("key") == b"1"


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket/a/prefix?anonymous=true", "s3://bucket/a/prefix"),
        ("s3://bucket/?anonymous=true", "s3://bucket"),
        (
            (
                "s3://bucket/p?anonymous=true&region=eu-west-1&endpoint_url=http%3A%2F%2F127.0.0.1%3A9"
                "&allow_http=true&force_path_style=true"
            ),
            "s3://bucket/p?endpoint_url=http%3A%2F%2F127.0.0.1%3A9",
        ),
        ("gs://bucket/prefix?anonymous=true", "gs://bucket/prefix"),
        ("gcs://bucket/prefix?anonymous=true", "gs://bucket/prefix"),
        ("az://account/container/prefix?anonymous=true", "az://account/container/prefix"),
        ("https://example.org/data/", "https://example.org/data"),
        ("http://127.0.0.1:9/data", "http://127.0.0.1:9/data"),
    ],
)
def test_object_stores(url: str, location: str) -> None:
    storage = storage_from_url(url)
    assert isinstance(storage, ObjectStorage)
    assert storage.location == location
    assert repr(storage) == f"ObjectStorage({location!r})"
    assert isinstance(storage, Storage)
    assert isinstance(storage, icefloe.Storage)


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://bucket/prefix", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/prefix", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://account/container/prefix", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_credentials_come_from_the_environment_or_not_at_all(
    url: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("google.auth", "azure.identity"):  # which would ask for an account of this machine
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInputError, match="anonymous=true"):
        storage_from_url(url)
    monkeypatch.setenv(variable, SECRET)
    assert storage_from_url(url).location == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/path",
        "file://host/path",
        "file:///path?durability=perhaps",
        "s3:///no-bucket?anonymous=true",
        "s3://bucket/p?anonymous=perhaps",
        "s3://bucket/a/../b?anonymous=true",
        "az://account?anonymous=true",
        "memory://name?option=1",
        f"s3://key:{SECRET}@bucket/prefix?anonymous=true",
        f"s3://bucket/prefix?anonymous=true&secret_access_key={SECRET}",
        f"s3://bucket/p?anonymous=true&endpoint_url=http%3A%2F%2Fuser%3A{SECRET}%40host",
        f"https://host/path?signature={SECRET}",
    ],
)
def test_bad_urls_are_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        storage_from_url(url)
    assert SECRET not in str(caught.value)


def test_other_things_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="int"):
        storage_from_url(42)  # type: ignore[arg-type]
    assert not isinstance(42, Storage)
    assert not isinstance(42, icefloe.Storage)
