"""How to connect to the stores of virtual chunks, without any secret."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChecksumAlgorithm(Enum):
    """Checksums that S3 verifies when it is written to."""

    Crc32 = 0
    Crc32c = 1
    Sha1 = 2
    Sha256 = 3
    Crc64Nvme = 4

    def supported(self) -> str:
        """Its name for the client; raises InvalidInputError if that cannot compute it."""
        if self is not ChecksumAlgorithm.Sha256:
            raise InvalidInputError(
                f"the client computes Sha256 only, found ChecksumAlgorithm.{self.name}; leave "
                "checksum_algorithm out: icefloe keeps a CRC-32C of each object itself"
            )
        return "SHA256"


class S3Options(msgspec.Struct):
    """How to connect to S3 or a compatible store."""

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: int | None = None
    """Longest wait for the next bytes of an answer (60); 0 means forever."""
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None
    """The checksum that S3 verifies on writes, besides those of icefloe."""


class ObjectStoreConfig:
    """The kinds of stores."""

    class InMemory(msgspec.Struct, frozen=True, tag="in_memory"):
        """The memory of this process."""

    class LocalFileSystem(msgspec.Struct, frozen=True, tag="local_file_system"):
        """Files below a path."""

        path: str

    class S3Compatible(msgspec.Struct, frozen=True, tag="s3_compatible"):
        """A store that is compatible with S3."""

        options: S3Options

    class S3(msgspec.Struct, frozen=True, tag="s3"):
        """Amazon S3."""

        options: S3Options

    class Gcs(msgspec.Struct, frozen=True, tag="gcs"):
        """Google Cloud Storage."""

        opts: dict[str, str] | None = None

    class Azure(msgspec.Struct, frozen=True, tag="azure"):
        """Azure Blob Storage."""

        opts: dict[str, str] | None = None

    class Tigris(msgspec.Struct, frozen=True, tag="tigris"):
        """Tigris."""

        opts: S3Options

    class Http(msgspec.Struct, frozen=True, tag="http"):
        """Any web server."""

        opts: dict[str, str] | None = None


AnyObjectStoreConfig: TypeAlias = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Http
)


def http_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Http:
    """Describe a web server, with options of the HTTP client such as `timeout`.

    >>> import icefloe
    >>> icefloe.http_store({"timeout": "30s"}).opts
    {'timeout': '30s'}
    """
    return ObjectStoreConfig.Http(None if opts is None else dict(opts))


def local_filesystem_store(path: str | os.PathLike[str]) -> ObjectStoreConfig.LocalFileSystem:
    """Describe a folder."""
    return ObjectStoreConfig.LocalFileSystem(os.fspath(path))


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,  # noqa: FBT001, FBT002 (the known signature)
    anonymous: bool = False,  # noqa: FBT001, FBT002
    s3_compatible: bool = False,  # noqa: FBT001, FBT002
    force_path_style: bool = False,  # noqa: FBT001, FBT002
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,  # noqa: FBT001, FBT002
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> ObjectStoreConfig.S3Compatible | ObjectStoreConfig.S3:
    """Describe S3, or a compatible store if `s3_compatible`.

    >>> import icefloe
    >>> icefloe.s3_store(region="us-east-1", anonymous=True).options.region
    'us-east-1'
    """
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    if s3_compatible:
        return ObjectStoreConfig.S3Compatible(options)
    return ObjectStoreConfig.S3(options)


def gcs_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    """Describe Google Cloud Storage, with options of its client."""
    return ObjectStoreConfig.Gcs(None if opts is None else dict(opts))


def azure_store(
    *, account: str, config: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Azure:
    """Describe Azure Blob Storage, with options of its client."""
    return ObjectStoreConfig.Azure({"account": account, **(config or {})})
