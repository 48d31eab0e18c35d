"""Asking a deployment: chat and plain completions, streamed or not, each with its own deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import httpx
import msgspec

from pytest_pdserve.chat.reading import read_reply
from pytest_pdserve.chat.replay import curl
from pytest_pdserve.chat.request import chat_request, completion_request
from pytest_pdserve.settings import Credential
from pytest_pdserve.wire import Transport, exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from pytest_pdserve.chat.reply import Reply
    from pytest_pdserve.chat.request import ChatRequest, Message
    from pytest_pdserve.evidence import Surroundings
    from pytest_pdserve.target import Target
    from pytest_pdserve.wire import Exchange

DEADLINE = 30.0
"""Seconds that one answer may take unless the caller says otherwise."""


def http_client(
    credential: Credential | None = None, transport: Transport | None = None
) -> httpx.AsyncClient:
    """An httpx client over our transport.

    Proxies of the environment are not used (a probe must know its path), redirects are not followed, and each
    request carries what `credential` allows for its URL and its caller didn't set. httpx's own timeouts are 30 s a
    phase.
    """

    async def add_credential(request: httpx.Request) -> None:
        if credential is not None:
            for name, value in credential.headers_for(str(request.url)).items():
                request.headers.setdefault(name, value)

    return httpx.AsyncClient(
        transport=transport or Transport(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(DEADLINE),
        event_hooks={"request": [add_credential]},
    )


class ChatClient:
    """Asks one target's entry. It never retries, and raises nothing for what a server does.

    An async context manager; from a plain prompt: `asyncio.run(ChatClient(target).chat("hi"))`.
    """

    def __init__(
        self,
        target: Target,
        *,
        credential: Credential | None = None,
        http: httpx.AsyncClient | None = None,
        look_around: Callable[[ChatRequest, Exchange], Awaitable[Surroundings]] | None = None,
    ) -> None:
        """`http` has to be a client over our transport, and stays the caller's to close.

        `look_around` is awaited while a hung request is still open; what it saw goes into the reply.
        """
        self._target = target
        self._credential = credential or Credential(entry=target.entry)
        self._http = http or http_client(self._credential)
        self._own_http = http is None
        self._look_around = look_around

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_http:
            await self._http.aclose()

    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_tokens: int | None = 64,
        temperature: float = 0.0,
        stream: bool = True,
        deadline: float = DEADLINE,
        connection: Literal["fresh", "reuse"] = "reuse",
        **parameters: Any,
    ) -> Reply:
        """Ask for a chat completion; `parameters` are those of `chat_request` (tools, stop, extra, ...).

        `deadline` is in seconds from now, for everything from name resolution to the last byte.
        """
        request = chat_request(
            self._model(),
            messages,
            max_tokens=max_tokens,
            temperature=temperature,
            stream=stream,
            **parameters,
        )
        return await self.ask(request, deadline=deadline, connection=connection)

    async def complete(
        self,
        prompt: str,
        *,
        max_tokens: int | None = 64,
        temperature: float = 0.0,
        stream: bool = True,
        deadline: float = DEADLINE,
        connection: Literal["fresh", "reuse"] = "reuse",
        **parameters: Any,
    ) -> Reply:
        """Ask for a plain completion; `parameters` are those of `completion_request`."""
        request = completion_request(
            self._model(), prompt, max_tokens=max_tokens, temperature=temperature, stream=stream, **parameters
        )
        return await self.ask(request, deadline=deadline, connection=connection)

    async def ask(
        self,
        request: ChatRequest,
        *,
        deadline: float = DEADLINE,
        connection: Literal["fresh", "reuse"] = "reuse",
    ) -> Reply:
        """Send `request` once and read what comes back, whatever it is."""
        seen: list[Surroundings] = []

        async def look(hung: Exchange) -> None:
            if self._look_around is not None:
                seen.append(await self._look_around(request, hung))

        raw = await exchange(
            self._http,
            self._http.build_request(
                "POST",
                self._target.entry + request.path,
                content=msgspec.json.encode(request.body),
                headers={
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream" if request.streamed else "application/json",
                    # Compression would hide when each token arrived.
                    "Accept-Encoding": "identity",
                },
            ),
            deadline=deadline,
            connection=connection,
            while_hung=look,
        )
        reply = read_reply(request, raw, mask=self._credential.mask)
        return replace(reply, surroundings=seen[0]) if seen else reply

    def replay(self, request: ChatRequest) -> str:
        """A curl command that sends `request` to the entry, secrets as shell variables."""
        url = self._target.entry + request.path
        command = curl(url, request, variables=self._credential.variables_for(url))
        return self._credential.mask(command)

    def _model(self) -> str:
        if self._target.model is None:
            raise ValueError(f"{self._target.name} offers no model: name one in pdserve.toml")
        return self._target.model
