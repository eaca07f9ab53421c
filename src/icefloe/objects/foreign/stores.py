"""From the description of a store and a credential to a source that reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.objects.foreign.local import LocalSource
from icefloe.storage.access.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.storage.access.stores import AnyObjectStoreConfig, ObjectStoreConfig
from icefloe.storage.settings import StorageRetriesSettings, StorageSettings

if TYPE_CHECKING:
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.config.locations import Location
    from icefloe.objects.foreign.source import VirtualSource
    from icefloe.storage.access.addresses import StoreAddress
    from icefloe.storage.access.stores import S3Options

_TIGRIS_ENDPOINT = "https://t3.storage.dev"
_HARMLESS_OPTIONS = frozenset({"account", "timeout", "connect_timeout", "read_timeout"})
"""Options that change nothing about who is asked."""

_HTTP_OPTIONS = frozenset({"allow_http", "timeout", "connect_timeout", "read_timeout"})
_FEWER_TRIES = StorageSettings(retries=StorageRetriesSettings(max_tries=6, max_backoff_ms=2_000))
"""For servers that are not a provider's: a redirect that is not followed looks like an outage."""

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|)")
_DEFAULT_TIMEOUT_SECONDS = 60.0


def check_credential(container: VirtualChunkContainer, credential: Any) -> Any:
    """The credential for a container's store, unwrapped. None means unsigned requests.

    Raises InvalidInputError if it is for another kind of store.
    """
    if isinstance(credential, Credentials.S3 | Credentials.Gcs | Credentials.Azure):
        credential = credential.credentials
    match container.store:
        case ObjectStoreConfig.S3() | ObjectStoreConfig.S3Compatible() | ObjectStoreConfig.Tigris():
            expected: Any = AnyS3Credential
            anonymous: Any = S3Credentials.Anonymous()
        case ObjectStoreConfig.Gcs():
            expected, anonymous = AnyGcsCredential, GcsCredentials.Anonymous()
        case ObjectStoreConfig.Azure():
            expected, anonymous = AnyAzureCredential, AzureCredentials.Anonymous()
        case _:
            expected, anonymous = None, None
    if credential is None:
        return anonymous
    if expected is None or not isinstance(credential, expected):
        msg = (
            f"the credential for {container.url_prefix} is a {type(credential).__qualname__}, "
            f"which does not fit its store {type(container.store).__name__}; give a fitting one, "
            "or None where none is needed"
        )
        raise InvalidInputError(msg)
    return credential


def custom_endpoint(store: AnyObjectStoreConfig) -> str | None:
    """The server that a description sends readers to, if it is not the provider's own."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return options.endpoint_url
        case ObjectStoreConfig.Tigris(options):
            return options.endpoint_url
        case ObjectStoreConfig.Gcs(options) | ObjectStoreConfig.Azure(options):
            others = sorted(set(options or {}) - _HARMLESS_OPTIONS)
            return f"a place that these options give: {', '.join(others)}" if others else None
        case _:
            return None  # the prefix itself says where


def open_source(
    container: VirtualChunkContainer, place: Location, credential: Any
) -> VirtualSource:
    """A source for the objects below a container."""
    match container.store:
        case ObjectStoreConfig.LocalFileSystem():
            return LocalSource(place)
        case ObjectStoreConfig.Http(options):
            from icefloe.objects.foreign.http import HttpSource

            return HttpSource(place, _timeout(container.url_prefix, options or {}))
        case store:
            return _object_source(store, place.host, credential)


def _object_source(store: AnyObjectStoreConfig, bucket: str, credential: Any) -> VirtualSource:
    from icefloe.objects.foreign.objects import ObjectSource

    place = _place(store, bucket, credential)
    hosts = _hosts_of_endpoints(store)
    if not hosts:
        return ObjectSource(place)
    return ObjectSource(_without_redirects(place, hosts), _FEWER_TRIES)


def _place(store: AnyObjectStoreConfig, bucket: str, credential: Any) -> StoreAddress:
    from icefloe.storage.access.addresses import azure_address, gcs_address, s3_address

    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return s3_address(options, bucket, None, credential, can_write=False)
        case ObjectStoreConfig.Tigris(options):
            options = _with_tigris_endpoint(options)
            return s3_address(options, bucket, None, credential, can_write=False)
        case ObjectStoreConfig.Gcs(options):
            return gcs_address(bucket, None, credential, options)
        case ObjectStoreConfig.Azure(options):
            others = dict(options or {})
            account = others.pop("account", None)
            if account is None:
                msg = f"the container of az://{bucket}/ needs the option 'account'"
                raise InvalidInputError(msg)
            return azure_address(account, bucket, None, credential, others)
        case _:
            msg = f"virtual chunks cannot be read from {type(store).__name__}"
            raise InvalidInputError(msg)


def _hosts_of_endpoints(store: AnyObjectStoreConfig) -> set[str]:
    """The servers that a description names itself."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            addresses = [options.endpoint_url or ""]
        case ObjectStoreConfig.Gcs(options) | ObjectStoreConfig.Azure(options):
            addresses = list((options or {}).values())
        case _:
            addresses = []
    return {host for address in addresses if (host := urlsplit(address).hostname) is not None}


def _without_redirects(place: StoreAddress, hosts: set[str]) -> StoreAddress:
    """The place with a client that reaches no other servers.

    The client follows every redirect and has no option against it. So what is not for the given
    servers is sent to a proxy that does not exist. The provider's own servers need no such guard,
    and where the machine itself has a proxy, it is that one's task.
    """
    from urllib.request import getproxies

    if getproxies().keys() & {"http", "https", "all"}:
        return place
    guard = {"proxy_url": "http://127.0.0.1:0", "proxy_excludes": ",".join(sorted(hosts))}
    return msgspec.structs.replace(place, client={**place.client, **guard})


def _with_tigris_endpoint(options: S3Options) -> S3Options:
    return msgspec.structs.replace(options, endpoint_url=options.endpoint_url or _TIGRIS_ENDPOINT)


def _timeout(prefix: str, options: dict[str, str]) -> float:
    """Seconds to wait for a web server, of an option such as `30s` or `500ms`."""
    unknown = sorted(set(options) - _HTTP_OPTIONS)
    if unknown:
        msg = (
            f"the container {prefix} has options that icefloe does not know: {', '.join(unknown)}; "
            f"expected some of {', '.join(sorted(_HTTP_OPTIONS))}"
        )
        raise InvalidInputError(msg)
    text = options.get("read_timeout") or options.get("timeout")
    if text is None:
        return _DEFAULT_TIMEOUT_SECONDS
    match = _DURATION.fullmatch(text.strip())
    if not match:
        msg = f"a timeout is a duration such as 30s or 500ms, found {text!r}"
        raise InvalidInputError(msg)
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
