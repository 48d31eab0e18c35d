from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trustme
from wire_server import Peer, Server, answering, sized

from pytest_pdserve.wire import Ending, Exchange, Outcome, Phase, Transport, exchange, tls_context

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Authority:
    """A certificate authority with its files."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        mine = self.ca.issue_cert("client@example.org")
        self.certificate, self.key = folder / "client.pem", folder / "client.key"
        for number, blob in enumerate(mine.cert_chain_pems):
            blob.write_to_path(self.certificate, append=number > 0)
        mine.private_key_pem.write_to_path(self.key)

    def server_context(self, *names: str, client_certificates: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        if client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def get(run: Run, url: str, context: ssl.SSLContext | None, *, deadline: float = 10.0) -> Exchange:
    async def main() -> Exchange:
        transport = Transport(ssl_context=context)
        async with httpx.AsyncClient(transport=transport) as client:
            result = await exchange(client, client.build_request("GET", url), deadline=deadline)
        assert transport.open_connections == 0
        return result

    result = run(main())
    assert isinstance(result, Exchange)
    return result


def test_a_custom_authority_is_trusted(run: Run, authority: Authority) -> None:
    context = tls_context(ca=authority.ca_file, certificate=None, key=None)
    with Server(answering(sized(b"safe")), tls=authority.server_context("127.0.0.1")) as server:
        result = get(run, server.url, context)
    assert (result.outcome, bytes(result.body.data)) == (Outcome.COMPLETED, b"safe")
    offsets = result.timeline.offsets()
    assert offsets["connected"] <= offsets["secured"] <= offsets["sent"]


def test_names_are_sent_as_sni_and_checked(run: Run, authority: Authority) -> None:
    context = tls_context(ca=authority.ca_file, certificate=None, key=None)
    names: list[str | None] = []
    server_context = authority.server_context("localhost")
    server_context.sni_callback = lambda _sock, name, _context: names.append(name)
    with Server(answering(sized(b"x")), tls=server_context) as server:
        assert get(run, f"https://localhost:{server.port}", context).outcome is Outcome.COMPLETED
        wrong = get(run, server.url, context)
    assert names == ["localhost", None]
    assert wrong.outcome is Outcome.BROKEN
    assert "not valid for '127.0.0.1'" in wrong.reason


def test_an_unknown_authority_is_broken_with_the_reason(run: Run, authority: Authority) -> None:
    with Server(answering(sized(b"x")), tls=authority.server_context("127.0.0.1")) as server:
        result = get(run, server.url, None)
    assert (result.outcome, result.phase, result.ending) == (Outcome.BROKEN, Phase.TLS, Ending.NONE)
    assert re.fullmatch(
        r"127\.0\.0\.1:\d+: TLS certificate not accepted: unable to get local issuer certificate",
        result.reason,
    )


def test_a_self_signed_certificate_is_broken_with_the_reason(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    both = tmp_path / "self.pem"
    both.write_bytes(authority.ca.private_key_pem.bytes() + authority.ca.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    with Server(answering(sized(b"x")), tls=context) as server:
        result = get(run, server.url, None)
    assert result.outcome is Outcome.BROKEN
    assert "TLS certificate not accepted: self-signed certificate" in result.reason


def test_client_certificates(run: Run, authority: Authority) -> None:
    server_context = authority.server_context("127.0.0.1", client_certificates=True)
    mine = tls_context(ca=authority.ca_file, certificate=authority.certificate, key=authority.key)
    none = tls_context(ca=authority.ca_file, certificate=None, key=None)
    with Server(answering(sized(b"known")), tls=server_context) as server:
        known = get(run, server.url, mine)
        unknown = get(run, server.url, none)
    assert (known.outcome, bytes(known.body.data)) == (Outcome.COMPLETED, b"known")
    assert unknown.outcome is Outcome.BROKEN
    assert "the server wants a client certificate" in unknown.reason


def test_plain_http_behind_https_says_so(run: Run) -> None:
    def script(peer: Peer) -> None:
        peer.receive()
        peer.send(sized(b"", status="400 Bad Request"))
        peer.until_closed()

    with Server(script) as server:
        result = get(run, server.url.replace("http:", "https:"), None)
    assert (result.outcome, result.phase) == (Outcome.BROKEN, Phase.TLS)
    assert "the server doesn't speak TLS there (is it plain http?)" in result.reason


def test_a_silent_server_hangs_in_tls(run: Run) -> None:
    with Server(lambda peer: peer.until_closed()) as server:
        result = get(run, server.url.replace("http:", "https:"), None, deadline=0.8)
        assert server.closed.acquire(timeout=10)
    assert (result.outcome, result.phase) == (Outcome.HUNG, Phase.TLS)
    assert re.fullmatch(r"connected after \d\.\d s, then no TLS for \d\.\d s", result.reason)


def test_a_connection_closed_during_the_handshake_is_broken(run: Run) -> None:
    with Server(lambda peer: None) as server:
        result = get(run, server.url.replace("http:", "https:"), None)
    assert result.outcome is Outcome.BROKEN
    assert result.reason.endswith(": the server closed the connection during the TLS handshake")


def test_connect_timeouts_name_the_step(run: Run) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(transport=Transport(), timeout=0.3) as client:
            with pytest.raises(httpx.ConnectTimeout, match=r"TLS handshake was not done within 0\.3 s"):
                await client.get(url)

    with Server(lambda peer: peer.until_closed()) as server:
        run(main(server.url.replace("http:", "https:")))


def test_streams_and_endings_over_tls(run: Run, authority: Authority) -> None:
    context = tls_context(ca=authority.ca_file, certificate=None, key=None)
    body = bytes(range(256)) * 8000
    release = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            peer.send(sized(body))
            peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            release.wait(10)
            peer.rst()
        else:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")

    async def main(url: str) -> list[Exchange]:
        async with httpx.AsyncClient(transport=Transport(ssl_context=context)) as client:
            asyncio.get_running_loop().call_later(0.3, release.set)
            return [
                await exchange(client, client.build_request("POST", url, content=body), deadline=10)
                for _ in range(3)
            ]

    with Server(script, tls=authority.server_context("127.0.0.1")) as server:
        whole, reset, closed = run(main(server.url))
    assert (whole.outcome, bytes(whole.body.data)) == (Outcome.COMPLETED, body)
    assert (reset.outcome, reset.ending, reset.timeline.reused) == (Outcome.BROKEN, Ending.RST, True)
    assert (closed.outcome, closed.ending) == (Outcome.BROKEN, Ending.FIN)


# the files


def test_a_certificate_with_its_key_in_one_file(authority: Authority, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(authority.key.read_bytes() + authority.certificate.read_bytes())
    assert tls_context(ca=None, certificate=both, key=None).verify_mode is ssl.CERT_REQUIRED


def test_file_problems_are_one_line(authority: Authority, tmp_path: Path) -> None:
    junk, missing, encrypted = tmp_path / "junk.pem", tmp_path / "missing.pem", tmp_path / "locked.key"
    junk.write_text("not a certificate")
    encrypted.write_bytes(_encrypted(authority.key.read_bytes()))
    other = Authority(tmp_path)
    good, key = authority.certificate, authority.key
    cases = [
        ({"ca": missing}, f"{missing}: no such file or directory"),
        ({"ca": tmp_path}, f"{tmp_path}: is a directory"),
        ({"ca": junk}, f"{junk}: no certificate in PEM format in it"),
        ({"certificate": junk, "key": key}, f"{junk}: no certificate in PEM format in it"),
        ({"certificate": good, "key": junk}, f"{junk}: no private key in PEM format in it"),
        ({"certificate": good}, f"{good}: no private key in PEM format in it"),
        ({"certificate": good, "key": other.key}, f"{other.key}: the key doesn't belong to {good}"),
        ({"certificate": good, "key": encrypted}, f"{encrypted}: the key is encrypted; an unencrypted one is needed"),
        ({"key": key}, f"{key}: a key without a certificate"),
    ]  # fmt: skip
    for files, message in cases:
        paths: dict[str, Path | None] = {"ca": None, "certificate": None, "key": None, **files}
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            tls_context(**paths)
        assert str(caught.value) == message


def _encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
