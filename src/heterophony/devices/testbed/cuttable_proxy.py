"""The way between one device and the broker, on the loopback, which can be cut."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

PIECE = 64 << 10
AT_ONCE = struct.pack("ii", 1, 0)  # closed with a reset, as when a router forgets a connection


class Cable:
    """Listens on ``port`` and passes everything on to ``target``, both ways."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.ends: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def cut(self) -> None:
        """Whatever is connected is no more; who connects again is let through."""
        with self.lock:
            ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):  # its thread has closed it already
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.listener.close()
        self.cut()

    def accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                device, _ = self.listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # the broker is down just now
                    device.close()
                    continue
                with self.lock:
                    self.ends += [device, broker]
                for ends in ((device, broker), (broker, device)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        """One direction, to its end."""
        with suppress(OSError):
            while piece := source.recv(PIECE):
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self.lock:
            if source in self.ends:
                self.ends.remove(source)
        source.close()
