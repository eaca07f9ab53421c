"""An S3 bucket in memory that answers late: `python -m benchmarks.distant_bucket PORT DELAY_MS`.

Requests are delayed side by side, as on the way to a far data centre; the bandwidth is that of the
loopback. It knows what the clients of icefloe and of the official package send: objects, ranges,
conditional writes, listings, multipart uploads, deleting many. No signature is checked.
`GET /?statistics` gives the number of requests and bytes since it was asked last, and how many
requests were under way at a time at most.
"""

from __future__ import annotations

import asyncio
import atexit
import bisect
import contextlib
import hashlib
import itertools
import json
import re
import sys
import time
from email.utils import formatdate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import urlopen
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
PAGE = 1000
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Stored(NamedTuple):
    """One object."""

    data: bytes
    e_tag: str
    modified: float
    headers: dict[str, str]


class Request(NamedTuple):
    """One request, read as a whole."""

    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Bucket:
    """Objects by key, and uploads in parts that are not complete."""

    def __init__(self) -> None:
        """Start empty."""
        self._objects: dict[str, Stored] = {}
        self._keys: list[str] = []
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: Request) -> Answer:
        """Do what a request asks for."""
        if request.method in {"GET", "HEAD"}:
            return self._read(request) if request.key else self._list(request.query)
        if request.method == "PUT":
            return self._write(request)
        if request.method == "POST":
            return self._post(request)
        if request.method == "DELETE":
            self._remove(request.key)
            return Answer(204)
        return Answer(405)

    def _read(self, request: Request) -> Answer:
        stored = self._objects.get(request.key)
        if stored is None:
            return _failure(404, "NoSuchKey")
        headers = {
            "ETag": stored.e_tag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
            **stored.headers,
        }
        size = len(stored.data)
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if match is None:
            return Answer(200, stored.data, headers)
        if match[1]:
            start, stop = int(match[1]), min(int(match[2] or size) + 1, size)
        else:
            start, stop = max(0, size - int(match[2])), size
        if start >= size:
            return _failure(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return Answer(206, stored.data[start:stop], headers)

    def _write(self, request: Request) -> Answer:
        if "partNumber" in request.query:
            parts = self._uploads.get(request.query["uploadId"])
            if parts is None:
                return _failure(404, "NoSuchUpload")
            parts[int(request.query["partNumber"])] = request.body
            return Answer(200, headers={"ETag": _e_tag(request.body)})
        return self._put(request, request.body)

    def _put(self, request: Request, data: bytes) -> Answer:
        stored = self._objects.get(request.key)
        if request.headers.get("if-none-match") == "*" and stored is not None:
            return _failure(412, "PreconditionFailed")
        if "if-match" in request.headers and (
            stored is None or stored.e_tag.strip('"') != request.headers["if-match"].strip('"')
        ):
            return _failure(412, "PreconditionFailed")
        if stored is None:
            bisect.insort(self._keys, request.key)
        kept = {name: text for name, text in request.headers.items() if name.startswith("x-amz-m")}
        stored = Stored(data, _e_tag(data, next(self._numbers)), time.time(), kept)
        self._objects[request.key] = stored
        return Answer(200, headers={"ETag": stored.e_tag})

    def _post(self, request: Request) -> Answer:
        if "delete" in request.query:
            keys = [unquote_xml(key) for key in re.findall("<Key>(.*?)</Key>", _text(request))]
            for key in keys:
                self._remove(key)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml(f"<DeleteResult {_NAMESPACE}>{gone}</DeleteResult>")
        if "uploads" in request.query:
            upload = f"upload-{next(self._numbers)}"
            self._uploads[upload] = {}
            return _xml(
                f"<InitiateMultipartUploadResult {_NAMESPACE}><Key>{escape(request.key)}</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            )
        parts = self._uploads.pop(request.query.get("uploadId", ""), None)
        if parts is None:
            return _failure(404, "NoSuchUpload")
        done = self._put(request, b"".join(parts[number] for number in sorted(parts)))
        if done.status != 200:
            return done
        return _xml(
            f"<CompleteMultipartUploadResult {_NAMESPACE}><Key>{escape(request.key)}</Key>"
            f"<ETag>{escape(done.headers['ETag'])}</ETag></CompleteMultipartUploadResult>"
        )

    def _remove(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        lines: list[str] = []
        folders: list[str] = []
        at = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
        token = ""
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            key = self._keys[at]
            folder, found, _ = (
                key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            )
            if len(lines) + len(folders) == min(PAGE, int(query.get("max-keys", PAGE))):
                token = self._keys[at - 1]
                break
            if found:
                folders.append(prefix + folder + delimiter)
                at = bisect.bisect_left(self._keys, prefix + folder + chr(ord(delimiter) + 1))
                continue
            lines.append(_listed(key, self._objects[key]))
            at += 1
        groups = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return _xml(
            f"<ListBucketResult {_NAMESPACE}><IsTruncated>{str(bool(token)).lower()}</IsTruncated>"
            f"<KeyCount>{len(lines) + len(folders)}</KeyCount>{more}{''.join(lines)}{groups}"
            "</ListBucketResult>"
        )


def unquote_xml(text: str) -> str:
    """Undo `escape`."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _listed(key: str, stored: Stored) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stored.modified))
    milliseconds = int(stored.modified % 1 * 1000)
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
        f"<LastModified>{when}.{milliseconds:03}Z</LastModified>"
        f"<ETag>{escape(stored.e_tag)}</ETag><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _e_tag(data: bytes, number: int = 0) -> str:
    # Not a digest of the data: that would be most of the work of this server.
    sample = hashlib.md5(data[:64] + len(data).to_bytes(8, "big") + number.to_bytes(8, "big"))
    return f'"{sample.hexdigest()}"'


def _text(request: Request) -> str:
    return request.body.decode()


def _xml(text: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    return Answer(200, body, {"Content-Type": "application/xml"})


def _failure(status: int, code: str) -> Answer:
    return Answer(status, _xml(f"<Error><Code>{code}</Code></Error>").body)


class DistantBucket:
    """The server."""

    def __init__(self, delay: float) -> None:
        """Take the seconds by which each answer is late."""
        self._delay = delay
        self._bucket = Bucket()
        self._statistics = {"requests": 0, "bytes_in": 0, "bytes_out": 0, "most_at_once": 0}
        self._under_way = 0

    async def serve(self, port: int) -> None:
        """Answer until the process ends."""
        server = await asyncio.start_server(self._talk, "127.0.0.1", port, limit=2**20)
        async with server:
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader, writer)) is not None:
                answer = await self._answer(request)
                head = [f"HTTP/1.1 {answer.status} X", f"Content-Length: {len(answer.body)}"]
                head += [f"{name}: {text}" for name, text in answer.headers.items()]
                writer.write("\r\n".join([*head, "", ""]).encode())
                if request.method != "HEAD":
                    writer.write(answer.body)
                await writer.drain()
        writer.close()

    async def _answer(self, request: Request) -> Answer:
        if "statistics" in request.query:
            body = json.dumps(self._statistics).encode()
            self._statistics = dict.fromkeys(self._statistics, 0)
            return Answer(200, body)
        self._under_way += 1
        self._statistics["most_at_once"] = max(self._statistics["most_at_once"], self._under_way)
        await asyncio.sleep(self._delay)
        self._under_way -= 1
        answer = self._bucket.answer(request)
        self._statistics["requests"] += 1
        self._statistics["bytes_in"] += len(request.body)
        self._statistics["bytes_out"] += len(answer.body)
        return answer


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.strip().lower(): text.strip()
        for name, _, text in (line.partition(":") for line in lines if line)
    }
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
        body = _without_chunks(body)
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    key = unquote(url.path).lstrip("/").partition("/")[2]  # behind the name of the bucket
    return Request(method, key, query, headers, body)


def _without_chunks(body: bytes) -> bytes:
    """The content of a body that the client signed in chunks."""
    parts, at = [], 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16)
        if size == 0:
            break
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)


def start(delay_ms: float) -> str:
    """Start a server in a process of its own, which ends with this one. Returns its address."""
    from tests.endpoints.processes import free_port, server

    port = free_port()
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    command = [sys.executable, "-m", "benchmarks.distant_bucket", str(port), str(delay_ms)]
    return stack.enter_context(server(command, port))


def statistics(address: str) -> dict[str, int]:
    """Requests and bytes since this was called last, and how many were in progress at a time."""
    with urlopen(f"{address}/?statistics") as answer:
        return dict(json.load(answer))


if __name__ == "__main__":
    asyncio.run(DistantBucket(float(sys.argv[2]) / 1000).serve(int(sys.argv[1])))
