"""A scripted server on loopback, in threads of its own: what it answers is up to a function of the request."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType

BOUND: Final = 20.0


class Hang:
    """In a script: say nothing more until the client has gone."""


class Close:
    """In a script: close the connection (FIN)."""


class Reset:
    """In a script: reset the connection (RST)."""


HANG, CLOSE, RESET = Hang(), Close(), Reset()
Part = bytes | float | Hang | Close | Reset
"""What a script does next: send bytes, wait so many seconds, or one of the words above."""


@dataclass
class Asked:
    """One request as the server got it."""

    number: int
    """From 0, in order of arrival."""
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def streamed(self) -> bool:
        return bool(self.json.get("stream"))

    @property
    def last(self) -> str:
        """The last message's content."""
        return str(self.json["messages"][-1]["content"])


Script = Callable[[Asked], Iterable[Part]]


@dataclass
class LlmServer:
    """Answers each request with the parts that `script` yields for it; a context manager."""

    script: Script
    asked: list[Asked] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    """The most requests that were being answered at the same moment."""

    def __enter__(self) -> LlmServer:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._sockets:
                _shut(sock)
        for thread in self._threads:
            thread.join(BOUND)
            assert not thread.is_alive(), "a script never ended"
        if self._errors and error is None:
            raise self._errors[0]

    def wait_for(self, count: int) -> None:
        """Return once so many requests have come."""
        for _ in range(int(BOUND / 0.01)):
            if len(self.asked) >= count:
                return
            self._over.wait(0.01)
        raise AssertionError(f"{len(self.asked)} of {count} requests came")

    def _start(self, function: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(BOUND)
            with self._lock:
                self._sockets.append(sock)
                number = len(self._sockets) - 1
            self._start(self._serve, sock, number)

    def _serve(self, sock: socket.socket, connection: int) -> None:
        try:
            with sock.makefile("rb") as incoming:
                while (asked := self._request(incoming, connection)) is not None:
                    if not self._answer(sock, asked):
                        return
        except OSError:
            return
        except Exception as error:  # noqa: BLE001 -- raised in the test when it leaves the server
            self._errors.append(error)
        finally:
            _shut(sock)
            sock.close()

    def _request(self, incoming: Any, connection: int) -> Asked | None:
        line = incoming.readline().decode()
        if not line:
            return None
        headers: dict[str, str] = {}
        while (field_line := incoming.readline().decode("latin-1").strip()) != "":
            name, _, value = field_line.partition(":")
            headers[name.lower()] = value.strip()
        body = incoming.read(int(headers.get("content-length", 0)))
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(incoming.readline(), 16):
                body += incoming.read(size)
                incoming.readline()
            incoming.readline()
        method, path, _ = line.split()
        with self._lock:
            asked = Asked(len(self.asked), connection, method, path, headers, body)
            self.asked.append(asked)
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        return asked

    def _answer(self, sock: socket.socket, asked: Asked) -> bool:
        """Run the script; whether the connection goes on."""
        try:
            for part in self.script(asked):
                match part:
                    case bytes():
                        sock.sendall(part)
                    case Hang():
                        sock.recv(1)
                        return False
                    case Close():
                        return False
                    case Reset():
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return False
                    case _:
                        self._over.wait(part)
            return True
        finally:
            with self._lock:
                self.open_now -= 1


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def head(status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """A response's head for a chunked body."""
    fields = {"content-type": kind, "transfer-encoding": "chunked", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunk(b"")


def sized(body: object, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """A whole response; bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": kind, "content-length": str(len(data)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data


STREAM = head(kind="text/event-stream")


def event(data: object) -> bytes:
    """One server-sent event as one chunk."""
    text = data if isinstance(data, str) else json.dumps(data)
    return chunk(f"data: {text}\n\n".encode())


def token(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def answer(asked: Asked, text: str) -> Iterable[Part]:
    """`text` as a whole answer, streamed (a letter an event) or not, as the request wants it."""
    usage = {"prompt_tokens": 5, "completion_tokens": len(text)}
    if not asked.streamed:
        said = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return [sized({"model": "m", "choices": [said], "usage": usage})]
    letters = b"".join(token(letter) for letter in text)
    end = token("", "stop") + event({"choices": [], "usage": usage}) + event("[DONE]") + END
    return [STREAM + letters + end]


def copier(asked: Asked) -> Iterable[Part]:
    """A model that gives back the code which the last message asks for."""
    return answer(asked, asked.last.removeprefix("code: "))
