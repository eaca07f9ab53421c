"""Makes Zarr hand whole requests to icefloe stores, instead of one chunk after the other.

Zarr chooses its codec pipeline by one setting for all stores. Changing that setting would change
how arrays of other stores are read, so `zarr.core.array.create_codec_pipeline`, which Zarr calls
once for each array, is wrapped instead: it makes the configured pipeline as before and, for an
array on an icefloe store, puts it into `StorePipeline`.

Importing icefloe changes nothing in Zarr. The first store turns acceleration on, unless `disable`
was called or `ICEFLOE_ZARR_PIPELINE=0` is in the environment:

    from icefloe.zarr_store import acceleration

    acceleration.disable()  # Zarr is as it was; arrays that are open already keep their pipeline
    acceleration.enable()
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import zarr.core.array
from zarr.core.metadata.v3 import ArrayV3Metadata

from icefloe.zarr_store.pipeline import StorePipeline
from icefloe.zarr_store.tree_store import TreeStore

if TYPE_CHECKING:
    from zarr.abc.codec import CodecPipeline

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_OURS = "_icefloe_acceleration"
"""The mark of our wrapper: an attribute that is the wrapper itself, because `functools.wraps`
copies attributes to the wrappers that other libraries put around ours."""

_is_decided = False
_is_enabled = False


def enable() -> bool:
    """Accelerate arrays on icefloe stores that are opened from now on.

    Returns:
        Whether it worked: not with a version of Zarr that makes pipelines in another way.
    """
    with _lock:
        return _enable()


def disable() -> None:
    """Leave arrays that are opened from now on to Zarr's own pipeline, also on icefloe stores."""
    global _is_decided, _is_enabled
    with _lock:
        _is_decided, _is_enabled = True, False
        wrapper: Any = getattr(zarr.core.array, "create_codec_pipeline", None)
        if _is_ours(wrapper):
            zarr.core.array.create_codec_pipeline = wrapper.__wrapped__
        # Wrapped by somebody else in turn, ours stays where it is and does nothing.


def is_enabled() -> bool:
    """Whether arrays on icefloe stores are accelerated when they are opened."""
    return _is_enabled


def enable_by_default() -> None:
    """Enable it, unless it was enabled or disabled explicitly. Every new store calls this."""
    with _lock:
        if not _is_decided and os.environ.get("ICEFLOE_ZARR_PIPELINE") != "0":
            _enable()


def _enable() -> bool:
    global _is_decided, _is_enabled  # noqa: PLW0603
    _is_decided = True
    make: Any = getattr(zarr.core.array, "create_codec_pipeline", None)
    if make is None:
        _logger.warning(
            "this version of Zarr makes pipelines in another way than icefloe knows; chunks are "
            "read and written one by one"
        )
        return False
    if not _is_wrapped(make):
        zarr.core.array.create_codec_pipeline = _wrap(make)
    _is_enabled = True
    return True


def _is_ours(function: Any) -> bool:
    return function is not None and getattr(function, _OURS, None) is function


def _is_wrapped(function: Any) -> bool:
    """Whether our wrapper is among the wrappers of a function."""
    while function is not None and not _is_ours(function):
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _wrap(make: Any) -> Any:
    @functools.wraps(make)
    def create_codec_pipeline(metadata: Any, *args: Any, **kwargs: Any) -> CodecPipeline:
        pipeline: CodecPipeline = make(metadata, *args, **kwargs)
        ours = isinstance(kwargs.get("store"), TreeStore)
        if _is_enabled and ours and isinstance(metadata, ArrayV3Metadata):
            return StorePipeline(pipeline, metadata)
        return pipeline

    setattr(create_codec_pipeline, _OURS, create_codec_pipeline)
    return create_codec_pipeline
