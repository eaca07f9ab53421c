"""The functions that make storages, with the names and arguments of the official package.

Most of their arguments belong to the credentials and options of a cloud, and are passed on by name:
`_call` and `_s3_arguments` pick them from the local variables of a function.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.storage.local import Durability, LocalStorage
from icefloe.storage.port import Storage

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from icefloe.storage.access.addresses import Headers
    from icefloe.storage.access.credentials import (
        AnyAzureCredential,
        AnyAzureRefreshableCredential,
        AnyGcsCredential,
        AnyS3Credential,
        GcsBearerCredential,
        S3StaticCredentials,
    )
    from icefloe.storage.access.stores import ChecksumAlgorithm, S3Options
    from icefloe.storage.memory import MemoryStorage
    from icefloe.storage.object_store import ObjectStorage
    from icefloe.storage.settings import StorageSettings

_TIGRIS_ENDPOINT = "https://t3.storage.dev"


def in_memory_storage() -> MemoryStorage:
    """Create a storage in the memory of this process; other processes cannot access it.

    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repo.list_branches()
    {'main'}
    """
    from icefloe.storage.memory import MemoryStorage

    return MemoryStorage()


def local_filesystem_storage(
    path: str | os.PathLike[str], *, durability: Durability = "fsync"
) -> LocalStorage:
    """Create a storage in a folder, safe for many concurrent processes.

    Args:
        path: The folder; the first write creates it. A leading `~` is the home folder.
        durability: "fsync" (a commit survives power loss) or "none" (faster: it survives only the
            death of the process).

    >>> import icefloe, tempfile
    >>> storage = icefloe.local_filesystem_storage(tempfile.mkdtemp())
    >>> repo = icefloe.Repository.create(storage)
    >>> icefloe.Repository.exists(storage)
    True
    """
    if str(path).partition("/")[0] == "~":
        path = Path(path).expanduser()
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
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Create a storage on S3, or on a compatible store at `endpoint_url`.

    Without any argument for credentials, those of the environment are used, as with
    `from_env=True`; see `s3_credentials`. Nothing is sent until the storage is used.

    Args:
        bucket: Name of the bucket; it must exist.
        prefix: The prefix of the repository in the bucket; None for its root.
        region: Region of the bucket, such as `eu-central-1`.
        endpoint_url: Address of a compatible store, such as `http://127.0.0.1:9000`.
        allow_http: Whether an address without encryption may be used.
        access_key_id: Fixed credentials, with `secret_access_key` and maybe `session_token`.
        secret_access_key: The secret of the access key.
        session_token: The token of temporary credentials.
        expires_after: When fixed credentials expire.
        anonymous: Whether to sign no requests, for public buckets.
        from_env: Whether to take credentials from the environment.
        get_credentials: A function that returns credentials; it is called again before they expire,
            and pickled with the storage.
        scatter_initial_credentials: Whether to call it once and pickle its first result, too.
        force_path_style: Whether the bucket is a part of the path rather than of the host name.
        network_stream_timeout_seconds: How long a transfer may stall.
        requester_pays: Whether your account pays for requests.
        checksum_algorithm: Lets S3 verify writes, besides icefloe's own checksums.
        legacy_rooted_keys: For compatibility; the official package's old layout is not supported.
        read_headers: Headers of read requests, which override `headers`.
        write_headers: Headers of write requests, which override `headers`.
        headers: Headers of every request.

    Returns:
        A storage for `Repository.create` and `Repository.open`.

    >>> import icefloe
    >>> storage = icefloe.s3_storage(bucket="my-bucket", prefix="my/repo", anonymous=True)
    >>> storage.location
    's3://my-bucket/my/repo'
    """
    arguments = locals()
    options, credentials = _s3_arguments(arguments)
    more = _header_arguments(arguments)
    return StorageFactory.new_s3(options, bucket, prefix, credentials, **more)


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
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Create a storage on Tigris.

    With `use_weak_consistency` it reads from the nearest region, and is read-only.
    """
    arguments = locals()
    options, credentials = _s3_arguments(arguments)
    more = _header_arguments(arguments)
    return StorageFactory.new_tigris(
        options, bucket, prefix, use_weak_consistency, credentials, **more
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
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Create a storage on Cloudflare R2, located by `account_id` or `endpoint_url`."""
    arguments = locals()
    options, credentials = _s3_arguments(arguments)
    more = _header_arguments(arguments)
    return StorageFactory.new_r2(options, bucket, prefix, account_id, credentials, **more)


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
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Create a storage on Google Cloud Storage.

    Args:
        bucket: Name of the bucket; it must exist.
        prefix: The prefix of the repository in the bucket; None for its root.
        service_account_file: Path of a service account's key file.
        service_account_key: The text of such a file.
        application_credentials: Path of an application default credentials file.
        bearer_token: A token that was fetched by other means.
        anonymous: Whether to sign no requests, for public buckets.
        from_env: Whether to take credentials from the environment, as without any of these.
        config: More options of the client, by name.
        get_credentials: A function that returns a token; it is called again before it expires.
        scatter_initial_credentials: Whether to call it once and pickle its first result, too.
        read_headers: Headers of read requests, which override `headers`.
        write_headers: Headers of write requests, which override `headers`.
        headers: Headers of every request.

    Returns:
        A storage for `Repository.create` and `Repository.open`.
    """
    from icefloe.storage.access.credentials import gcs_credentials

    arguments = locals()
    credentials: AnyGcsCredential = _call(gcs_credentials, arguments)
    more = _header_arguments(arguments)
    return StorageFactory.new_gcs(bucket, prefix, credentials, config=config, **more)


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
    get_credentials: Callable[[], AnyAzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> ObjectStorage:
    """Create a storage on Azure Blob Storage.

    Args:
        account: Name of the storage account.
        container: Name of the container; it must exist.
        prefix: The prefix of the repository in the container; None for its root.
        access_key: The account's key.
        sas_token: A shared access signature.
        bearer_token: A token that was fetched by other means.
        from_env: Whether to take credentials from the environment, as without any of these.
        config: More options of the client, by name.
        anonymous: Whether to sign no requests, for public containers.
        get_credentials: A function that returns a token; it is called again before it expires.
        scatter_initial_credentials: Whether to call it once and pickle its first result, too.

    Returns:
        A storage for `Repository.create` and `Repository.open`.
    """
    from icefloe.storage.access.credentials import azure_credentials

    credentials: AnyAzureCredential = _call(azure_credentials, locals())
    return StorageFactory.new_azure_blob(account, container, prefix, credentials, config=config)


def http_storage(
    base_url: str,
    opts: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ObjectStorage:
    """Create a storage that reads from a web server; it can neither list nor write.

    Args:
        base_url: The URL of the repository. `user:password@` in it is sent as a header and never
            shown.
        opts: Further options of the client, such as `allow_http` and `timeout`.
        headers: Sent with each request, such as `{"Authorization": "Bearer …"}`; never shown.
    """
    from icefloe.storage.access.addresses import http_address
    from icefloe.storage.object_store import ObjectStorage

    return ObjectStorage(http_address(base_url, opts, headers))


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
        """The default settings; each kind of storage has its own."""
        from icefloe.storage.settings import StorageSettings

        return StorageSettings()

    @staticmethod
    def new_in_memory() -> MemoryStorage:
        """See `in_memory_storage`."""
        from icefloe.storage.memory import MemoryStorage

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
        legacy_rooted_keys: bool | None = None,  # noqa: FBT001
        read_headers: Mapping[str, str] | None = None,
        write_headers: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `s3_storage`."""
        from icefloe.storage.access.addresses import s3_address
        from icefloe.storage.object_store import ObjectStorage

        _check_keys(legacy_rooted_keys)
        sent = _headers(read_headers, write_headers, headers)
        return ObjectStorage(
            s3_address(config, bucket, prefix, _s3(config, credentials), headers=sent)
        )

    new_s3_object_store = new_s3

    @staticmethod
    def new_tigris(
        config: S3Options,
        bucket: str,
        prefix: str | None,
        use_weak_consistency: bool,  # noqa: FBT001 (the known signature)
        credentials: AnyS3Credential | None = None,
        legacy_rooted_keys: bool | None = None,  # noqa: FBT001
        read_headers: Mapping[str, str] | None = None,
        write_headers: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `tigris_storage`."""
        from icefloe.storage.access.addresses import s3_address
        from icefloe.storage.object_store import ObjectStorage

        _check_keys(legacy_rooted_keys)
        consistency: dict[str, str] = {}
        if not use_weak_consistency:
            if config.region is None:
                raise InvalidInputError(
                    "Tigris is consistent only within a region: give `region`, or read with "
                    "`use_weak_consistency=True`"
                )
            consistency = {"X-Tigris-Region": config.region, "X-Tigris-Consistent": "true"}
        place = s3_address(
            _with_endpoint(config, _TIGRIS_ENDPOINT),
            bucket,
            prefix,
            _s3(config, credentials),
            headers=_headers(read_headers, write_headers, {**(headers or {}), **consistency}),
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
        legacy_rooted_keys: bool | None = None,  # noqa: FBT001
        read_headers: Mapping[str, str] | None = None,
        write_headers: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `r2_storage`."""
        from icefloe.storage.access.addresses import s3_address
        from icefloe.storage.object_store import ObjectStorage

        _check_keys(legacy_rooted_keys)
        if bucket is None:
            bucket, _, prefix = (prefix or "").strip("/").partition("/")
        if not bucket:
            raise InvalidInputError("r2_storage needs a bucket, or a prefix that starts with one")
        if config.endpoint_url is None and account_id is None:
            raise InvalidInputError("r2_storage needs an account_id or an endpoint_url")
        options = _with_endpoint(config, f"https://{account_id}.r2.cloudflarestorage.com")
        options.region = options.region or "auto"
        sent = _headers(read_headers, write_headers, headers)
        return ObjectStorage(
            s3_address(options, bucket, prefix, _s3(config, credentials), headers=sent)
        )

    @staticmethod
    def new_gcs(
        bucket: str,
        prefix: str | None,
        credentials: AnyGcsCredential | None = None,
        *,
        config: Mapping[str, str] | None = None,
        read_headers: Mapping[str, str] | None = None,
        write_headers: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `gcs_storage`."""
        from icefloe.storage.access.addresses import gcs_address
        from icefloe.storage.access.credentials import gcs_credentials
        from icefloe.storage.object_store import ObjectStorage

        sent = _headers(read_headers, write_headers, headers)
        return ObjectStorage(
            gcs_address(bucket, prefix, credentials or gcs_credentials(), config, sent)
        )

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
        from icefloe.storage.access.addresses import azure_address
        from icefloe.storage.access.credentials import azure_credentials
        from icefloe.storage.object_store import ObjectStorage

        return ObjectStorage(
            azure_address(account, container, prefix, credentials or azure_credentials(), config)
        )

    @staticmethod
    def new_http(
        base_url: str,
        config: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ObjectStorage:
        """See `http_storage`."""
        return http_storage(base_url, config, headers)


def _s3(config: S3Options, credentials: AnyS3Credential | None) -> AnyS3Credential:
    from icefloe.storage.access.credentials import S3Credentials

    if credentials is not None:
        return credentials
    return S3Credentials.Anonymous() if config.anonymous else S3Credentials.FromEnv()


def _check_keys(legacy_rooted_keys: bool | None) -> None:  # noqa: FBT001
    if legacy_rooted_keys:
        raise InvalidInputError(
            "keys that begin with a slash, as old versions of the official package wrote them into "
            "the root of a bucket, are not supported; give a prefix"
        )


def _headers(
    read: Mapping[str, str] | None, write: Mapping[str, str] | None, both: Mapping[str, str] | None
) -> Headers:
    from icefloe.storage.access.addresses import Headers

    return Headers(dict(both or {}), dict(read or {}), dict(write or {}))


def _header_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments about headers and keys among those of a function."""
    names = ("legacy_rooted_keys", "read_headers", "write_headers", "headers")
    return {name: arguments[name] for name in names if name in arguments}


def _with_endpoint(config: S3Options, endpoint_url: str) -> S3Options:
    return msgspec.structs.replace(config, endpoint_url=config.endpoint_url or endpoint_url)


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function that has keyword arguments only with those arguments that it has."""
    names = function.__kwdefaults__ or {}
    return function(**{name: value for name, value in arguments.items() if name in names})


def _s3_arguments(arguments: Mapping[str, Any]) -> tuple[S3Options, AnyS3Credential]:
    """The options and the credentials among the arguments of a function for S3."""
    from icefloe.storage.access.credentials import s3_credentials
    from icefloe.storage.access.stores import S3Options

    credentials = _call(s3_credentials, arguments)
    # `anonymous` is about the credentials here.
    names = set(S3Options.__struct_fields__) - {"anonymous"}
    options = {name: value for name, value in arguments.items() if name in names}
    return S3Options(**options), credentials
