"""Where bytes are kept: by key, created once, listed.

The names of the official package's module of this name are here, too.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.storage.access.factories": """
        Storage=StorageFactory azure_storage gcs_storage http_storage in_memory_storage
        local_filesystem_storage r2_storage s3_object_store_storage s3_storage tigris_storage
    """,
    "icefloe.storage.access.redirects": "redirect_storage",
    "icefloe.storage.access.stores": """
        AnyObjectStoreConfig ChecksumAlgorithm ObjectStoreConfig S3Options azure_store gcs_store
        http_store local_filesystem_store s3_store
    """,
    "icefloe.storage.settings": """
        StorageConcurrencySettings StorageRetriesSettings StorageSettings
        StorageTimeoutSettings
    """,
}
"""The public names by module; `make api` writes the stub of this package from it."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)
