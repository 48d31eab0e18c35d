"""Capabilities are tried alone, once, and what could not be found out is remembered as unknown."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pdserve.capabilities import (
    CALIBRATION_SENDS,
    Capabilities,
    CapabilityMissing,
    CapabilityUnknown,
)
from pytest_pdserve.chat import COPY_WAYS
from pytest_pdserve.deployment import Deployment, NotRun, ProbeFailure, ProbeHang
from tests.chat.llm_server import HANG, Asked, Part, answer, copier, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from tests.chat.llm_server import LlmServer, Script

    Deploy = Callable[..., AbstractContextManager[tuple[Deployment, LlmServer]]]


def require(pd: Deployment, capabilities: Capabilities, *names: str) -> None:
    def ask(messages: Any, way: Any) -> str:
        return pd.chat(messages, **way).text

    capabilities.require(names or ("copy",), ask, random.Random(3))


def wrong_at_first(count: int) -> Script:
    """A model that gets its first so many codes wrong."""
    asked_so_far = 0

    def script(asked: Asked) -> Iterable[Part]:
        nonlocal asked_so_far
        asked_so_far += 1
        return answer(asked, "123123") if asked_so_far <= count else copier(asked)

    return script


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_model_that_copies_is_tried_once(deploy: Deploy, wrong: int) -> None:
    capabilities = Capabilities()
    with deploy(wrong_at_first(wrong), allowance=CALIBRATION_SENDS) as (pd, server):
        for _ in range(3):
            require(pd, capabilities)
        assert len(server.asked) == 3 + wrong
        assert {asked.json["max_tokens"] for asked in server.asked} == {16}
        assert len({asked.last for asked in server.asked}) == 3 + wrong
        assert capabilities.copy_way == COPY_WAYS[0]


def test_a_model_that_cannot_is_missing_it_every_time(deploy: Deploy) -> None:
    capabilities = Capabilities()
    with deploy(wrong_at_first(99), allowance=CALIBRATION_SENDS) as (pd, server):
        for _ in range(2):
            with pytest.raises(CapabilityMissing, match="asked alone, the model copied 0 of 6 codes"):
                require(pd, capabilities)
        assert len(server.asked) == 2 * len(COPY_WAYS)


THINKS = "The user wants a code, such as 999999."


def test_a_model_that_thinks_is_told_not_to(deploy: Deploy) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        silent = asked.json.get("chat_template_kwargs", {}).get("enable_thinking") is False
        return copier(asked) if silent else answer(asked, f"<think>{THINKS}")

    capabilities = Capabilities()
    with deploy(script) as (pd, _):
        require(pd, capabilities)
    assert capabilities.copy_way == COPY_WAYS[1]


def test_a_model_that_always_thinks_gets_room_for_it(deploy: Deploy) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        room = asked.json["max_tokens"] > 100
        return answer(
            asked, f"<think>{THINKS}</think>{asked.last.removeprefix('code: ')}" if room else THINKS
        )

    capabilities = Capabilities()
    with deploy(script) as (pd, _):
        require(pd, capabilities)
    assert capabilities.copy_way == COPY_WAYS[2]


def test_a_hang_is_raised_once_and_then_unknown(deploy: Deploy) -> None:
    capabilities = Capabilities()

    def script(asked: Asked) -> Iterable[Part]:
        return [sized({"data": [{"id": "m"}]}) if asked.path == "/v1/models" else HANG]

    with deploy(script, longest_wait=0.3) as (pd, server):
        with pytest.raises(ProbeHang):
            require(pd, capabilities)
        chats = sum(asked.method == "POST" for asked in server.asked)
        for _ in range(2):
            with pytest.raises(
                CapabilityUnknown, match="can copy is unknown: trying it out failed: the answer hung"
            ):
                require(pd, capabilities)
        assert sum(asked.method == "POST" for asked in server.asked) == chats == 1


def test_a_failure_is_raised_once_and_then_unknown(deploy: Deploy) -> None:
    capabilities = Capabilities()
    with deploy(lambda _: [b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"]) as (pd, _):
        with pytest.raises(ProbeFailure):
            require(pd, capabilities)
        with pytest.raises(CapabilityUnknown, match="503"):
            require(pd, capabilities)


def test_what_kept_it_from_being_tried_is_not_remembered(deploy: Deploy) -> None:
    capabilities = Capabilities()
    with deploy(copier, most_at_once=0) as (pd, _):
        with pytest.raises(NotRun):
            require(pd, capabilities)
        pd.most_at_once = None
        require(pd, capabilities)


def test_nothing_needed_is_nothing_asked(deploy: Deploy) -> None:
    with deploy(copier) as (pd, server):
        Capabilities().require((), lambda messages, way: pd.chat(messages).text, random.Random(1))
        assert server.asked == []
