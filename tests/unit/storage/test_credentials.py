from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.storage.access import credentials as c
from icefloe.storage.access.factories import (
    azure_storage,
    gcs_storage,
    http_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

SECRET = "canary-secret"
LATER = datetime(2040, 1, 1, tzinfo=UTC)


def fetch_s3() -> c.S3StaticCredentials:
    return c.S3StaticCredentials("id", SECRET, expires_after=LATER)


def fetch_gcs() -> c.GcsBearerCredential:
    return c.GcsBearerCredential(SECRET, LATER)


def fetch_azure() -> c.AzureBearerCredential:
    return c.AzureBearerCredential(SECRET, LATER)


WITH_SECRETS = [
    c.S3StaticCredentials("id", SECRET),
    c.s3_credentials(access_key_id=SECRET, secret_access_key=SECRET, session_token=SECRET),
    c.s3_credentials(get_credentials=fetch_s3, scatter_initial_credentials=True),
    c.gcs_credentials(service_account_file=SECRET),
    c.gcs_credentials(service_account_key=SECRET),
    c.gcs_credentials(application_credentials=SECRET),
    c.gcs_credentials(bearer_token=SECRET),
    c.gcs_credentials(get_credentials=fetch_gcs, scatter_initial_credentials=True),
    c.GcsBearerCredential(SECRET),
    c.azure_credentials(access_key=SECRET),
    c.azure_credentials(sas_token=SECRET),
    c.azure_credentials(bearer_token=SECRET),
    c.azure_credentials(get_credentials=fetch_azure, scatter_initial_credentials=True),
]


@pytest.mark.parametrize("credential", WITH_SECRETS, ids=lambda value: type(value).__qualname__)
def test_no_secret_is_printed(credential: Any) -> None:
    wrapped = credential
    if not isinstance(credential, c.S3StaticCredentials | c.GcsBearerCredential):
        wrapped = c.containers_credentials({"s3://bucket/": credential})
    for value in (credential, [credential], wrapped):
        assert SECRET not in repr(value)
        assert SECRET not in str(value)
        assert SECRET not in f"{value}"
    assert pickle.loads(pickle.dumps(credential)) == credential


def test_the_kind_follows_from_the_arguments() -> None:
    assert c.s3_credentials() == c.S3Credentials.FromEnv()
    assert c.s3_credentials(from_env=True) == c.s3_from_env_credentials()
    assert c.s3_credentials(anonymous=True) == c.s3_anonymous_credentials()
    static = c.s3_static_credentials(access_key_id="a", secret_access_key="b", session_token="c")
    assert static.credentials == c.S3StaticCredentials("a", "b", "c")
    assert c.s3_credentials(access_key_id="a", secret_access_key="b", session_token="c") == static
    assert isinstance(c.s3_credentials(get_credentials=fetch_s3), c.S3Credentials.Refreshable)
    assert c.gcs_credentials() == c.gcs_from_env_credentials()
    assert c.gcs_credentials(anonymous=True) == c.gcs_anonymous_credentials()
    assert c.azure_credentials() == c.azure_from_env_credentials()
    assert c.azure_credentials(anonymous=True) == c.azure_anonymous_credentials()


@pytest.mark.parametrize(
    "make",
    [
        lambda: c.s3_credentials(access_key_id=SECRET),
        lambda: c.s3_credentials(access_key_id=SECRET, secret_access_key=SECRET, anonymous=True),
        lambda: c.s3_credentials(access_key_id=SECRET, secret_access_key=SECRET, from_env=True),
        lambda: c.s3_credentials(anonymous=True, get_credentials=fetch_s3),
        lambda: c.s3_credentials(from_env=False),
        lambda: c.gcs_credentials(bearer_token=SECRET, service_account_key=SECRET),
        lambda: c.gcs_credentials(bearer_token=SECRET, anonymous=True),
        c.gcs_static_credentials,
        lambda: c.azure_credentials(access_key=SECRET, sas_token=SECRET),
        c.azure_static_credentials,
        lambda: c.containers_credentials({"s3://bucket/": SECRET}),  # type: ignore[dict-item]
    ],
)
def test_conflicting_arguments_are_refused_without_repeating_secrets(
    make: Callable[..., Any],
) -> None:
    with pytest.raises(ValueError, match=r"conflicting|needs both|expected") as caught:
        make()
    assert isinstance(caught.value, InvalidInputError)
    assert SECRET not in str(caught.value)


def test_container_credentials_are_wrapped_by_kind() -> None:
    wrapped = c.containers_credentials(
        {
            "s3://a/": c.s3_anonymous_credentials(),
            "gs://a/": c.gcs_anonymous_credentials(),
            "az://a/": c.azure_anonymous_credentials(),
            "file:///a/": None,
        }
    )
    assert wrapped == {
        "s3://a/": c.Credentials.S3(c.s3_anonymous_credentials()),
        "gs://a/": c.Credentials.Gcs(c.gcs_anonymous_credentials()),
        "az://a/": c.Credentials.Azure(c.azure_anonymous_credentials()),
        "file:///a/": None,
    }


STORAGES = [
    s3_storage(bucket="b", prefix="p", access_key_id="id", secret_access_key=SECRET),
    s3_storage(bucket="b", prefix="p", get_credentials=fetch_s3),
    tigris_storage(
        bucket="b", prefix="p", region="r", access_key_id="id", secret_access_key=SECRET
    ),
    r2_storage(prefix="b/p", account_id="acc", access_key_id="id", secret_access_key=SECRET),
    gcs_storage(bucket="b", prefix="p", bearer_token=SECRET),
    azure_storage(account="a", container="c", prefix="p", sas_token=SECRET),
    http_storage(f"https://user:{SECRET}@host/path"),
]


@pytest.mark.parametrize("storage", STORAGES, ids=lambda storage: storage.location)
def test_a_storage_shows_no_secret(storage: Storage) -> None:
    for text in (repr(storage), str(storage), storage.location, repr(storage.__getstate__())):
        assert SECRET not in text
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert repr(copy) == repr(storage)


def test_a_pickle_with_refreshable_credentials_holds_no_secret() -> None:
    storage = s3_storage(bucket="b", prefix="p", get_credentials=fetch_s3)
    assert SECRET.encode() not in pickle.dumps(storage)


def test_scattered_credentials_travel() -> None:
    storage = s3_storage(
        bucket="b", prefix="p", get_credentials=fetch_s3, scatter_initial_credentials=True
    )
    assert SECRET.encode() in pickle.dumps(storage)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tigris_storage(bucket="b", prefix="p", anonymous=True),
        lambda: r2_storage(bucket="b", prefix="p", anonymous=True),
        lambda: r2_storage(account_id="acc", anonymous=True),
        lambda: s3_storage(bucket="", prefix="p", anonymous=True),
        lambda: s3_storage(bucket="a/b", prefix="p", anonymous=True),
        lambda: s3_storage(bucket="b", prefix="a//b", anonymous=True),
        lambda: http_storage("ftp://host"),
        lambda: http_storage("https://host", {"unknown": "option"}),
    ],
)
def test_impossible_places_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_places() -> None:
    assert r2_storage(prefix="b/p/q", account_id="acc", anonymous=True).location == (
        "s3://b/p/q?endpoint_url=https%3A%2F%2Facc.r2.cloudflarestorage.com"
    )
    weak = tigris_storage(bucket="b", prefix=None, use_weak_consistency=True, anonymous=True)
    assert not weak.capabilities.can_write
    assert s3_storage(bucket="b", prefix="/p/", anonymous=True).location == "s3://b/p"
    assert s3_storage(bucket="b", prefix=None, anonymous=True).location == "s3://b"
