"""The dashboard's web server, and the thread that polls the folder for all open pages."""

from __future__ import annotations

import errno
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Condition, Thread
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ...core.errors import BusyError, ConfigError
from .views import View, ViewLoader

POLL_SECONDS = 0.5  # seconds between two reads of the folder
REST_FACTOR = 5  # pause this many times as long as a read took: runs need the processor
HEARTBEAT_SECONDS = 15.0  # seconds without a change after which a stream sends a keep-alive


class ViewWatcher:
    """Polls the dashboard's views to which pages have subscribed, and streams the parts that changed."""

    def __init__(self, view_loader: ViewLoader, limit: int) -> None:
        self.view_loader, self.limit = view_loader, limit
        self.subscribers: Counter[tuple[str, ...]] = Counter()
        # the parts of each view's message
        self.messages: dict[tuple[str, ...], tuple[bytes, ...]] = {}
        self.changed = Condition()
        self.closed = False
        Thread(target=self._poll_views, name="watch", daemon=True).start()

    def subscribe(self, names: tuple[str, ...], first: View) -> Iterator[bytes] | None:
        """Return a stream of a view's messages, the current one first; None with too many subscribers."""
        with self.changed:
            if self.subscribers.total() >= self.limit:
                return None
            self.subscribers[names] += 1
            self.messages[names] = first.message_parts
            self.changed.notify_all()
        return self._stream_messages(names)

    def unsubscribe(self, names: tuple[str, ...]) -> None:
        """Remove one subscriber of a view."""
        with self.changed:
            self.subscribers[names] -= 1
            if not self.subscribers[names]:
                del self.subscribers[names]
            self.changed.notify_all()

    def close(self) -> None:
        """Close all streams."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _stream_messages(self, names: tuple[str, ...]) -> Iterator[bytes]:
        sent: tuple[bytes, ...] = ()
        while not self.closed:
            with self.changed:
                self._wait_for_change(names, sent)
                before, sent = sent, self.messages[names]
            yield b"".join(part for part in sent if part not in before) or b": alive\n\n"

    def _wait_for_change(self, names: tuple[str, ...], sent: tuple[bytes, ...]) -> bool:
        return self.changed.wait_for(
            lambda: self.closed or self.messages[names] != sent, HEARTBEAT_SECONDS
        )

    def _poll_views(self) -> None:
        while not self.closed:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.subscribers)
                views = list(self.subscribers)
            started = monotonic()
            for names in views:
                if view := self.view_loader.load_view(*names):
                    with self.changed:
                        self.messages[names] = view.message_parts
                        self.changed.notify_all()
            rest = max(POLL_SECONDS, REST_FACTOR * (monotonic() - started))
            with self.changed:
                self.changed.wait_for(lambda: self.closed, rest)


ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8765
PORTS_TO_TRY = 20  # ports to try before the system chooses one
MAX_CHOSEN = 100  # most runs and folders on one page; run_list.js has the same limit
MAX_STREAMS = 32  # most streams open at once
RETRY_MILLISECONDS = 1000  # delay before a browser reconnects
HEADERS = {
    # the page's own policy allows its script; these directives only work in a header
    "Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard(ThreadingHTTPServer):
    """The dashboard's web server, which serves the views of a folder to this machine."""

    daemon_threads = True
    allow_reuse_port = False  # otherwise a second dashboard could silently share the port

    def __init__(self, root: Path, port: int) -> None:
        self.view_loader = ViewLoader(root)
        self.watcher = ViewWatcher(self.view_loader, MAX_STREAMS)
        super().__init__((ADDRESS, port), DashboardRequestHandler)
        own, names = self.server_port, (ADDRESS, "localhost", "[::1]")
        self.hosts = {f"{name}:{own}" for name in names} | set(names if own == 80 else ())

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind as the base class does, but without a DNS lookup of the host name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def server_close(self) -> None:
        super().server_close()
        self.watcher.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def open_dashboard(root: Path, port: int | None) -> Dashboard:
    """Open a dashboard at this port or, if None, at the first free port from the default onwards."""
    if port is None:
        for candidate in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY):
            with suppress(OSError):
                return Dashboard(root, candidate)
    try:
        return Dashboard(root, port or 0)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BusyError(
                f"port {port} is in use by another process; choose another --port, or leave it out"
            ) from None
        raise ConfigError(f"--port {port} cannot be used: {error.strerror}") from None


class DashboardRequestHandler(BaseHTTPRequestHandler):
    """Answers a request to the dashboard: ``/`` is a page, ``/events`` its stream; other paths are errors."""

    server: Dashboard
    server_version, sys_version = "heterophony", ""
    timeout = 60  # seconds without a request or a read

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            # DNS rebinding: another site points its own name here to read this page
            self._send_text(HTTPStatus.FORBIDDEN, f"open {self.server.url} instead")
            return
        path, names = self._parse_target()
        view = self.server.view_loader.load_view(*names) if path else None
        if not view:
            self._send_text(HTTPStatus.NOT_FOUND, f"not found; open {self.server.url}")
        elif path == "/":
            page = view.render_html().encode(errors="replace")
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page)
        else:
            self._send_stream(names, view)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _parse_target(self) -> tuple[str, tuple[str, ...]]:
        """Return the path, and the names in the query; an empty path for any other target."""
        try:
            target = urlsplit(self.path)
            query = parse_qsl(
                target.query, True, errors="surrogateescape", max_num_fields=MAX_CHOSEN
            )
        except ValueError:
            return "", ()
        known = not target.scheme and not target.netloc and target.path in ("/", "/events")
        names = tuple(value for _, value in query)
        if not known or {key for key, _ in query} - {"of"} or len({*names}) < len(names):
            return "", ()
        return target.path, () if names == ("",) else names

    def _send_stream(self, names: tuple[str, ...], view: View) -> None:
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._send_text(HTTPStatus.FORBIDDEN, "only the page's own script may read this")
            return
        if self.command == "HEAD":
            self._send(HTTPStatus.OK, "text/event-stream", b"")
            return
        messages = self.server.watcher.subscribe(names, view)
        if messages is None:
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
            return
        try:
            self._write_messages(messages)
        finally:
            self.server.watcher.unsubscribe(names)

    def _write_messages(self, messages: Iterator[bytes]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
        for message in messages:
            self.wfile.write(message)

    # Answering ------------------------------------------------------------------------------
    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as the base class does, but without repeating the request."""
        unknown = code == HTTPStatus.NOT_IMPLEMENTED  # any method but GET and HEAD
        status = HTTPStatus.METHOD_NOT_ALLOWED if unknown else HTTPStatus(code)
        self._send_text(status, status.phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the log of requests, because open pages send many."""
