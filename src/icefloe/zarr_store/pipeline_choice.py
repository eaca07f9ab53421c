"""Which codec pipeline an array gets: ours on our stores, elsewhere what Zarr is told to use.

Zarr chooses the pipeline by one setting for all stores. To change it would change how arrays of
other stores are read, so the place where Zarr makes an array's pipeline is wrapped instead: the
configured pipeline is made as always and, for an array on one of our stores, put into ours.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any

import zarr.core.array
from zarr.core.metadata.v3 import ArrayV3Metadata

from icefloe.zarr_store.pipeline import StorePipeline
from icefloe.zarr_store.store import IcefloeStore

if TYPE_CHECKING:
    from zarr.abc.codec import CodecPipeline

logger = logging.getLogger(__name__)


def use_own_pipeline() -> None:
    """Let arrays on our stores have our pipeline, from now on.

    `ICEFLOE_ZARR_PIPELINE=0` in the environment leaves all to Zarr's own pipeline.
    """
    make: Any = getattr(zarr.core.array, "create_codec_pipeline", None)
    if make is None:
        logger.warning(
            "this version of Zarr makes pipelines in another way than icefloe knows; chunks are "
            "read and written one by one"
        )
        return
    if hasattr(make, "__wrapped__") or os.environ.get("ICEFLOE_ZARR_PIPELINE") == "0":
        return

    @functools.wraps(make)
    def create_codec_pipeline(metadata: Any, *args: Any, **kwargs: Any) -> CodecPipeline:
        pipeline: CodecPipeline = make(metadata, *args, **kwargs)
        if isinstance(kwargs.get("store"), IcefloeStore) and isinstance(metadata, ArrayV3Metadata):
            return StorePipeline(pipeline, metadata)
        return pipeline

    zarr.core.array.create_codec_pipeline = create_codec_pipeline
