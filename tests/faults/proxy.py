"""A TCP proxy between parties and coordinator that cuts connections, keeps them away, alters a byte, or stops forwarding."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Forwards connections from one address to another. seen : all bytes that passed."""

    def __init__(self, listening: str, target: str) -> None:
        self._target = _split(target)
        self._server = socket.create_server(_split(listening))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._alter = False
        self._open = True
        self.flowing = threading.Event()
        self.flowing.set()
        self.seen = bytearray()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def close(self) -> None:
        """Close all connections, and every new one until `open`."""
        self._open = False
        self.cut()

    def open(self) -> None:
        """Accept connections again."""
        self._open = True

    def cut(self) -> None:
        """Close all connections."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._sockets.clear()

    def alter(self) -> None:
        """Change one bit of the next bytes."""
        self._alter = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=60)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                if self._open:
                    self._sockets += [near, far]
                else:
                    near.close()
                    far.close()
                    continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.flowing.wait()
                if self._alter:
                    self._alter = False
                    data = data[:-1] + bytes([data[-1] ^ 1])
                if len(self.seen) < 1 << 22:
                    self.seen += data
                other.sendall(data)
        with self._lock:
            for each in (one, other):
                with contextlib.suppress(OSError):
                    each.close()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
