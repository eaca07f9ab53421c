"""Who we are to an object store. No secret ever shows in a repr."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Credential(msgspec.Struct, frozen=True):
    """A value that may hold secrets, and never prints any field."""

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({'***' if self.__struct_fields__ else ''})"


class S3StaticCredentials(_Credential, frozen=True):
    """A key pair, and a token if they are temporary."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None
    expires_after: datetime | None = None


class S3Credentials:
    """The ways to sign requests to S3 and compatible stores."""

    class FromEnv(_Credential, frozen=True):
        """From environment variables, configuration files or the machine's role."""

    class Anonymous(_Credential, frozen=True):
        """Requests are not signed."""

    class Static(_Credential, frozen=True):
        """A given key pair."""

        credentials: S3StaticCredentials

    class Refreshable(_Credential, frozen=True):
        """Whatever a pickled function returns, called again before they expire."""

        pickled_function: bytes
        current: S3StaticCredentials | None = None


class GcsBearerCredential(_Credential, frozen=True):
    """An access token of Google Cloud, and when it expires."""

    bearer: str
    expires_after: datetime | None = None


class GcsStaticCredentials:
    """The secrets that Google Cloud Storage takes."""

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
        """From environment variables, configuration files or the machine's role."""

    class Static(_Credential, frozen=True):
        """A given secret."""

        credentials: AnyGcsStaticCredential

    class Refreshable(_Credential, frozen=True):
        """Whatever a pickled function returns, called again before it expires."""

        pickled_function: bytes
        current: GcsBearerCredential | None = None


class AzureStaticCredentials:
    """The secrets that Azure Blob Storage takes."""

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


class AzureCredentials:
    """The ways to sign requests to Azure Blob Storage."""

    class FromEnv(_Credential, frozen=True):
        """From environment variables or the machine's identity."""

    class Anonymous(_Credential, frozen=True):
        """Requests are not signed."""

    class Static(_Credential, frozen=True):
        """A given secret."""

        credentials: AnyAzureStaticCredential

    class Refreshable(_Credential, frozen=True):
        """Whatever a pickled function returns, called again before it expires."""

        pickled_function: bytes
        current: AzureBearerCredential | None = None


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
    """A credential of any store, for the containers of virtual chunks."""

    class S3(_Credential, frozen=True):
        """For S3 and compatible stores."""

        credentials: AnyS3Credential

    class Gcs(_Credential, frozen=True):
        """For Google Cloud Storage."""

        credentials: AnyGcsCredential

    class Azure(_Credential, frozen=True):
        """For Azure Blob Storage."""

        credentials: AnyAzureCredential


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
    """Sign requests to S3 with a key pair."""
    return S3Credentials.Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> S3Credentials.Refreshable:
    """Sign requests to S3 with what `get_credentials` returns, called again before it expires.

    Args:
        get_credentials: A function that can be pickled, for it is called on every machine.
        scatter_initial_credentials: Call it now and pickle its result with the storage, so that a
            thousand workers do not all call it at once. The pickle then holds a secret.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return S3Credentials.Refreshable(pickle.dumps(get_credentials), current)


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
    """Choose the kind of S3 credentials by the arguments; with none, take the environment's."""
    static = {access_key_id, secret_access_key, session_token, expires_after} != {None}
    _require_one(
        "s3_credentials",
        {
            "a key pair": static,
            "anonymous": bool(anonymous),
            "from_env": bool(from_env),
            "get_credentials": get_credentials is not None,
        },
        may_be_none=from_env is None,
    )
    if anonymous:
        return S3Credentials.Anonymous()
    if get_credentials is not None:
        return s3_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if not static:
        return S3Credentials.FromEnv()
    if not access_key_id or not secret_access_key:
        raise InvalidInputError("s3_credentials needs both access_key_id and secret_access_key")
    return s3_static_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
    )


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
    """Wrap the one secret that is given."""
    given: dict[str, AnyGcsStaticCredential] = {}
    if service_account_file is not None:
        given["service_account_file"] = GcsStaticCredentials.ServiceAccount(service_account_file)
    if service_account_key is not None:
        given["service_account_key"] = GcsStaticCredentials.ServiceAccountKey(service_account_key)
    if application_credentials is not None:
        given["application_credentials"] = GcsStaticCredentials.ApplicationCredentials(
            application_credentials
        )
    if bearer_token is not None:
        given["bearer_token"] = GcsStaticCredentials.BearerToken(bearer_token)
    _require_one("gcs_static_credentials", dict.fromkeys(given, True), may_be_none=False)
    return next(iter(given.values()))


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> GcsCredentials.Refreshable:
    """Sign requests with what `get_credentials` returns; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return GcsCredentials.Refreshable(pickle.dumps(get_credentials), current)


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
    """Choose the kind of credentials by the arguments; with none, take the environment's."""
    secrets = (service_account_file, service_account_key, application_credentials, bearer_token)
    static = any(secret is not None for secret in secrets)
    _require_one(
        "gcs_credentials",
        {
            "a secret": static,
            "anonymous": bool(anonymous),
            "from_env": bool(from_env),
            "get_credentials": get_credentials is not None,
        },
        may_be_none=from_env is None,
    )
    if anonymous:
        return GcsCredentials.Anonymous()
    if get_credentials is not None:
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if not static:
        return GcsCredentials.FromEnv()
    return GcsCredentials.Static(
        gcs_static_credentials(
            service_account_file=service_account_file,
            service_account_key=service_account_key,
            application_credentials=application_credentials,
            bearer_token=bearer_token,
        )
    )


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
    """Wrap the one secret that is given."""
    given: dict[str, AnyAzureStaticCredential] = {}
    if access_key is not None:
        given["access_key"] = AzureStaticCredentials.AccessKey(access_key)
    if sas_token is not None:
        given["sas_token"] = AzureStaticCredentials.SasToken(sas_token)
    if bearer_token is not None:
        given["bearer_token"] = AzureStaticCredentials.BearerToken(bearer_token)
    _require_one("azure_static_credentials", dict.fromkeys(given, True), may_be_none=False)
    return next(iter(given.values()))


def azure_refreshable_credentials(
    get_credentials: Callable[[], AzureBearerCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 (the known signature)
) -> AzureCredentials.Refreshable:
    """Sign requests with what `get_credentials` returns; see `s3_refreshable_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return AzureCredentials.Refreshable(pickle.dumps(get_credentials), current)


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AzureBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyAzureCredential:
    """Choose the kind of credentials by the arguments; with none, take the environment's."""
    static = any(secret is not None for secret in (access_key, sas_token, bearer_token))
    _require_one(
        "azure_credentials",
        {
            "a secret": static,
            "anonymous": bool(anonymous),
            "from_env": bool(from_env),
            "get_credentials": get_credentials is not None,
        },
        may_be_none=from_env is None,
    )
    if anonymous:
        return AzureCredentials.Anonymous()
    if get_credentials is not None:
        return azure_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if not static:
        return AzureCredentials.FromEnv()
    return AzureCredentials.Static(
        azure_static_credentials(
            access_key=access_key, sas_token=sas_token, bearer_token=bearer_token
        )
    )


def containers_credentials(
    m: Mapping[str, AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None],
) -> dict[str, AnyCredential | None]:
    """Wrap the credentials of virtual chunk containers, by URL prefix.

    None authorises a container whose store needs no credentials.
    """
    wrapped: dict[str, AnyCredential | None] = {}
    for prefix, credential in m.items():
        if credential is None:
            wrapped[prefix] = None
        elif isinstance(credential, AnyS3Credential):
            wrapped[prefix] = Credentials.S3(credential)
        elif isinstance(credential, AnyGcsCredential):
            wrapped[prefix] = Credentials.Gcs(credential)
        elif isinstance(credential, AnyAzureCredential):
            wrapped[prefix] = Credentials.Azure(credential)
        else:
            raise InvalidInputError(
                f"the credentials for {prefix!r} are a {type(credential).__name__}; expected those "
                "of s3_credentials, gcs_credentials or azure_credentials, or None"
            )
    return wrapped


def _require_one(function: str, given: dict[str, bool], *, may_be_none: bool) -> None:
    kinds = [name for name, is_given in given.items() if is_given]
    if len(kinds) > 1 or not (kinds or may_be_none):
        raise InvalidInputError(
            f"conflicting arguments to {function}: expected one kind of credentials, found "
            f"{' and '.join(kinds) or 'none'}"
        )
