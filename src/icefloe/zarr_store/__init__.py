"""The Zarr face of a session."""

from icefloe.zarr_store.pipeline_choice import use_own_pipeline

use_own_pipeline()
