"""One colour for each peer, in all plots."""

COLOURS = {
    "icefloe": "#0b6e99",
    "icefloe-nosync": "#56b4d3",
    "icefloe-store": "#1f9e89",
    "icefloe-dataset": "#7ad151",
    "icefloe-icechunk1": "#b8860b",
    "icefloe-icechunk2": "#e0a526",
    "icechunk": "#444444",
    "icechunk-newest": "#999999",
    "zarr-local": "#d98c21",
    "zarr-obstore": "#c44e52",
    "zarrs": "#5b8c5a",
    "tensorstore": "#8064a2",
    "icefloe-loop": "#7f7f7f",
    "parquet": "#50642c",
    "icefloe-table": "#0b6e99",
    "icefloe-sql": "#56b4d3",
    "icefloe-view": "#1f9e89",
    "icefloe-reduce": "#7ad151",
}
