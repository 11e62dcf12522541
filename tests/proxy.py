"""A network between a client and an embedded Postgres, which fails on command.

with Proxy(server) as proxy:
    PgConnection(host="127.0.0.1", port=proxy.port, ...)
    proxy.stall()    # nothing comes through, and nobody is told
    proxy.resume()   # what was held back comes now
    proxy.cut()      # every connection is gone; new ones are let in
    proxy.refuse()   # as cut, and nobody is let in until resume()
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from penstock.testing.postgres import EmbeddedPostgres

_PIECE = 65536
# Closing with nothing to wait for sends a reset, as a machine that has died would.
_ABORT = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards a TCP port to a server's socket."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._target = str(Path(server.host) / f".s.PGSQL.{server.port}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing, self._letting_in, self._closed = Event(), True, False
        self._flowing.set()
        self._sockets: set[socket.socket] = set()
        self._lock = Lock()

    def __enter__(self) -> Self:
        Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        self._listener.close()
        self.cut()
        self._flowing.set()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._sockets) // 2

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._letting_in = True
        self._flowing.set()

    def refuse(self) -> None:
        self._letting_in = False
        self.cut()

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _abort(each)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._letting_in:
                _abort(client)
                continue
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(self._target)
            except OSError:  # the server is down
                _abort(client)
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, target in ((client, server), (server, client)):
                Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                self._flowing.wait()
                target.sendall(piece)
            self._flowing.wait()
        with self._lock:
            self._sockets -= {source, target}
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _abort(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        each.shutdown(socket.SHUT_RDWR)
    each.close()
