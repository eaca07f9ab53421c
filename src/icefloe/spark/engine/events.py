"""Reports to logs and listeners what jobs committed.

A listener gets a `JobEvent` after each commit of a job. It can neither stop nor fail the job: what
it raises is logged. If the client of OpenLineage is installed, and the environment says where its
events go (`OPENLINEAGE_URL` or `OPENLINEAGE_CONFIG`), they are sent there without further ado.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from icefloe.model.record import Record
from icefloe.tables.job_summary import JobSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[["JobEvent"], Any]

logger = logging.getLogger("icefloe.spark.jobs")

_listeners: list[Any] = []
_lock = threading.Lock()


class JobEvent(Record, frozen=True):
    """A job that has committed."""

    location: str
    """The repository, without credentials."""
    branch: str
    snapshot_id: str
    parent_id: str
    """The snapshot that the job was based on."""
    arrays: tuple[str, ...]
    summary: JobSummary
    input_locations: tuple[str, ...] = ()
    """The repository of each of `summary.input_snapshots`; empty if all are of this one."""


def add_listener(listener: Listener) -> Callable[[], None]:
    """Call a function with a `JobEvent` after each commit of a job in this process.

    Returns:
        A function that removes the listener.

    >>> from icefloe.spark import add_listener
    >>> events = []
    >>> stop = add_listener(events.append)
    >>> stop()
    """
    with _lock:
        _listeners.append(listener)

    def stop() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return stop


def announce(event: JobEvent) -> None:
    """Log a commit of a job, and call all listeners; their errors are logged, not raised."""
    summary = event.summary
    logger.info(
        "%s committed %s to %s of %s: %d chunks, %d bytes written, %d tasks, %.1f s",
        summary.job,
        event.snapshot_id,
        event.branch,
        event.location,
        summary.chunks,
        summary.bytes_written,
        summary.tasks,
        summary.seconds,
        extra={"icefloe": {**_facts(event), **summary.to_data()}},
    )
    with _lock:
        listeners = list(_listeners)
    for listener in (*listeners, _send_lineage):
        try:
            listener(event)
        except Exception:
            logger.exception("a listener of jobs failed; the commit %s stands", event.snapshot_id)


def _send_lineage(event: JobEvent) -> None:
    """Send an OpenLineage event, if its client is installed and the environment configures it."""
    if "OPENLINEAGE_URL" not in os.environ and "OPENLINEAGE_CONFIG" not in os.environ:
        return
    if importlib.util.find_spec("openlineage") is None:
        return
    from icefloe.spark.engine.exporters import configured_lineage

    configured_lineage()(event)


def _facts(event: JobEvent) -> dict[str, Any]:
    return {
        "location": event.location,
        "branch": event.branch,
        "snapshot_id": event.snapshot_id,
        "arrays": list(event.arrays),
    }
