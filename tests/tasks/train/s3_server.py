"""A real S3 server over HTTP (moto's), in front of which faults can be injected.

    with S3Server() as s3:
        s3.inject("503", method="PUT", times=2)
        ...

Faults: `503` answers so; `hang` answers nothing until the client has gone; `truncate` sends half of the
body under the whole one's Content-Length; `short` sends half of it as if that were all; `flip` changes
its first byte; `reset` cuts the connection; `lost` does what is asked and cuts it before the answer.
`gone` says that there is no such upload.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "checkpoints"
_ERRORS = {
    "503": (
        "503 Service Unavailable",
        b"<Error><Code>ServiceUnavailable</Code><Message>Please reduce</Message></Error>",
    ),
    "gone": (
        "404 Not Found",
        b"<Error><Code>NoSuchUpload</Code><Message>No such upload</Message></Error>",
    ),
}

StartResponse = Callable[..., Any]


class _QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@dataclass
class Fault:
    """Strikes the next `times` requests that match; then it is gone."""

    kind: str
    method: str
    path: str
    query: str
    times: int
    struck: int = 0


class S3Server:
    """One server on a free port, with an empty bucket."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler
        )
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self._server.block_on_close = False  # type: ignore[attr-defined]
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.requests: list[str] = []
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}",
            "AWS_ACCESS_KEY_ID": "a-test-key",
            "AWS_SECRET_ACCESS_KEY": "a-test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def __enter__(self) -> S3Server:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def client(self) -> Any:
        """A boto3 client, to look at the bucket by other means."""
        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="a-test-key",
            aws_secret_access_key="a-test-secret",
            region_name="us-east-1",
        )

    def reset(self) -> None:
        """An empty bucket, no faults."""
        self._faults = []
        self.requests = []
        client = self.client()
        if any(bucket["Name"] == BUCKET for bucket in client.list_buckets()["Buckets"]):
            for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
                client.abort_multipart_upload(
                    Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
                client.delete_object(Bucket=BUCKET, Key=item["Key"])
        else:
            client.create_bucket(Bucket=BUCKET)
        client.close()
        self.requests = []

    def stored_keys(self) -> list[str]:
        client = self.client()
        found = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        client.close()
        return [item["Key"] for item in found]

    def unfinished_uploads(self) -> list[str]:
        client = self.client()
        found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        client.close()
        return [upload["Key"] for upload in found]

    def inject(
        self, kind: str, *, method: str, path: str = "", query: str = "", times: int = 1
    ) -> Fault:
        """Strike the next requests with this method whose path and query hold these texts."""
        fault = Fault(kind, method, path, query, times)
        self._faults.append(fault)
        return fault

    def _due(self, environ: dict[str, Any]) -> Fault | None:
        with self._lock:
            query = environ.get("QUERY_STRING", "")
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {query}")
            for fault in self._faults:
                if (
                    fault.struck < fault.times
                    and fault.method == environ["REQUEST_METHOD"]
                    and fault.path in environ["PATH_INFO"]
                    and fault.query in query
                ):
                    fault.struck += 1
                    return fault
        return None

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        fault = self._due(environ)
        connection: socket.socket = environ["werkzeug.socket"]
        if fault is None:
            return self._app(environ, start_response)
        if fault.kind == "hang":
            self._closing.wait(60)
            raise ConnectionResetError
        if fault.kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            raise ConnectionResetError
        if fault.kind in _ERRORS:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, body = _ERRORS[fault.kind]
            start_response(
                status, [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))]
            )
            return [body]
        return self._spoiled(fault, environ, start_response)

    def _spoiled(
        self, fault: Fault, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        connection: socket.socket = environ["werkzeug.socket"]
        answer: list[Any] = []
        body = b"".join(self._app(environ, lambda *given: answer.extend(given)))
        if fault.kind == "lost":
            connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        status, headers = answer[0], answer[1]
        half = body[: len(body) // 2]
        # The server's own checksums must not give the fault away where a real one would not.
        headers = [h for h in headers if h[0].lower() not in ("content-length", "connection")]
        if fault.kind == "truncate":
            start_response(status, [*headers, ("Content-Length", str(len(body)))])

            def cut() -> Iterable[bytes]:
                yield half
                connection.shutdown(socket.SHUT_RDWR)
                raise ConnectionResetError

            return cut()
        body = half if fault.kind == "short" else bytes([body[0] ^ 1]) + body[1:]
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]
