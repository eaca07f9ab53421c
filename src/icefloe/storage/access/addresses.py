"""Where an object store is and how to sign in: picklable, and its repr shows no secret."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.storage.access.credentials import (
    AnyAzureCredential,
    AnyAzureRefreshableCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
)
from icefloe.storage.attribution import user_agent
from icefloe.storage.keys import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from obstore.store import ObjectStore, RetryConfig

    from icefloe.storage.access.stores import S3Options
    from icefloe.storage.settings import EffectiveSettings

Kind: TypeAlias = Literal["s3", "gcs", "azure", "http"]
AnyCloudCredential: TypeAlias = AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None

# How long before they expire refreshable credentials are asked for again.
_REFRESH_AHEAD = timedelta(minutes=5)
_CLIENT_OPTIONS = frozenset({"allow_http", "timeout", "connect_timeout", "read_timeout"})


class Headers(msgspec.Struct, frozen=True):
    """Headers for the requests to a store, for all or only for those that read or write."""

    headers: dict[str, str] = {}
    read_headers: dict[str, str] = {}
    write_headers: dict[str, str] = {}

    def fields(self) -> dict[str, Any]:
        """As fields of an address."""
        return msgspec.structs.asdict(self)

    def __repr__(self) -> str:
        return "Headers(***)"


class StoreAddress(msgspec.Struct, frozen=True):
    """A prefix of a bucket of an object store."""

    kind: Kind
    bucket: str
    prefix: str
    location: str
    """URL, without secrets."""
    credentials: AnyCloudCredential = None
    config: dict[str, Any] = {}
    """Options of the store's client."""
    client: dict[str, Any] = {}
    """Options of the HTTP client."""
    headers: dict[str, str] = {}
    """Sent with each request; may hold a secret."""
    read_headers: dict[str, str] = {}
    """Sent with requests that read, over the others."""
    write_headers: dict[str, str] = {}
    """Sent with requests that write, over the others."""
    can_write: bool = True
    lists_in_order: bool = True

    def __repr__(self) -> str:
        return f"StoreAddress({self.location!r})"

    def identity(self) -> bytes | None:
        """A digest that is equal for the same place seen with the same credentials.

        The environment counts too, for credentials may come from it. None if some part of this
        cannot be told from others.
        """
        named = ("AWS_", "AZURE_", "GOOGLE_")
        environment = sorted(item for item in os.environ.items() if item[0].startswith(named))
        try:
            described = pickle.dumps((self, environment))
        except (pickle.PicklingError, TypeError, AttributeError):
            return None
        return hashlib.sha256(described).digest()

    @property
    def tells_writes_apart(self) -> bool:
        """Whether requests that write have other headers than those that read."""
        return self.read_headers != self.write_headers

    def login(self) -> dict[str, Any]:
        """Options that the tools of a cloud have for the user of this process."""
        from icefloe.storage.access import logins

        match self.credentials:
            case S3Credentials.FromEnv():
                return logins.aws_login()
            case GcsCredentials.FromEnv():
                return logins.gcs_login()
            case AzureCredentials.FromEnv():
                return logins.azure_login()
        return {}

    def connect(
        self,
        settings: EffectiveSettings,
        login: Mapping[str, Any],
        *,
        retries: bool,
        writes: bool = False,
    ) -> ObjectStore:
        """Make a client of the store.

        Args:
            settings: Timeouts and backoff.
            login: What `login` returned, which may have taken seconds: all clients share it.
            writes: Whether it is for requests that write.
            retries: Whether the client may send a request again. Not for conditional writes: what
                it then reports is the answer to the last attempt, which hides the first.
        """
        from obstore import store

        client: Any = {
            "user_agent": user_agent(),
            "connect_timeout": timedelta(seconds=settings.connect_timeout_seconds),
            "read_timeout": timedelta(seconds=settings.read_timeout_seconds),
            "timeout": timedelta(seconds=settings.attempt_timeout_seconds),
            **self.client,
        }
        headers = {**self.headers, **(self.write_headers if writes else self.read_headers)}
        if headers:
            client["default_headers"] = headers
        client = {name: value for name, value in client.items() if value is not None}
        retry = _retry(settings, retries=retries)
        options: dict[str, Any] = {"client_options": client, "retry_config": retry}
        if login.get("endpoint"):
            _check_endpoint(str(login["endpoint"]))
        if str(login.get("endpoint", "")).startswith("http://") and "endpoint" not in self.config:
            client["allow_http"] = True  # as the environment or the profile says
        if self.kind == "http":
            return store.HTTPStore(self.config["url"], **options)
        clients = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}
        client_type: Any = clients[self.kind]
        made: ObjectStore = client_type(
            self.bucket, **{**login, **self.config}, **_sign_in(self.credentials), **options
        )
        return made


def s3_address(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential,
    *,
    headers: Headers | None = None,
    can_write: bool = True,
) -> StoreAddress:
    """The address of a prefix on S3 or a compatible store."""
    config: dict[str, Any] = {}
    if options.checksum_algorithm is not None:
        config["checksum_algorithm"] = options.checksum_algorithm.supported()
    if options.region is not None:
        config["region"] = options.region
    if options.endpoint_url is not None:
        _check_endpoint(options.endpoint_url)
        config["endpoint"] = options.endpoint_url
    if options.requester_pays:
        config["request_payer"] = True
    client: dict[str, Any] = {"allow_http": True} if options.allow_http else {}
    if options.network_stream_timeout_seconds is not None:
        seconds = options.network_stream_timeout_seconds
        client["read_timeout"] = timedelta(seconds=seconds) if seconds else None
    return StoreAddress(
        kind="s3",
        bucket=_check_bucket(bucket),
        prefix=_check_prefix(prefix),
        location=_location("s3", bucket, prefix, endpoint_url=options.endpoint_url),
        credentials=credentials,
        config=config,
        client=client,
        **(headers or Headers()).fields(),
        can_write=can_write,
        # Directory buckets list in no order.
        lists_in_order=not bucket.endswith("--x-s3"),
    )


def gcs_address(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential,
    config: Mapping[str, str] | None = None,
    headers: Headers | None = None,
) -> StoreAddress:
    """The address of a prefix on Google Cloud Storage."""
    options, client = _split_options(config)
    base_url = options.get("base_url")
    if base_url is not None:
        _check_endpoint(base_url)
    return StoreAddress(
        kind="gcs",
        bucket=_check_bucket(bucket),
        prefix=_check_prefix(prefix),
        location=_location("gs", bucket, prefix, base_url=base_url),
        credentials=credentials,
        config=options,
        client=client,
        **(headers or Headers()).fields(),
        # Its client asks the machine's metadata service for a token when it writes unsigned.
        can_write=not isinstance(credentials, GcsCredentials.Anonymous),
    )


def azure_address(
    account: str,
    container: str,
    prefix: str | None,
    credentials: AnyAzureCredential,
    config: Mapping[str, str] | None = None,
) -> StoreAddress:
    """The address of a prefix on Azure Blob Storage."""
    options, client = _split_options(config)
    endpoint = options.get("endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    return StoreAddress(
        kind="azure",
        bucket=_check_bucket(container),
        prefix=_check_prefix(prefix),
        location=_location(
            "az", f"{_check_bucket(account)}/{container}", prefix, endpoint=endpoint
        ),
        credentials=credentials,
        config={"account_name": account, **options},
        client=client,
    )


def http_address(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> StoreAddress:
    """The address of a folder on a web server."""
    url = split_url(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInputError("expected a URL that starts with http:// or https:// and a host")
    _check_port(url)
    options, client = _split_options(opts)
    if options:
        raise InvalidInputError(f"unknown options {sorted(options)} of a web server")
    sent = dict(headers or {})
    if url.username is not None or url.password is not None:
        # The client would show these in its errors; a header it does not.
        pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}".encode()
        sent["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    host = url.netloc.rpartition("@")[2]
    # A query could be a signature, and the client would drop it anyway.
    if url.query or url.fragment:
        raise InvalidInputError("the address of a web server cannot have a query or a fragment")
    address = urlunsplit((url.scheme, host, url.path.rstrip("/"), "", ""))
    return StoreAddress(
        kind="http",
        bucket=host,
        prefix="",
        location=address,
        config={"url": address},
        client=client,
        headers=sent,
        can_write=False,
    )


def _retry(settings: EffectiveSettings, *, retries: bool) -> RetryConfig:
    return {
        "max_retries": settings.max_tries - 1 if retries else 0,
        "retry_timeout": timedelta(seconds=settings.operation_timeout_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=settings.initial_backoff_seconds),
            "max_backoff": timedelta(seconds=settings.max_backoff_seconds),
            "base": 2,
        },
    }


def _split_options(config: Mapping[str, str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide given options into those of the store's client and those of the HTTP client."""
    options: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in (config or {}).items():
        if name in _CLIENT_OPTIONS:
            client[name] = str(value).lower() == "true" if name == "allow_http" else value
        else:
            options[name] = value
    return options, client


def _check_bucket(name: str) -> str:
    if not name or "/" in name or "@" in name or "?" in name:
        raise InvalidInputError(f"{name!r} is no name of a bucket, container or account")
    return name


def _check_prefix(prefix: str | None) -> str:
    trimmed = (prefix or "").strip("/")
    return check_key(trimmed) if trimmed else ""


def _location(scheme: str, bucket: str, prefix: str | None, **options: str | None) -> str:
    named = f"{bucket}/{(prefix or '').strip('/')}".rstrip("/")
    try:
        path = quote(named, safe="/~!$&'()*+,;=:@")
        query = urlencode({name: value for name, value in options.items() if value is not None})
    except UnicodeEncodeError:
        raise InvalidInputError(f"the place {named!r} or its address is no Unicode text") from None
    return f"{scheme}://{path}{'?' if query else ''}{query}"


def split_url(url: str) -> SplitResult:
    """The parts of a URL; raises InvalidInputError if it has none."""
    try:
        url.encode()  # raises for halves of surrogate pairs, which no URL can have
        return urlsplit(url)
    except ValueError:
        # Neither shown nor quoted from Python's error: text before an @ may be a password.
        raise InvalidInputError(
            "expected a URL such as s3://bucket/prefix or https://server/path; the part between "
            "// and the next / is not valid"
        ) from None


def _check_endpoint(url: str) -> None:
    parts = split_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:  # the client would panic
        shown = url.rpartition("@")[2][:100]
        raise InvalidInputError(
            f"an endpoint is a URL such as http://127.0.0.1:9000, found {shown!r}: it begins with "
            "http:// or https://"
        )
    if "@" in parts.netloc:
        raise InvalidInputError("an endpoint must not hold credentials (user:password@)")
    _check_port(parts)


def _check_port(parts: SplitResult) -> None:
    try:
        _ = parts.port  # the client would panic
    except ValueError as error:
        raise InvalidInputError(f"the address of a server has a bad port: {error}") from None


# Credentials reach the client through a provider, even if static: it neither mixes those with what
# the environment happens to hold, nor keeps them in its configuration.


class _FixedProvider:
    """Always gives the same credential."""

    def __init__(self, **credential: str | None) -> None:
        self._credential = credential

    def __call__(self) -> Any:
        # Nothing can renew it; the store says when it has expired.
        return {**self._credential, "expires_at": None}


class _RefreshingProvider:
    """Gives what the user's own function returns."""

    def __init__(
        self,
        source: S3Credentials.Refreshable
        | GcsCredentials.Refreshable
        | AzureCredentials.Refreshable,
    ) -> None:
        self._source = source

    def __call__(self) -> Any:
        fresh = self._current()
        expires_at = fresh.expires_after
        if expires_at is not None and expires_at.tzinfo is None:
            expires_at = expires_at.replace(tzinfo=UTC)
        return {**_fields_of(fresh), "expires_at": expires_at}

    def _current(self) -> Any:
        current = self._source.current
        if current is not None and (
            current.expires_after is None
            or current.expires_after > datetime.now(UTC) + _REFRESH_AHEAD
        ):
            return current
        # The user's own function, which came as an argument of this process or of the one that
        # pickled this storage; never anything that was read from a repository.
        fresh = pickle.loads(self._source.pickled_function)()
        expected = _REFRESHED[type(self._source)]
        if not isinstance(fresh, expected):
            raise InvalidInputError(
                f"get_credentials must return {_names(expected)}, not {type(fresh).__name__}"
            )
        return fresh


_REFRESHED: dict[type, Any] = {
    S3Credentials.Refreshable: S3StaticCredentials,
    GcsCredentials.Refreshable: GcsBearerCredential,
    AzureCredentials.Refreshable: AnyAzureRefreshableCredential,
}
"""What the function of refreshable credentials has to return."""

_FIXED: dict[type, str] = {
    GcsStaticCredentials.BearerToken: "token",
    AzureStaticCredentials.BearerToken: "token",
    AzureStaticCredentials.AccessKey: "access_key",
    AzureStaticCredentials.SasToken: "sas_token",
}
"""Secrets that reach the client through a provider, with the name that it has for each."""

_OPTIONS: dict[type, str] = {
    GcsStaticCredentials.ServiceAccount: "service_account",
    GcsStaticCredentials.ServiceAccountKey: "service_account_key",
    GcsStaticCredentials.ApplicationCredentials: "application_credentials",
}
"""Secrets that the client takes as options only."""


def _names(expected: Any) -> str:
    return " or ".join(each.__qualname__ for each in get_args(expected) or (expected,))


def _fields_of(
    credential: S3StaticCredentials | GcsBearerCredential | AnyAzureRefreshableCredential,
) -> dict[str, str | None]:
    if isinstance(credential, S3StaticCredentials):
        return {
            "access_key_id": credential.access_key_id,
            "secret_access_key": credential.secret_access_key,
            "token": credential.session_token,
        }
    if isinstance(credential, AzureRefreshableCredential.AccessKey):
        return {"access_key": credential.key}
    if isinstance(credential, AzureRefreshableCredential.SasToken):
        return {"sas_token": credential.token}
    return {"token": credential.bearer}


def _sign_in(credentials: AnyCloudCredential) -> dict[str, Any]:
    """The arguments of a client that make it sign its requests with some credentials."""
    match credentials:
        case S3Credentials.Anonymous() | GcsCredentials.Anonymous() | AzureCredentials.Anonymous():
            return {"skip_signature": True}
        case (
            S3Credentials.Refreshable()
            | GcsCredentials.Refreshable()
            | AzureCredentials.Refreshable()
        ):
            return {"credential_provider": _RefreshingProvider(credentials)}
        case S3Credentials.Static(pair):
            return {"credential_provider": _FixedProvider(**_fields_of(pair))}
        case GcsCredentials.Static(secret) | AzureCredentials.Static(secret):
            [text] = msgspec.structs.astuple(secret)
            if type(secret) in _OPTIONS:
                return {_OPTIONS[type(secret)]: text}
            return {"credential_provider": _FixedProvider(**{_FIXED[type(secret)]: text})}
    return {}
