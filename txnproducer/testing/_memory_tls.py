"""TLS on the ports of an in-memory Kafka: the certificate, and one connection's records.

Owns: the certificate's files and context, the bytes of a connection before and after encryption.
Must not know: sockets, Kafka.
"""

from __future__ import annotations

import os
import shutil
import ssl
import tempfile
import weakref
from pathlib import Path

from ._tls import make_certificates

_NAMES = ("localhost", "127.0.0.1")
# More than a record of TLS (16 KiB), so one call of `read` takes all of it.
_READ_BYTES = 256 * 1024


def _delete(folder: str, pid: int) -> None:
    # A fork has a copy of the object. Its parent's clients still need the files.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


class ListenerCertificate:
    """A certificate for the loopback address, made when it is first needed.

    Attributes:
        context: for the server's side of connections.
        ca_file: the certificate that a client has to trust.

    Raises:
        EmbeddedKafkaError: `trustme` is not installed.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="txnproducer-tls-")
        self._end = weakref.finalize(self, _delete, folder, os.getpid())
        files = make_certificates(Path(folder), _NAMES)
        self.ca_file = files.ca_pem
        # The purpose names the peer: a server's context authenticates clients.
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(files.keystore_pem)

    def close(self) -> None:
        """Delete the files. In a forked child: do nothing."""
        self._end()


class ServerTls:
    """The server's side of TLS on one connection, without its socket.

    Args:
        context: has the certificate.

    Attributes:
        has_failed: whether the handshake failed, or bytes came that are no TLS. The alert that
            tells the client is in `to_send`, and nothing more is read.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_failed = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the client. Return those that they mean, which may be none so far."""
        self._incoming.write(data)
        plain = bytearray()
        try:
            # Before the handshake is complete, `read` continues it.
            while piece := self._tls.read(_READ_BYTES):
                plain += piece
        except ssl.SSLWantReadError:
            pass  # the rest of the record comes with a later piece
        except ssl.SSLError:
            self.has_failed = True
        return bytes(plain)

    def send(self, data: bytes) -> bytes:
        """Encrypt an answer. Return the bytes to send."""
        # Never waits: the encrypted bytes go into memory, and not into a socket.
        self._tls.write(data)
        return self.to_send()

    def to_send(self) -> bytes:
        """Return the bytes of the handshake that are to be sent."""
        return self._outgoing.read()
