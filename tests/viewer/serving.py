"""A viewer that runs in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import uvicorn

from icefloe.viewer.server import Viewer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe import Repository


@contextlib.contextmanager
def served(repository: Repository) -> Iterator[Viewer]:
    viewer = Viewer(repository)
    server = uvicorn.Server(uvicorn.Config(viewer.app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [viewer._socket]}, daemon=True)
    thread.start()
    yield viewer
    server.should_exit = True
    thread.join(30)
    viewer.close()
