"""Credentials of object stores: three clouds, each with the same four ways to sign requests.

The classes and functions have the names and arguments of the official package. The ways are
`FromEnv`, `Anonymous`, `Static` and `Refreshable`; the arguments decide between them (`_choose`).
No repr ever shows a secret.
"""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Credential(msgspec.Struct, frozen=True):
    """A value that may hold secrets; its repr shows no field."""

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({'***' if self.__struct_fields__ else ''})"


class S3StaticCredentials(_Credential, frozen=True):
    """A key pair of S3, with a session token if it is temporary.

    This is also what a `get_credentials` function for S3 returns.

    >>> import icefloe
    >>> icefloe.S3StaticCredentials("my-key-id", "my-secret")
    S3StaticCredentials(***)
    """

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None
    expires_after: datetime | None = None


class S3Credentials:
    """The ways to sign requests to S3 and compatible stores."""

    class FromEnv(_Credential, frozen=True):
        """Taken from environment variables, configuration files or the role of the machine."""

    class Anonymous(_Credential, frozen=True):
        """Requests are not signed."""

    class Static(_Credential, frozen=True):
        """A given key pair."""

        credentials: S3StaticCredentials

    class Refreshable(_Credential, frozen=True):
        """What a pickled function returns; it is called again before the credentials expire."""

        pickled_function: bytes
        current: S3StaticCredentials | None = None


class GcsBearerCredential(_Credential, frozen=True):
    """An access token of Google Cloud, and when it expires."""

    bearer: str
    expires_after: datetime | None = None


class GcsStaticCredentials:
    """The kinds of secrets for Google Cloud Storage."""

    class ServiceAccount(_Credential, frozen=True):
        """A file with a service account's key."""

        path: str

    class ServiceAccountKey(_Credential, frozen=True):
        """A service account's key, as JSON text."""

        key: str

    class ApplicationCredentials(_Credential, frozen=True):
        """A file with application default credentials."""

        path: str

    class BearerToken(_Credential, frozen=True):
        """An access token."""

        token: str


AnyGcsStaticCredential: TypeAlias = (
    GcsStaticCredentials.ServiceAccount
    | GcsStaticCredentials.ServiceAccountKey
    | GcsStaticCredentials.ApplicationCredentials
    | GcsStaticCredentials.BearerToken
)


class GcsCredentials:
    """The ways to sign requests to Google Cloud Storage."""

    class Anonymous(_Credential, frozen=True):
        """Requests are not signed."""

    class FromEnv(_Credential, frozen=True):
        """Taken from environment variables, configuration files or the role of the machine."""

    class Static(_Credential, frozen=True):
        """A given secret."""

        credentials: AnyGcsStaticCredential

    class Refreshable(_Credential, frozen=True):
        """What a pickled function returns; it is called again before the token expires."""

        pickled_function: bytes
        current: GcsBearerCredential | None = None


class AzureStaticCredentials:
    """The kinds of secrets for Azure Blob Storage."""

    class AccessKey(_Credential, frozen=True):
        """The key of the account."""

        key: str

    class SasToken(_Credential, frozen=True):
        """A shared access signature."""

        token: str

    class BearerToken(_Credential, frozen=True):
        """An access token."""

        token: str


AnyAzureStaticCredential: TypeAlias = (
    AzureStaticCredentials.AccessKey
    | AzureStaticCredentials.SasToken
    | AzureStaticCredentials.BearerToken
)


class AzureBearerCredential(_Credential, frozen=True):
    """An access token of Azure, and when it expires."""

    bearer: str
    expires_after: datetime | None = None


class AzureRefreshableCredential:
    """What a `get_credentials` function for Azure returns: a secret, and when it expires."""

    class AccessKey(_Credential, frozen=True):
        """The key of the account."""

        key: str
        expires_after: datetime | None = None

    class SasToken(_Credential, frozen=True):
        """A shared access signature."""

        token: str
        expires_after: datetime | None = None

    class BearerToken(_Credential, frozen=True):
        """An access token."""

        bearer: str
        expires_after: datetime | None = None


AnyAzureRefreshableCredential: TypeAlias = (
    AzureBearerCredential
    | AzureRefreshableCredential.AccessKey
    | AzureRefreshableCredential.SasToken
    | AzureRefreshableCredential.BearerToken
)


class AzureCredentials:
    """The ways to sign requests to Azure Blob Storage."""

    class FromEnv(_Credential, frozen=True):
        """Taken from environment variables or the identity of the machine."""

    class Anonymous(_Credential, frozen=True):
        """Requests are not signed."""

    class Static(_Credential, frozen=True):
        """A given secret."""

        credentials: AnyAzureStaticCredential

    class Refreshable(_Credential, frozen=True):
        """What a pickled function returns; it is called again before the token expires."""

        pickled_function: bytes
        current: AnyAzureRefreshableCredential | None = None


AnyS3Credential: TypeAlias = (
    S3Credentials.Static
    | S3Credentials.Anonymous
    | S3Credentials.FromEnv
    | S3Credentials.Refreshable
)
AnyGcsCredential: TypeAlias = (
    GcsCredentials.Anonymous
    | GcsCredentials.FromEnv
    | GcsCredentials.Static
    | GcsCredentials.Refreshable
)
AnyAzureCredential: TypeAlias = (
    AzureCredentials.FromEnv
    | AzureCredentials.Anonymous
    | AzureCredentials.Static
    | AzureCredentials.Refreshable
)


class Credentials:
    """A credential of any cloud, for containers of virtual chunks."""

    class HttpAccess(_Credential, frozen=True):
        """A web server may be read from, without credentials."""

    class LocalFileSystemAccess(_Credential, frozen=True):
        """Local files may be read."""

    class S3(_Credential, frozen=True):
        """For S3 and compatible stores."""

        credentials: AnyS3Credential

    class Gcs(_Credential, frozen=True):
        """For Google Cloud Storage."""

        credentials: AnyGcsCredential

    class Azure(_Credential, frozen=True):
        """For Azure Blob Storage."""

        credentials: AnyAzureCredential


HttpAccess = Credentials.HttpAccess
LocalFileSystemAccess = Credentials.LocalFileSystemAccess
AnyCredential: TypeAlias = Credentials.S3 | Credentials.Gcs | Credentials.Azure


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """Do not sign requests to S3."""
    return S3Credentials.Anonymous()


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Take the credentials for S3 from the environment."""
    return S3Credentials.FromEnv()


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Credentials.Static:
    """Sign requests to S3 with a key pair.

    >>> import icefloe
    >>> icefloe.s3_static_credentials(access_key_id="my-key-id", secret_access_key="my-secret")
    S3Credentials.Static(***)
    """
    return S3Credentials.Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> S3Credentials.Refreshable:
    """Sign requests to S3 with what `get_credentials` returns, called again before it expires.

    Args:
        get_credentials: A function that can be pickled, since every machine calls it.
        scatter_initial_credentials: Call it now and pickle its result with the storage, so that a
            thousand workers do not all call it at once. The pickle then holds a secret.
    """
    return S3Credentials.Refreshable(*_pickled(get_credentials, scatter_initial_credentials))


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """Make credentials for S3, of the kind that the arguments are of; without any, `from_env`.

    Raises:
        InvalidInputError: The arguments are of more than one kind, or half of a key pair.

    >>> import icefloe
    >>> icefloe.s3_credentials(anonymous=True)
    S3Credentials.Anonymous()
    """

    def key_pair() -> AnyS3Credential:
        if not access_key_id or not secret_access_key:
            raise InvalidInputError("s3_credentials needs both access_key_id and secret_access_key")
        return s3_static_credentials(
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            expires_after=expires_after,
        )

    secrets = (access_key_id, secret_access_key, session_token, expires_after)
    credentials: AnyS3Credential = _choose(
        "s3_credentials",
        S3Credentials,
        static=None if secrets == (None,) * 4 else ("a key pair", key_pair),
        anonymous=anonymous,
        from_env=from_env,
        refreshable=(get_credentials, scatter_initial_credentials),
    )
    return credentials


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """Do not sign requests to Google Cloud Storage."""
    return GcsCredentials.Anonymous()


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Take the credentials for Google Cloud Storage from the environment."""
    return GcsCredentials.FromEnv()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """Wrap the one secret that is given.

    >>> import icefloe
    >>> icefloe.gcs_static_credentials(bearer_token="my-token")
    GcsStaticCredentials.BearerToken(***)
    """
    secret: AnyGcsStaticCredential = _one_secret(
        "gcs_static_credentials",
        service_account_file=(GcsStaticCredentials.ServiceAccount, service_account_file),
        service_account_key=(GcsStaticCredentials.ServiceAccountKey, service_account_key),
        application_credentials=(
            GcsStaticCredentials.ApplicationCredentials,
            application_credentials,
        ),
        bearer_token=(GcsStaticCredentials.BearerToken, bearer_token),
    )
    return secret


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> GcsCredentials.Refreshable:
    """Sign requests with what `get_credentials` returns; see `s3_refreshable_credentials`."""
    return GcsCredentials.Refreshable(*_pickled(get_credentials, scatter_initial_credentials))


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """Make credentials for Google Cloud Storage; without arguments, `from_env`.

    >>> import icefloe
    >>> icefloe.gcs_credentials(service_account_file="key.json")
    GcsCredentials.Static(***)
    """
    secrets = {
        "service_account_file": service_account_file,
        "service_account_key": service_account_key,
        "application_credentials": application_credentials,
        "bearer_token": bearer_token,
    }
    credentials: AnyGcsCredential = _choose(
        "gcs_credentials",
        GcsCredentials,
        static=_static(GcsCredentials.Static, gcs_static_credentials, secrets),
        anonymous=anonymous,
        from_env=from_env,
        refreshable=(get_credentials, scatter_initial_credentials),
    )
    return credentials


def azure_anonymous_credentials() -> AzureCredentials.Anonymous:
    """Do not sign requests to Azure Blob Storage."""
    return AzureCredentials.Anonymous()


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Take the credentials for Azure Blob Storage from the environment."""
    return AzureCredentials.FromEnv()


def azure_static_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
) -> AnyAzureStaticCredential:
    """Wrap the one secret that is given.

    >>> import icefloe
    >>> icefloe.azure_static_credentials(sas_token="my-token")
    AzureStaticCredentials.SasToken(***)
    """
    secret: AnyAzureStaticCredential = _one_secret(
        "azure_static_credentials",
        access_key=(AzureStaticCredentials.AccessKey, access_key),
        sas_token=(AzureStaticCredentials.SasToken, sas_token),
        bearer_token=(AzureStaticCredentials.BearerToken, bearer_token),
    )
    return secret


def azure_refreshable_credentials(
    get_credentials: Callable[[], AnyAzureRefreshableCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> AzureCredentials.Refreshable:
    """Sign requests with what `get_credentials` returns; see `s3_refreshable_credentials`."""
    return AzureCredentials.Refreshable(*_pickled(get_credentials, scatter_initial_credentials))


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AnyAzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """Make credentials for Azure Blob Storage; without arguments, `from_env`.

    >>> import icefloe
    >>> icefloe.azure_credentials(access_key="my-key")
    AzureCredentials.Static(***)
    """
    secrets = {"access_key": access_key, "sas_token": sas_token, "bearer_token": bearer_token}
    credentials: AnyAzureCredential = _choose(
        "azure_credentials",
        AzureCredentials,
        static=_static(AzureCredentials.Static, azure_static_credentials, secrets),
        anonymous=anonymous,
        from_env=from_env,
        refreshable=(get_credentials, scatter_initial_credentials),
    )
    return credentials


def containers_credentials(
    m: Mapping[
        str,
        AnyS3Credential
        | AnyGcsCredential
        | AnyAzureCredential
        | Credentials.HttpAccess
        | Credentials.LocalFileSystemAccess
        | None,
    ],
) -> dict[str, AnyCredential | None]:
    """Wrap the credentials of virtual chunk containers, by URL prefix.

    None authorises a container whose store needs no credentials, as `HttpAccess()` and
    `LocalFileSystemAccess()` do.

    >>> import icefloe
    >>> icefloe.containers_credentials({"s3://bucket/": icefloe.s3_credentials(anonymous=True)})
    {'s3://bucket/': Credentials.S3(***)}
    """
    return {prefix: _wrapped(prefix, credential) for prefix, credential in m.items()}


def _wrapped(prefix: str, credential: object) -> AnyCredential | None:
    match credential:
        case None | Credentials.HttpAccess() | Credentials.LocalFileSystemAccess():
            return None
        case _ if isinstance(credential, AnyS3Credential):
            return Credentials.S3(credential)
        case _ if isinstance(credential, AnyGcsCredential):
            return Credentials.Gcs(credential)
        case _ if isinstance(credential, AnyAzureCredential):
            return Credentials.Azure(credential)
    raise InvalidInputError(
        f"the credentials for {prefix!r} are a {type(credential).__name__}; expected those "
        "of s3_credentials, gcs_credentials or azure_credentials, or None"
    )


def _choose(
    function: str,
    cloud: Any,
    *,
    static: tuple[str, Callable[[], Any]] | None,
    anonymous: bool | None,
    from_env: bool | None,
    refreshable: tuple[Callable[[], Any] | None, bool],
) -> Any:
    """Make the one kind of credentials of a cloud that the arguments ask for."""
    get_credentials, scatter = refreshable
    kinds: dict[str, Callable[[], Any]] = dict([static] if static else [])
    if anonymous:
        kinds["anonymous"] = cloud.Anonymous
    if from_env:
        kinds["from_env"] = cloud.FromEnv
    if get_credentials is not None:
        kinds["get_credentials"] = lambda: cloud.Refreshable(*_pickled(get_credentials, scatter))
    if not kinds and from_env is None:
        return cloud.FromEnv()
    return _only_one(function, kinds)()


def _static(
    wrap: Callable[[Any], Any], make: Callable[..., Any], secrets: dict[str, str | None]
) -> tuple[str, Callable[[], Any]] | None:
    if all(secret is None for secret in secrets.values()):
        return None
    return "a secret", lambda: wrap(make(**secrets))


def _one_secret(function: str, **secrets: tuple[type[Any], str | None]) -> Any:
    """Wrap the one secret that is not None in its type."""
    kinds = {name: secret for name, secret in secrets.items() if secret[1] is not None}
    kind, secret = _only_one(function, kinds)
    return kind(secret)


def _only_one(function: str, kinds: Mapping[str, Any]) -> Any:
    if len(kinds) != 1:
        raise InvalidInputError(
            f"conflicting arguments to {function}: expected one kind of credentials, found "
            f"{' and '.join(kinds) or 'none'}"
        )
    return next(iter(kinds.values()))


def _pickled(get_credentials: Callable[[], Any], scatter: bool) -> tuple[bytes, Any]:  # noqa: FBT001
    return pickle.dumps(get_credentials), get_credentials() if scatter else None
