"""The functions that make storages, with the names and arguments that Icechunk users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.storage import port
from icefloe.storage.access.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureBearerCredential,
    GcsBearerCredential,
    S3Credentials,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.storage.access.places import (
    azure_place,
    gcs_place,
    http_place,
    s3_place,
)
from icefloe.storage.access.stores import S3Options
from icefloe.storage.local import Durability, LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.settings import StorageSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from datetime import datetime

_TIGRIS_ENDPOINT = "https://t3.storage.dev"


def in_memory_storage() -> MemoryStorage:
    """Make a storage in the memory of this process, which other processes cannot reach."""
    return MemoryStorage()


def local_filesystem_storage(
    path: str | os.PathLike[str], *, durability: Durability = "fsync"
) -> LocalStorage:
    """Make a storage in a folder, safe for many processes at once.

    Args:
        path: The folder; made by the first write.
        durability: "fsync" (a commit survives power loss) or "none".
    """
    return LocalStorage(path, durability)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
) -> ObjectStorage:
    """Make a storage on S3, or on a store that speaks it at `endpoint_url`.

    Without any credential argument, the environment's are used, as with `from_env=True`. See
    `s3_credentials` for the others.
    """
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
    )
    return Storage.new_s3(options, bucket, prefix, credentials)


s3_object_store_storage = s3_storage


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
) -> ObjectStorage:
    """Make a storage on Tigris.

    With `use_weak_consistency`, it reads from the nearest region and cannot be written to.
    """
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
    )
    return Storage.new_tigris(
        options, bucket, prefix, use_weak_consistency=use_weak_consistency, credentials=credentials
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
) -> ObjectStorage:
    """Make a storage on Cloudflare R2, found by `account_id` or by `endpoint_url`."""
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
    )
    return Storage.new_r2(options, bucket, prefix, account_id, credentials)


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> ObjectStorage:
    """Make a storage on Google Cloud Storage; `config` has more of its client's options.

    See `gcs_credentials` for the other arguments.
    """
    credentials = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return Storage.new_gcs(bucket, prefix, credentials, config=config)


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str | None,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AzureBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> ObjectStorage:
    """Make a storage on Azure Blob Storage; `config` has more of its client's options.

    See `azure_credentials` for the other arguments.
    """
    credentials = azure_credentials(
        access_key=access_key,
        sas_token=sas_token,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return Storage.new_azure_blob(account, container, prefix, credentials, config=config)


def http_storage(base_url: str, opts: Mapping[str, str] | None = None) -> ObjectStorage:
    """Make a storage that reads from a web server; it can neither list nor write.

    Args:
        base_url: Where the repository is. `user:password@` in it is sent as a header and never
            shown.
        opts: Further options of the client, such as `allow_http` and `timeout`.
    """
    return ObjectStorage(http_place(base_url, opts))


class _AnyStorage(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, port.Storage)


class Storage(metaclass=_AnyStorage):
    """The constructors of storages under one name; every storage is an instance of it."""

    def default_settings(self) -> StorageSettings:
        """The settings that hold where none are given; each kind of storage has its own."""
        return StorageSettings()

    @staticmethod
    def new_in_memory() -> MemoryStorage:
        """See `in_memory_storage`."""
        return MemoryStorage()

    @staticmethod
    def new_local_filesystem(path: str | os.PathLike[str]) -> LocalStorage:
        """See `local_filesystem_storage`."""
        return LocalStorage(path)

    @staticmethod
    def new_s3(
        config: S3Options,
        bucket: str,
        prefix: str | None,
        credentials: AnyS3Credential | None = None,
    ) -> ObjectStorage:
        """See `s3_storage`."""
        return ObjectStorage(s3_place(config, bucket, prefix, _s3(config, credentials)))

    new_s3_object_store = new_s3

    @staticmethod
    def new_tigris(
        config: S3Options,
        bucket: str,
        prefix: str | None,
        use_weak_consistency: bool,  # noqa: FBT001 (the known signature)
        credentials: AnyS3Credential | None = None,
    ) -> ObjectStorage:
        """See `tigris_storage`."""
        headers = {}
        if not use_weak_consistency:
            if config.region is None:
                raise InvalidInputError(
                    "Tigris is consistent only within a region: give `region`, or read with "
                    "`use_weak_consistency=True`"
                )
            headers = {"X-Tigris-Region": config.region, "X-Tigris-Consistent": "true"}
        place = s3_place(
            _with_endpoint(config, _TIGRIS_ENDPOINT),
            bucket,
            prefix,
            _s3(config, credentials),
            headers=headers,
            can_write=not use_weak_consistency,
        )
        return ObjectStorage(place)

    @staticmethod
    def new_r2(
        config: S3Options,
        bucket: str | None = None,
        prefix: str | None = None,
        account_id: str | None = None,
        credentials: AnyS3Credential | None = None,
    ) -> ObjectStorage:
        """See `r2_storage`."""
        if bucket is None:
            bucket, _, prefix = (prefix or "").strip("/").partition("/")
        if not bucket:
            raise InvalidInputError("r2_storage needs a bucket, or a prefix that starts with one")
        if config.endpoint_url is None and account_id is None:
            raise InvalidInputError("r2_storage needs an account_id or an endpoint_url")
        options = _with_endpoint(config, f"https://{account_id}.r2.cloudflarestorage.com")
        options.region = options.region or "auto"
        return ObjectStorage(s3_place(options, bucket, prefix, _s3(config, credentials)))

    @staticmethod
    def new_gcs(
        bucket: str,
        prefix: str | None,
        credentials: AnyGcsCredential | None = None,
        *,
        config: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `gcs_storage`."""
        return ObjectStorage(gcs_place(bucket, prefix, credentials or gcs_credentials(), config))

    @staticmethod
    def new_azure_blob(
        account: str,
        container: str,
        prefix: str | None,
        credentials: AnyAzureCredential | None = None,
        *,
        config: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `azure_storage`."""
        return ObjectStorage(
            azure_place(account, container, prefix, credentials or azure_credentials(), config)
        )

    @staticmethod
    def new_http(base_url: str, opts: Mapping[str, str] | None = None) -> ObjectStorage:
        """See `http_storage`."""
        return http_storage(base_url, opts)


def _s3(config: S3Options, credentials: AnyS3Credential | None) -> AnyS3Credential:
    if credentials is not None:
        return credentials
    return S3Credentials.Anonymous() if config.anonymous else S3Credentials.FromEnv()


def _with_endpoint(config: S3Options, endpoint_url: str) -> S3Options:
    fields: dict[str, Any] = {name: getattr(config, name) for name in config.__struct_fields__}
    return S3Options(**{**fields, "endpoint_url": config.endpoint_url or endpoint_url})
