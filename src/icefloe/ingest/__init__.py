"""Files of other formats as Zarr arrays: parse, plan, place, write."""
