"""A proxy between one device and the broker, on the loopback, whose connections can be cut."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

BUFFER_BYTES = 64 << 10
# SO_LINGER of zero seconds: close with a reset, as when a router forgets a connection
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttableProxy:
    """Listens on ``port`` and forwards all bytes to and from ``target_port``."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.accept_connections, daemon=True).start()

    def cut(self) -> None:
        """End all connections; new ones are let through."""
        with self.lock:
            ends, self.sockets = self.sockets, []
        for end in ends:
            with suppress(OSError):  # its thread has closed it already
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.listener.close()
        self.cut()

    def accept_connections(self) -> None:
        with suppress(OSError):  # closed
            while True:
                device, _ = self.listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:  # the broker is down
                    device.close()
                    continue
                with self.lock:
                    self.sockets += [device, broker]
                for ends in ((device, broker), (broker, device)):
                    threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward one direction until it is closed."""
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self.lock:
            if source in self.sockets:
                self.sockets.remove(source)
        source.close()
