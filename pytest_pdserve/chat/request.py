"""What is asked: the body of a chat or plain completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question, as it goes over the wire.

    `body` is the whole JSON body; the model's name is in it already.
    """

    path: str
    body: dict[str, Any] = field(hash=False)

    @property
    def streamed(self) -> bool:
        """Whether the answer is asked for as server-sent events."""
        return bool(self.body.get("stream"))

    @property
    def max_tokens(self) -> int:
        """The most output tokens that this request allows, over all its choices; 0 when it sets no limit."""
        limit = self.body.get("max_completion_tokens") or self.body.get("max_tokens") or 0
        return int(limit) * int(self.body.get("n") or 1)

    @property
    def most_prompt_tokens(self) -> int:
        """An upper bound of the prompt's tokens: a byte-level tokenizer makes at most one token a byte.

        32 a message are added for what a chat template puts around it, and 64 for a default system prompt and the
        tokens that begin every prompt.
        """
        if self.path == COMPLETION_PATH:
            return _bytes(self.body["prompt"]) + 64
        said = sum(
            _bytes(message.get("content")) + _bytes(message.get("tool_calls")) + 32
            for message in self.body["messages"]
        )
        return said + _bytes(self.body.get("tools")) + 64


def chat_request(
    model: str,
    messages: str | Sequence[Message],
    *,
    max_tokens: int | None,
    temperature: float,
    stream: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    response_format: Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    n: int | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ChatRequest:
    """A chat completion; a plain string is one message of the user. `extra` is merged into the body last."""
    asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    optional = {
        "max_tokens": max_tokens,
        "tools": list(tools) if tools is not None else None,
        "tool_choice": tool_choice,
        "response_format": response_format,
        "stop": stop,
        "seed": seed,
        "n": n,
        "logprobs": logprobs,
        "top_logprobs": top_logprobs,
    }
    body = {"model": model, "messages": asked, "temperature": temperature, **_streaming(stream)}
    return ChatRequest(path=CHAT_PATH, body=body | _given(optional) | dict(extra or {}))


def completion_request(
    model: str,
    prompt: str,
    *,
    max_tokens: int | None,
    temperature: float,
    stream: bool,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ChatRequest:
    """A plain completion of `prompt`. `extra` is merged into the body last."""
    body = {"model": model, "prompt": prompt, "temperature": temperature, **_streaming(stream)}
    optional = {"max_tokens": max_tokens, "stop": stop, "seed": seed}
    return ChatRequest(path=COMPLETION_PATH, body=body | _given(optional) | dict(extra or {}))


def _streaming(stream: bool) -> dict[str, Any]:
    # Usage is always asked for: without it an answer's tokens can't be accounted for.
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _bytes(part: Any) -> int:
    """The bytes of a part of the prompt as text, whatever it is made of."""
    return len(str(part).encode("utf-8", "replace")) if part else 0
