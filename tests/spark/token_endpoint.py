"""An identity provider for tests: a token endpoint (RFC 6749) on this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

Answer = tuple[int, dict[str, str], bytes]


class TokenEndpoint:
    """An endpoint that gives a new token for each request.

    Attributes:
        url: of it.
        answer: makes the answer: status, headers, content.
        asked: the headers and the form of each request.
    """

    def __init__(self, url: str, make_token: Callable[[int], str]) -> None:
        self.url = url
        self.asked: list[tuple[dict[str, str], dict[str, str]]] = []
        self.answer: Callable[[], Answer] = lambda: self.gives(make_token(len(self.asked)))

    @staticmethod
    def gives(token: Any, **more: Any) -> Answer:
        """Return an answer with a token that is valid for an hour, unless it is said otherwise."""
        content = {"access_token": token, "token_type": "Bearer", "expires_in": 3600, **more}
        return 200, {}, json.dumps(content).encode()


@contextlib.contextmanager
def token_endpoint(
    make_token: Callable[[int], str] = "token-{}".format,
) -> Iterator[TokenEndpoint]:
    """Run an endpoint on a free port of 127.0.0.1 until the end of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            form = dict(parse_qsl(self.rfile.read(size).decode()))
            endpoint.asked.append((dict(self.headers), form))
            status, headers, content = endpoint.answer()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            # The other side may have gone: it does not wait for an answer that comes late.
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 - what a redirect that is followed would ask

        def log_message(self, *given: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        endpoint = TokenEndpoint(f"http://127.0.0.1:{server.server_port}/token", make_token)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
