"""A TCP proxy on the loopback that delays, limits, damages and cuts connections for tests.

Each direction of each connection is a thread that reads a piece and forwards it. Attributes decide
which faults apply; they are read for every piece, so a test can change them at any time.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from contextlib import suppress

PIECE = 16 << 10


class FaultProxy:
    """Listens on ``port`` and forwards to ``target``; without faults it is transparent.

    delay    seconds for which every piece is held back, and up to ``jitter`` more
    rate     bytes per second and direction; None is unlimited
    corrupt  every ``corrupt``-th byte of a direction is changed; None changes none
    cut      bytes of both directions after which every connection is reset, once; None is never
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.jitter = 0.0
        self.rate: float | None = None
        self.corrupt: int | None = None
        self.cut: int | None = None
        self.accepted = 0
        self._draw = random.Random(0)
        self._flows = threading.Event()
        self._flows.set()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        # small buffers: bytes that a slow network has not taken must not look sent
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def stall(self) -> None:
        """Keep connections open and accept new ones, but forward nothing."""
        self._flows.clear()

    def mend(self) -> None:
        """End all faults; forward what a stall held back."""
        self.delay = self.jitter = 0.0
        self.rate = self.corrupt = self.cut = None
        self._flows.set()

    def reset(self) -> None:
        """End every connection at once with a reset, as when a router forgets it."""
        self._end_all(socket.SHUT_RD)  # wakes the thread that reads from it, and sends nothing

    def _end_all(self, shut: int) -> None:
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(shut)
            end.close()

    def close(self) -> None:
        """End the proxy and all its threads."""
        self._ended.set()
        self._flows.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        self._end_all(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                broker = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._lock:
                self._open += [client, broker]
            self._start(self._pass_on, client, broker)
            self._start(self._pass_on, broker, client)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(PIECE):
                self._hold_back(len(piece))
                if self.corrupt:
                    piece = _damaged(piece, passed, self.corrupt)
                passed += len(piece)
                if self._cuts(len(piece)):
                    return self.reset()
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        return None

    def _hold_back(self, size: int) -> None:
        seconds = self.delay + self._draw.uniform(0, self.jitter)
        seconds += size / self.rate if self.rate else 0.0
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._ended.wait(min(left, 0.1)):
            pass
        self._flows.wait()

    def _cuts(self, size: int) -> bool:
        with self._lock:
            if self.cut is None:
                return False
            self.cut -= size
            if self.cut > 0:
                return False
            self.cut = None  # once: the next connection works
            return True


def _damaged(piece: bytes, passed: int, every: int) -> bytes:
    """Return the piece with every ``every``-th byte of the stream inverted."""
    damaged = bytearray(piece)
    for i in range(-passed % every, len(piece), every):
        damaged[i] ^= 0xFF
    return bytes(damaged)
