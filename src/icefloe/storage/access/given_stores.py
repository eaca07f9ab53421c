"""Storages out of stores of obstore that a caller has made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.storage.access.addresses import StoreAddress

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

_KINDS = {"S3Store": ("s3", "s3"), "GCSStore": ("gcs", "gs"), "AzureStore": ("azure", "az")}
"""Of each class: the kind of store and the scheme of its URLs."""
_NAMES = ("bucket", "container_name", "container")


def storage_from_obstore(store: Any) -> Storage:
    """Make a storage at the place of a store of obstore, with its options and credentials.

    Its settings for retries are not taken over: icefloe sends requests again itself, so that it
    knows which of several attempts was answered.
    """
    from icefloe.storage.access.factories import http_storage, local_filesystem_storage
    from icefloe.storage.object_store import ObjectStorage

    name = type(store).__name__
    if name == "LocalStore":
        if store.prefix is None:
            raise InvalidInputError("a LocalStore needs a prefix, which is the repository's folder")
        return local_filesystem_storage(store.prefix)
    if name == "HTTPStore":
        return http_storage(store.url, store.client_options)
    if name not in _KINDS:
        raise InvalidInputError(
            f"a {name} of obstore cannot be opened again by others; use in_memory_storage()"
        )
    kind, scheme = _KINDS[name]
    config: dict[str, Any] = dict(store.config)
    bucket = next(config.pop(each) for each in _NAMES if each in config)
    provider = getattr(store, "credential_provider", None)
    if provider is not None:
        config["credential_provider"] = provider
    prefix = str(store.prefix or "").strip("/")
    account = f"{config['account_name']}/" if kind == "azure" and "account_name" in config else ""
    endpoint = config.get("endpoint")
    location = f"{scheme}://{account}{bucket}/{prefix}".rstrip("/")
    return ObjectStorage(
        StoreAddress(
            kind=kind,  # type: ignore[arg-type]
            bucket=bucket,
            prefix=prefix,
            location=f"{location}?endpoint_url={endpoint}" if endpoint else location,
            config=config,
            client=dict(store.client_options or {}),
            lists_in_order=not bucket.endswith("--x-s3"),
        )
    )
