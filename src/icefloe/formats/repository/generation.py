"""The generation `repository`: specs 001 and 002, compact and fast."""

from __future__ import annotations

from icefloe.formats.config_files import ConfigFiles
from icefloe.formats.container import COLUMNS_VERSION, ROWS_VERSION
from icefloe.formats.port import Generation
from icefloe.formats.repository.codec import RepositoryCodec
from icefloe.formats.repository.layout import LAYOUT
from icefloe.formats.repository.refs import repository_refs

REPOSITORY = Generation(
    name="repository",
    spec_versions=(ROWS_VERSION, COLUMNS_VERSION),
    spec_version=COLUMNS_VERSION,
    layout=LAYOUT,
    make_codec=RepositoryCodec,
    open_refs=repository_refs,
    make_config=ConfigFiles,
    keeps_logs=True,
)
