"""A real HTTP server that speaks the chat-completions protocol, and misbehaves on demand."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    """Keeps what it was asked; every request is answered by `behaviour`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.asked = json.loads(self.rfile.read(length))
        self.server.requests.append(self.asked)
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        self.server.behaviour(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer(self, content: Any, **choice: Any) -> None:
        message = {"role": "assistant", "content": content, **choice.pop("message", {})}
        self.send(
            200, completion([{"index": 0, "message": message, "finish_reason": "stop", **choice}])
        )


def completion(choices: Any) -> bytes:
    value = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return json.dumps(value).encode()


@contextmanager
def serve(behaviour: Behaviour) -> Iterator[Server]:
    """The server, running."""
    server = Server(behaviour)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def says(content: Any) -> Behaviour:
    """Answers with a text, or with an object as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda handler: handler.answer(text)


# --- misbehaviour ---------------------------------------------------------------------------------


def hang(handler: Handler) -> None:
    """Takes the question and says nothing."""
    handler.server.ended.wait(60)


def drip(handler: Handler) -> None:
    """A byte now and then, for ever: no socket's time-out notices."""
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    while not handler.server.ended.wait(0.1):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def close(handler: Handler) -> None:
    """Hangs up at once, with a reset."""
    handler.connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    handler.connection.close()
    handler.close_connection = True


def close_within(handler: Handler) -> None:
    """Hangs up in the middle of its answer."""
    handler.send_response(200)
    handler.send_header("content-length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    handler.close_connection = True


def flood(handler: Handler) -> None:
    """An answer without end, of no stated length."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    piece = b" " * 65536
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not handler.server.ended.is_set():
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def not_http(handler: Handler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    handler.wfile.flush()
    handler.close_connection = True


def status(code: int, **headers: str) -> Behaviour:
    body = json.dumps({"error": {"message": f"status {code}", "type": "x"}}).encode()
    return lambda handler: handler.send(code, body, **headers)


def raw(body: bytes, **headers: str) -> Behaviour:
    return lambda handler: handler.send(200, body, **headers)
