"""Storages behind an address that redirects to where a repository is."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urljoin

from icefloe.errors import InvalidInputError, StorageError, StorageUnreachableError
from icefloe.storage.access.addresses import split_url
from icefloe.storage.access.logins import AWS_VARIABLES, AZURE_VARIABLES, GCS_VARIABLES, are_set
from icefloe.storage.access.url import storage_from_url

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

_MAX_HOPS = 10
_SECONDS = 10
_HTTP = {"http+icechunk": "http", "https+icechunk": "https"}
"""Schemes by which the answer says that a web server itself has the repository."""
_CLOUDS = frozenset({"s3", "gs", "gcs", "az", "azure"})
_ENDPOINTS = frozenset({"endpoint_url", "endpoint", "base_url", "allow_http"})
"""Options by which an address names a server."""


def redirect_storage(base_url: str) -> Storage:
    """Create a read-only storage at the location that a web address redirects to.

    Sends a request now, and follows redirects until one leads to `s3://…`, `gs://…`, `az://…`,
    `http+icechunk://…` or `https+icechunk://…`. Uses the credentials of the environment; none if
    there are none, or if the redirect names its own endpoint.

    Raises:
        StorageError: The server does not respond, or does not redirect to a storage.
    """
    import urllib3

    client = urllib3.PoolManager(timeout=_SECONDS, retries=False)
    address = base_url
    if split_url(address).scheme not in ("http", "https"):
        raise InvalidInputError("expected an address that starts with http:// or https://")
    for _ in range(_MAX_HOPS):
        try:
            answer = client.request("GET", address, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise StorageUnreachableError(
                f"{_shown(address)} cannot be reached: {type(error).__name__}. Check the address "
                "and the network",
                _shown(address),
            ) from error
        target = answer.headers.get("Location")
        if not 300 <= answer.status < 400 or not target:
            raise StorageError(
                f"{_shown(address)} answers {answer.status} and redirects nowhere; the address of "
                "a repository on a web server is for http_storage"
            )
        address = urljoin(address, target)
        found = _storage(address)
        if found is not None:
            return found
    raise StorageError(f"{_shown(base_url)} redirects more than {_MAX_HOPS} times")


def _storage(address: str) -> Storage | None:
    """The storage that an address names; None if it is one more web address."""
    from icefloe.storage.object_store import ObjectStorage

    url = split_url(address)
    if url.scheme in _HTTP:
        return storage_from_url(url._replace(scheme=_HTTP[url.scheme]).geturl())
    if url.scheme in ("http", "https"):
        return None
    # Never a local file or another memory: the text comes from a server.
    if url.scheme not in _CLOUDS:
        raise StorageError(
            f"the address redirects to {url.scheme}://, which is none of {sorted(_CLOUDS)} and "
            f"{sorted(_HTTP)}"
        )
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    if "requester_pays" in options:
        raise StorageError(
            "the address redirects to a bucket whose readers pay (requester_pays): open that one "
            "with s3_storage, if you want to"
        )
    if options.keys() & _ENDPOINTS or not _can_sign(url.scheme):
        # Credentials are for the cloud, and not for a server that somebody else names.
        options["anonymous"] = "true"
    storage = storage_from_url(url._replace(query=urlencode(options)).geturl())
    assert isinstance(storage, ObjectStorage)
    return storage.as_read_only()


def _can_sign(scheme: str) -> bool:
    variables = {"s3": AWS_VARIABLES, "gs": GCS_VARIABLES, "gcs": GCS_VARIABLES}
    return are_set(variables.get(scheme, AZURE_VARIABLES))


def _shown(address: str) -> str:
    """An address without what may be a secret."""
    url = split_url(address)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
