"""Virtual chunk containers: which prefixes fit which stores (api-facts 39, H-46)."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe.config import RepositoryConfig, VirtualChunkContainer, to_json
from icefloe.errors import InvalidInputError
from icefloe.storage.access.stores import (
    ObjectStoreConfig,
    S3Options,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)

TIGRIS = ObjectStoreConfig.Tigris(S3Options())


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket/", s3_store()),
        ("s3://bucket/some/folder/", s3_store(s3_compatible=True)),
        ("tigris://bucket/", TIGRIS),
        ("s3://bucket/", TIGRIS),
        ("gs://bucket/", gcs_store()),
        ("gcs://bucket/", gcs_store({})),
        ("az://container/", azure_store(account="someone")),
        ("azure://container/", azure_store(account="someone")),
        ("abfs://container/", azure_store(account="someone")),
        ("http://example.org/", http_store()),
        ("https://example.org:8443/data/", http_store()),
        ("file:///data/", local_filesystem_store("/data")),
    ],
)
def test_a_fitting_prefix_is_taken(prefix: str, store: Any) -> None:
    config = RepositoryConfig()
    container = VirtualChunkContainer(prefix, store)

    config.set_virtual_chunk_container(container)

    assert config.virtual_chunk_containers == {prefix: container}
    assert config.get_virtual_chunk_container(prefix) == container
    assert config.get_virtual_chunk_container("s3://other/") is None


@pytest.mark.parametrize(
    ("prefix", "store", "message"),
    [
        ("s3://bucket", s3_store(), "must end in a /"),
        ("file:///data", local_filesystem_store("/data"), "must end in a /"),
        ("", s3_store(), "must end in a /"),
        ("s3://", s3_store(), "must include a bucket"),
        ("s3:///", s3_store(), "must include a bucket"),
        ("gs://bucket/", s3_store(), "does not fit its store S3: expected s3://"),
        ("http://bucket/", s3_store(), "does not fit"),
        ("file:///data/", s3_store(), "does not fit"),
        ("s3://bucket/", gcs_store(), "expected gcs:// or gs://"),
        ("memory://x/", ObjectStoreConfig.InMemory(), "expected none"),
        ("file:///", local_filesystem_store("/"), "must include a path"),
        ("file:///a/../", local_filesystem_store("/"), "must include a path"),
        ("file://server/share/", local_filesystem_store("/"), "name no host"),
        ("https://user:hunter2@example.org/", http_store(), "user name or password"),
        ("s3://bucket/?x/", s3_store(), "queries"),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused_when_it_is_used(
    prefix: str, store: Any, message: str
) -> None:
    container = VirtualChunkContainer(prefix, store)
    config = RepositoryConfig()

    with pytest.raises(ValueError, match=message):
        config.set_virtual_chunk_container(container)

    assert config.virtual_chunk_containers is None
    config.virtual_chunk_containers = {prefix: container}
    with pytest.raises(InvalidInputError, match=message):
        config.effective()
    with pytest.raises(InvalidInputError, match=message):
        to_json(config)


def test_setting_a_container_again_replaces_it() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store("eu-west-1")))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store()))
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store("us-east-1")))

    assert config.virtual_chunk_containers.keys() == {"s3://a/", "s3://b/"}
    assert config.get_virtual_chunk_container("s3://a/").store.options.region == "us-east-1"


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        ({"s3://a/": VirtualChunkContainer("s3://b/", s3_store())}, "go by their url_prefix"),
        (
            {
                "s3://a/x/": VirtualChunkContainer("s3://a/x/", s3_store()),
                "s3://a//x/": VirtualChunkContainer("s3://a//x/", s3_store()),
            },
            "the same place",
        ),
        (
            {
                "s3://a/": VirtualChunkContainer("s3://a/", s3_store(), "data"),
                "s3://b/": VirtualChunkContainer("s3://b/", s3_store(), "data"),
            },
            "the name 'data'",
        ),
        ({"s3://a/": VirtualChunkContainer("s3://a/", s3_store(), "a/b")}, "found 'a/b'"),
    ],
)
def test_containers_that_contradict_each_other_are_refused(
    containers: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RepositoryConfig(virtual_chunk_containers=containers).effective()


@pytest.mark.parametrize(
    "option",
    ["azure_storage_account_key", "SAS_TOKEN", "bearer_token", "client_secret", "password"],
)
def test_secrets_among_the_options_are_refused_and_not_shown(option: str) -> None:
    store = azure_store(account="someone", config={option: "hunter2"})
    container = VirtualChunkContainer("az://container/", store)
    config = RepositoryConfig(virtual_chunk_containers={"az://container/": container})

    with pytest.raises(InvalidInputError, match="looks like a secret") as error:
        to_json(config)

    assert "hunter2" not in str(error.value)
    assert "hunter2" not in repr(config)
