"""The live page over HTTP: on this machine only, to be read only, for its own address only."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ...core.errors import BusyError, ConfigError
from .views import View, ViewLoader
from .watcher import ViewWatcher

ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8765
PORTS_TO_TRY = 20  # ports, before the system chooses one
MAX_STREAMS = 32  # that are open at once
RETRY_MILLISECONDS = 1000  # milliseconds after which a browser connects again
HEADERS = {
    # the page's own policy says which script may run; this adds what a page cannot say of itself
    "Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard(ThreadingHTTPServer):
    """Answers with what a board shows."""

    daemon_threads = True
    allow_reuse_port = False  # else a second one could take the port without a word

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
        """As the base class does, but without asking the network for our name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def server_close(self) -> None:
        super().server_close()
        self.watcher.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """That somebody hangs up is no error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def open_dashboard(root: Path, port: int | None) -> Dashboard:
    """A dashboard at this port; without one, at the usual port or the next that is free."""
    if port is None:
        for usual in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY):
            with suppress(OSError):
                return Dashboard(root, usual)
    try:
        return Dashboard(root, port or 0)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BusyError(
                f"port {port} is in use by another process; choose another --port, or none"
            ) from None
        raise ConfigError(f"--port {port} cannot be used: {error.strerror}") from None


class DashboardRequestHandler(BaseHTTPRequestHandler):
    """One request: ``/`` is a page, ``/events`` its stream, and there is nothing else."""

    server: Dashboard
    server_version, sys_version = "heterophony", ""
    timeout = 60  # seconds for one who neither asks nor reads

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            # a foreign name that leads here is how another site would try to read this one
            self._send_text(HTTPStatus.FORBIDDEN, f"please ask for {self.server.url}")
            return
        path, name = self._parse_target()
        view = self.server.view_loader.load_view(name) if path else None
        if not view:
            self._send_text(HTTPStatus.NOT_FOUND, f"not here; all there is: {self.server.url}")
        elif path == "/":
            page = view.render_html().encode(errors="replace")
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page)
        else:
            self._send_stream(name, view)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _parse_target(self) -> tuple[str, str]:
        """The path and the name in the query; no path if this is not exactly as we ask."""
        try:
            target = urlsplit(self.path)
            query = parse_qsl(target.query, True, errors="surrogateescape", max_num_fields=1)
        except ValueError:
            return "", ""
        known = not target.scheme and not target.netloc and target.path in ("/", "/events")
        if not known or [key for key, _ in query] not in ([], ["of"]):
            return "", ""
        return target.path, query[0][1] if query else ""

    def _send_stream(self, name: str, view: View) -> None:
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._send_text(HTTPStatus.FORBIDDEN, "for the page's own script only")
            return
        if self.command == "HEAD":
            self._send(HTTPStatus.OK, "text/event-stream", b"")
            return
        messages = self.server.watcher.subscribe(name, view)
        if messages is None:
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages follow already")
            return
        try:
            self._write_messages(messages)
        finally:
            self.server.watcher.unsubscribe(name)

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
        """What the base class refuses, without repeating what was asked."""
        unknown = code == HTTPStatus.NOT_IMPLEMENTED  # any method but ours
        status = HTTPStatus.METHOD_NOT_ALLOWED if unknown else HTTPStatus(code)
        self._send_text(status, status.phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads what a page asks twice a second."""
