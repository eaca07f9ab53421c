"""Files carry what they are as object metadata too, on every object store (R2-14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe import Repository
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.testing.generations import make, picture
from tests.endpoints.fault_proxy import fault_proxy

if TYPE_CHECKING:
    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import GcsEndpoint

_LABELS = {
    ObjectKind.SNAPSHOT: "snapshot",
    ObjectKind.MANIFEST: "manifest",
    ObjectKind.ATTRIBUTES: "attributes",
    ObjectKind.TRANSACTION_LOG: "transaction-log",
}


_PREFIXES = {"s3_endpoint": "x-amz-meta-", "gcs_endpoint": "x-goog-meta-"}


@pytest.mark.endpoint
@pytest.mark.parametrize("name", ["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_every_metadata_file_says_what_it_is(
    name: str, spec_version: int, request: pytest.FixtureRequest
) -> None:
    # R2-14
    endpoint = request.getfixturevalue(name)
    prefix = _PREFIXES.get(name, "x-ms-meta-")
    with fault_proxy(endpoint.endpoint_url) as proxy:
        storage: Storage = endpoint.storage(endpoint_url=proxy.url)
        repo = make(storage, {"generation": "repository", "spec_version": spec_version})
    layout = repo._context.format.layout
    kinds: dict[ObjectKind, int] = {}
    for path, headers in proxy.written.items():
        # What was sent: the double of S3 loses names with an underscore.
        sent = {
            header.removeprefix(prefix): value
            for header, value in headers.items()
            if header.startswith(prefix)
        }
        named = layout.parse("/".join(path.split("/")[-2:]))
        if named is None or named.kind is ObjectKind.CHUNK_FILE:
            assert sent == {}, path
            continue
        kinds[named.kind] = kinds.get(named.kind, 0) + 1
        assert sent["ic_file_type"] == _LABELS[named.kind], path
        assert sent["ic_spec_ver"] == str(spec_version), path
        assert sent["ic_comp_alg"] in {"zstd", "none"}, path
        assert sent["ic_client"], path
    assert kinds.keys() == _LABELS.keys()
    assert kinds[ObjectKind.SNAPSHOT] == 2  # the first one is created under a condition


@pytest.mark.endpoint
@pytest.mark.parametrize("name", ["gcs_endpoint", "azure_endpoint"])
def test_the_first_snapshot_keeps_it(name: str, request: pytest.FixtureRequest) -> None:
    # R2-14
    storage: Storage = request.getfixturevalue(name).storage()
    layout = Repository.create(storage)._context.format.layout
    kept = storage.get_attributes(layout.snapshot(FIRST_SNAPSHOT_ID))
    assert kept["ic_file_type"] == "snapshot"


@pytest.mark.endpoint
def test_it_is_not_needed_to_read(gcs_endpoint: GcsEndpoint) -> None:
    # R2-14
    storage = gcs_endpoint.storage()
    make(storage, {"generation": "repository"})
    expected = picture(storage)
    for info in list(storage.list()):
        storage.put(info.key, storage.get(info.key))
    assert {key for info in storage.list() for key in storage.get_attributes(info.key)} == set()
    assert picture(storage) == expected
    assert Repository.open(storage).verify().is_clean
