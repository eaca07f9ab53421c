"""The threads that decoding and encoding may use, and work spread over them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.engine.port import ChunkSource

Item = TypeVar("Item")


def allowed_threads(tree: ChunkSource) -> int:
    """How many threads may decode and encode chunks of a tree (`codec_threads`)."""
    return tree.settings.codec_threads


def for_each(work: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
    """Do some work for each item, in threads; raises the first error, after which none is started.

    The threads end with the call: none is left behind that a fork could lose.
    """
    if threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(items)), "icefloe-codec") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
