"""The chat-completions protocol over the wire: requests, replies, replay."""

from pytest_pdserve.chat.client import DEADLINE, ChatClient, http_client
from pytest_pdserve.chat.copying import (
    COPY_MOST_TOKENS,
    COPY_PROMPT_TOKENS,
    COPY_WAYS,
    Copying,
    first_code,
    new_copying,
    new_copyings,
    turn,
)
from pytest_pdserve.chat.foreign import cut, error_text
from pytest_pdserve.chat.reading import read_reply
from pytest_pdserve.chat.replay import curl
from pytest_pdserve.chat.reply import Choice, Reply, ToolCall, Usage
from pytest_pdserve.chat.request import ChatRequest, Message, chat_request, completion_request

__all__ = [
    "COPY_MOST_TOKENS",
    "COPY_PROMPT_TOKENS",
    "COPY_WAYS",
    "DEADLINE",
    "ChatClient",
    "ChatRequest",
    "Choice",
    "Copying",
    "Message",
    "Reply",
    "ToolCall",
    "Usage",
    "chat_request",
    "completion_request",
    "curl",
    "cut",
    "error_text",
    "first_code",
    "http_client",
    "new_copying",
    "new_copyings",
    "read_reply",
    "turn",
]
