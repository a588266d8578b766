"""A real HTTP server that takes webhooks: willing, unwilling, or without end."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_DRIP_S = 0.1


class WebhookServer:
    """Listens on a port of its own while the block runs."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        """Path and JSON of each request."""
        self.status = 200
        self.hang = False
        """Whether answers do not come before the block ends."""
        self.drip = False
        """Whether a byte of them comes now and then."""
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> WebhookServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                server.messages.append((self.path, json.loads(self.rfile.read(length))))
                if server.hang and self._stays_silent():
                    return
                self.send_response(server.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def _stays_silent(self) -> bool:
                if server.drip:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not server._over.wait(_DRIP_S):
                    try:
                        if server.drip:
                            self.wfile.write(b"x")
                    except OSError:
                        break
                return True

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        return Handler
