"""Messages between the notebook's process and its ranks: JSON with its length before it, over a socket.

Both sides prove that they know one secret before either reads a message. Nothing is pickled, and nothing encrypted:
ranks of other hosts belong into a network that is trusted, as torch.distributed's own connections do.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import socket
import struct
from typing import Any

from ...compiler.base import forks

__all__ = ["Channel", "accept", "connect", "listen"]

_NONCE = 32
_PATIENCE = 10.0  # seconds for a proof
_sending = forks.lock()  # of several threads that say something, one after the other


class Channel:
    """One connection. `receive` gives None when the other side is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def send(self, kind: str, **facts: Any) -> bool:
        """Whether it was sent: not to who is gone."""
        text = json.dumps({"kind": kind, **facts}, default=_plain).encode()
        try:
            with _sending:
                self._socket.sendall(struct.pack("!Q", len(text)) + text)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        head = self._exactly(8)
        text = self._exactly(struct.unpack("!Q", head)[0]) if head else b""
        return json.loads(text) if text else None

    def _exactly(self, n: int) -> bytes:
        """So many bytes, or none."""
        parts = []
        while n:
            try:
                part = self._socket.recv(min(n, 1 << 20))
            except OSError:
                return b""
            if not part:
                return b""
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits in `receive` hears of it
        except OSError:  # the other side was faster
            self._socket.close()
            return
        self._socket.close()


def _plain(x: Any) -> Any:
    return base64.b64encode(x).decode() if isinstance(x, bytes) else str(x)


def listen(address: str) -> socket.socket:
    """A socket at `host:port`, or at a file."""
    if address.startswith("/"):
        out = socket.socket(socket.AF_UNIX)
        out.bind(address)
    else:
        host, _, port = address.rpartition(":")
        out = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    out.listen(64)
    return out


def connect(address: str, key: str) -> Channel:
    """A rank's way to the notebook. Raises OSError."""
    if address.startswith("/"):
        out = socket.socket(socket.AF_UNIX)
        out.connect(address)
    else:
        host, _, port = address.rpartition(":")
        out = socket.create_connection((host, int(port)), _PATIENCE)
    out.settimeout(_PATIENCE)
    channel, mine = Channel(out), os.urandom(_NONCE)
    theirs = channel._exactly(_NONCE)
    out.sendall(mine + _proof(key, b"rank", theirs, mine))
    if not hmac.compare_digest(channel._exactly(_NONCE), _proof(key, b"notebook", mine, theirs)):
        raise PermissionError(f"the notebook at {address} and this rank don't have the same secret")
    out.settimeout(None)
    return channel


def accept(door: socket.socket, key: str) -> Channel | None:
    """The next rank; None for somebody who doesn't know the secret."""
    connection, _ = door.accept()
    connection.settimeout(_PATIENCE)
    channel, mine = Channel(connection), os.urandom(_NONCE)
    try:
        connection.sendall(mine)
        theirs, proof = channel._exactly(_NONCE), channel._exactly(_NONCE)
        if not theirs or not hmac.compare_digest(proof, _proof(key, b"rank", mine, theirs)):
            connection.close()
            return None
        connection.sendall(_proof(key, b"notebook", theirs, mine))
    except OSError:
        connection.close()
        return None
    connection.settimeout(None)
    return channel


def _proof(key: str, who: bytes, asked: bytes, own: bytes) -> bytes:
    return hmac.digest(key.encode(), who + asked + own, "sha256")
