"""A bucket in memory: `python bucket_server.py DIALECT PORT TOKEN`.

DIALECT `gcs` speaks what obstore's client of Google Cloud Storage needs of the XML interface, with
conditions by generation, and answers 401 to any bearer token but TOKEN. `careless` speaks S3 and
ignores every condition, as some real servers do.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000


class Object(NamedTuple):
    data: bytes
    generation: int
    modified: float
    headers: dict[str, str]

    @property
    def e_tag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class Bucket:
    """Objects in order of their keys. Its users hold the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Object] = {}
        self.keys: list[str] = []
        self.uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}
        self.numbers = itertools.count(time.time_ns() // 1000)

    def put(self, key: str, data: bytes, headers: dict[str, str]) -> Object:
        if key not in self.objects:
            bisect.insort(self.keys, key)
        self.objects[key] = Object(data, next(self.numbers), time.time(), headers)
        return self.objects[key]

    def delete(self, key: str) -> bool:
        if self.objects.pop(key, None) is None:
            return False
        del self.keys[bisect.bisect_left(self.keys, key)]
        return True


class FailureError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024
    disable_nagle_algorithm = True
    bucket: Bucket
    is_gcs: bool
    token: str

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.respond(self.read)

    def do_HEAD(self) -> None:
        self.respond(self.read)

    def do_PUT(self) -> None:
        self.respond(self.write)

    def do_POST(self) -> None:
        self.respond(self.post)

    def do_DELETE(self) -> None:
        self.respond(self.remove)

    def respond(self, act: Any) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.key = unquote(url.path.lstrip("/").partition("/")[2])
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            if self.is_gcs and self.path != "/":
                self.check_token()
            act()
        except FailureError as failure:
            text = f"<Error><Code>{failure.code}</Code><Message>{failure.code}</Message></Error>"
            self.answer(failure.status, text.encode())

    def check_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            raise FailureError(401, "AuthenticationRequired")

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def require_condition(self) -> None:
        expected = self.headers.get("x-goog-if-generation-match")
        current = self.bucket.objects.get(self.key)
        if (
            self.is_gcs
            and expected is not None
            and int(expected) != (current.generation if current else 0)
        ):
            raise FailureError(412, "PreconditionFailed")

    def kept_headers(self) -> dict[str, str]:
        prefix = "x-goog-meta-" if self.is_gcs else "x-amz-meta-"
        return {
            name: value for name, value in self.headers.items() if name.lower().startswith(prefix)
        }

    def facts(self, found: Object) -> dict[str, str]:
        return {
            "ETag": found.e_tag,
            "Last-Modified": formatdate(found.modified, usegmt=True),
            "x-goog-generation": str(found.generation),
            **found.headers,
        }

    def write(self) -> None:
        with self.bucket.lock:
            if "partNumber" in self.query:
                upload = self.bucket.uploads[self.query["uploadId"]]
                upload[1][int(self.query["partNumber"])] = self.body
                self.answer(200, headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})
                return
            self.require_condition()
            stored = self.bucket.put(self.key, self.body, self.kept_headers())
        self.answer(200, headers=self.facts(stored))

    def post(self) -> None:
        with self.bucket.lock:
            if "delete" in self.query:
                names = ElementTree.fromstring(self.body).iter()
                for element in names:
                    if element.tag.rpartition("}")[2] == "Key":
                        self.bucket.delete(element.text or "")
                self.answer(200, b"<DeleteResult></DeleteResult>")
                return
            if "uploads" in self.query:
                name = str(next(self.bucket.numbers))
                self.bucket.uploads[name] = (self.kept_headers(), {})
                body = (
                    f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                )
                self.answer(200, body.encode())
                return
            headers, parts = self.bucket.uploads.pop(self.query["uploadId"])
            self.require_condition()
            data = b"".join(parts[number] for number in sorted(parts))
            stored = self.bucket.put(self.key, data, headers)
        body = (
            "<CompleteMultipartUploadResult>"
            f"<ETag>{escape(stored.e_tag)}</ETag></CompleteMultipartUploadResult>"
        )
        self.answer(200, body.encode(), self.facts(stored))

    def remove(self) -> None:
        with self.bucket.lock:
            if "uploadId" in self.query:
                self.bucket.uploads.pop(self.query["uploadId"], None)
            elif not self.bucket.delete(self.key):
                raise FailureError(404, "NoSuchKey")
        self.answer(204)

    def read(self) -> None:
        if not self.key:
            self.list()
            return
        found = self.bucket.objects.get(self.key)
        if found is None:
            raise FailureError(404, "NoSuchKey")
        first, last = self.byte_range(len(found.data))
        headers = self.facts(found)
        status = 200
        if "Range" in self.headers:
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(found.data)}"
        self.answer(status, found.data[first:last], headers)

    def byte_range(self, size: int) -> tuple[int, int]:
        wanted = self.headers.get("Range")
        if wanted is None:
            return 0, size
        start, _, end = wanted.removeprefix("bytes=").partition("-")
        if not start:
            first, last = max(0, size - int(end)), size
        else:
            first, last = int(start), min(size, int(end) + 1) if end else size
        if first >= size:
            raise FailureError(416, "InvalidRange")
        return first, last

    def list(self) -> None:
        prefix = self.query.get("prefix", "")
        delimiter = self.query.get("delimiter", "")
        after = max(self.query.get("continuation-token", ""), self.query.get("start-after", ""))
        entries: list[str] = []
        folders: list[str] = []
        last = ""
        truncated = False
        with self.bucket.lock:
            first = max(
                bisect.bisect_left(self.bucket.keys, prefix),
                bisect.bisect_right(self.bucket.keys, after) if after else 0,
            )
            for key in itertools.islice(self.bucket.keys, first, None):
                if not key.startswith(prefix):
                    break
                head, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("",) * 3
                folder = prefix + head + slash
                is_new = not slash or folder not in folders
                if is_new and len(entries) + len(folders) == PAGE:
                    truncated = True
                    break
                last = key
                if not slash:
                    entries.append(entry(key, self.bucket.objects[key]))
                elif is_new:
                    folders.append(folder)
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if truncated else ""
        text = "".join(
            [
                "<ListBucketResult>",
                f"<IsTruncated>{str(truncated).lower()}</IsTruncated>",
                more,
                *entries,
                *(
                    f"<CommonPrefixes><Prefix>{escape(x)}</Prefix></CommonPrefixes>"
                    for x in folders
                ),
                "</ListBucketResult>",
            ]
        )
        self.answer(200, text.encode(), {"Content-Type": "application/xml"})


def entry(key: str, found: Object) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{moment}</LastModified>"
        f"<ETag>{escape(found.e_tag)}</ETag><Size>{len(found.data)}</Size></Contents>"
    )


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    Handler.bucket = Bucket()
    Handler.is_gcs = sys.argv[1] == "gcs"
    Handler.token = sys.argv[3]
    Server(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
