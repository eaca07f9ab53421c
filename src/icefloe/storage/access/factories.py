"""The functions that make storages, with the names and arguments of the official package.

Most of their arguments belong to the credentials and options of a cloud, and are passed on by name:
`_call` and `_s3_arguments` pick them from the local variables of a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.storage.access.addresses import (
    azure_address,
    gcs_address,
    http_address,
    s3_address,
)
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
from icefloe.storage.access.stores import S3Options
from icefloe.storage.local import Durability, LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.port import Storage
from icefloe.storage.settings import StorageSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from datetime import datetime

_TIGRIS_ENDPOINT = "https://t3.storage.dev"


def in_memory_storage() -> MemoryStorage:
    """Make a storage in the memory of this process; other processes cannot reach it.

    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repo.list_branches()
    {'main'}
    """
    return MemoryStorage()


def local_filesystem_storage(
    path: str | os.PathLike[str], *, durability: Durability = "fsync"
) -> LocalStorage:
    """Make a storage in a folder, safe for many processes at once.

    Args:
        path: The folder; the first write creates it.
        durability: "fsync" (a commit survives power loss) or "none" (quicker: it survives only the
            death of the process).

    >>> import icefloe, tempfile
    >>> storage = icefloe.local_filesystem_storage(tempfile.mkdtemp())
    >>> repo = icefloe.Repository.create(storage)
    >>> icefloe.Repository.exists(storage)
    True
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
    """Make a storage on S3, or on a compatible store at `endpoint_url`.

    Without any argument for credentials, those of the environment are used, as with
    `from_env=True`; see `s3_credentials`. Nothing is sent until the storage is used.

    >>> import icefloe
    >>> storage = icefloe.s3_storage(bucket="my-bucket", prefix="my/repo", anonymous=True)
    >>> storage.location
    's3://my-bucket/my/repo'
    """
    options, credentials = _s3_arguments(locals())
    return StorageFactory.new_s3(options, bucket, prefix, credentials)


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

    With `use_weak_consistency` it reads from the nearest region, and is read-only.
    """
    options, credentials = _s3_arguments(locals())
    return StorageFactory.new_tigris(
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
    options, credentials = _s3_arguments(locals())
    return StorageFactory.new_r2(options, bucket, prefix, account_id, credentials)


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
    credentials: AnyGcsCredential = _call(gcs_credentials, locals())
    return StorageFactory.new_gcs(bucket, prefix, credentials, config=config)


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
    credentials: AnyAzureCredential = _call(azure_credentials, locals())
    return StorageFactory.new_azure_blob(account, container, prefix, credentials, config=config)


def http_storage(base_url: str, opts: Mapping[str, str] | None = None) -> ObjectStorage:
    """Make a storage that reads from a web server; it can neither list nor write.

    Args:
        base_url: Where the repository is. `user:password@` in it is sent as a header and never
            shown.
        opts: Further options of the client, such as `allow_http` and `timeout`.
    """
    return ObjectStorage(http_address(base_url, opts))


class _EveryStorageIsAnInstance(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Storage)


class StorageFactory(metaclass=_EveryStorageIsAnInstance):
    """The constructors of storages under one name, `icefloe.Storage`.

    Every storage is an instance of it, as in the official package. The storages themselves
    implement the protocol `icefloe.storage.port.Storage`.

    >>> import icefloe
    >>> isinstance(icefloe.in_memory_storage(), icefloe.Storage)
    True
    """

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
        return ObjectStorage(s3_address(config, bucket, prefix, _s3(config, credentials)))

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
        place = s3_address(
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
        return ObjectStorage(s3_address(options, bucket, prefix, _s3(config, credentials)))

    @staticmethod
    def new_gcs(
        bucket: str,
        prefix: str | None,
        credentials: AnyGcsCredential | None = None,
        *,
        config: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `gcs_storage`."""
        return ObjectStorage(gcs_address(bucket, prefix, credentials or gcs_credentials(), config))

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
            azure_address(account, container, prefix, credentials or azure_credentials(), config)
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
    return msgspec.structs.replace(config, endpoint_url=config.endpoint_url or endpoint_url)


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function that has keyword arguments only with those arguments that it has."""
    names = function.__kwdefaults__ or {}
    return function(**{name: value for name, value in arguments.items() if name in names})


def _s3_arguments(arguments: Mapping[str, Any]) -> tuple[S3Options, AnyS3Credential]:
    """The options and the credentials among the arguments of a function for S3."""
    credentials = _call(s3_credentials, arguments)
    # `anonymous` is about the credentials here.
    names = set(S3Options.__struct_fields__) - {"anonymous"}
    options = {name: value for name, value in arguments.items() if name in names}
    return S3Options(**options), credentials
