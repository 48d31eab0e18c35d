"""A server that does with each connection exactly what a script says, on plain blocking sockets in threads."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable

HANG_BOUND = 20.0


class Peer:
    """One accepted connection, as its script sees it."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number

    def request(self) -> bytes:
        """Read one request: head, and as much body as its content-length says."""
        data = self.head()
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                while len(body) < int(line.partition(b":")[2]):
                    body += self.receive()
        return head + b"\r\n\r\n" + body

    def head(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.receive()
        return data

    def receive(self) -> bytes:
        data = self.sock.recv(65536)
        if not data:
            raise Gone
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def fin(self) -> None:
        """Half-close, then wait for the other side."""
        self.sock.shutdown(socket.SHUT_WR)
        self.until_closed()

    def rst(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def until_closed(self) -> None:
        """Read until the client is gone."""
        try:
            while self.sock.recv(65536):
                pass
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise


class Gone(Exception):
    """The client closed the connection while the script wanted more from it: the end of the script."""


Script = Callable[[Peer], None]


class Server:
    """Runs `script` for every connection."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.peers: list[Peer] = []
        self.closed = threading.Semaphore(0)
        """Released once for every connection that is over."""
        self._script = script
        self._tls = tls
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __enter__(self) -> Server:
        thread = threading.Thread(target=self._accept, daemon=True)
        self._acceptor = thread
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(HANG_BOUND)
        self._listener.close()
        for thread in self._threads:
            thread.join(HANG_BOUND)
            assert not thread.is_alive(), "a script of the server never ended"
        for error in self._errors:
            raise error

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(HANG_BOUND)
            thread = threading.Thread(target=self._serve, args=(sock, len(self._threads)), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                sock = secured = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                try:
                    secured.do_handshake()
                except OSError:
                    # Closed with data unread, it would be reset, and the client might never see the alert.
                    with socket.socket(fileno=secured.detach()) as plain:
                        plain.settimeout(HANG_BOUND)
                        Peer(plain, number).until_closed()
                    return
            peer = Peer(sock, number)
            self.peers.append(peer)
            try:
                self._script(peer)
            except (Gone, ConnectionError, ssl.SSLError):
                pass
            finally:
                sock.close()
        except Exception as error:  # noqa: BLE001 -- handed to the test when it leaves the server
            self._errors.append(error)
        finally:
            self.closed.release()


def sized(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status.encode(), headers, len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answering(*responses: bytes) -> Script:
    """One of the responses to each request on a connection, then close."""

    def script(peer: Peer) -> None:
        for response in responses:
            peer.request()
            peer.send(response)

    return script


def sending(data: bytes, then: str) -> Script:
    """Read a request, send raw bytes, then `fin`, `rst` or `stay`."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(data)
        if then == "fin":
            peer.fin()
        elif then == "rst":
            threading.Event().wait(0.05)  # let the client read first
            peer.rst()
        else:
            peer.until_closed()

    return script
