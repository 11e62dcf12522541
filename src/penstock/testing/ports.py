"""A TCP port for a server that is started, killed and started again."""

from __future__ import annotations

import socket
import sys


class ReservedPort:
    """A port that stays ours as long as this lives, over all starts of the server.

    Linux gives nobody a port that a socket is bound to, but lets one have it who asks for
    it and for reuse, as Postgres does, while the first does not listen. Others refuse even
    that; there somebody may be quicker than Postgres.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if not sys.platform.startswith("linux"):
            self._socket.close()

    def __del__(self) -> None:
        self._socket.close()
