"""What a probe holds in its hand, against scripted servers."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pdserve.deployment import Deployment, Inconclusive, NotRun, ProbeFailure, ProbeHang
from pytest_pdserve.judge import LatencyBudget, Sureness
from pytest_pdserve.load import Sends
from pytest_pdserve.wire import Outcome
from tests.chat.llm_server import CLOSE, END, HANG, STREAM, Asked, Part, answer, event, sized, token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from tests.chat.llm_server import LlmServer, Script

    Deploy = Callable[..., AbstractContextManager[tuple[Deployment, LlmServer]]]

MODELS = sized({"data": [{"id": "m"}]})


def chats(*scripts: Script) -> Script:
    """The first script answers the first chat, and so on, the last one all further ones; /v1/models is listed."""
    count = 0

    def script(asked: Asked) -> Iterable[Part]:
        nonlocal count
        if asked.path == "/v1/models":
            return [MODELS]
        count += 1
        return scripts[min(count, len(scripts)) - 1](asked)

    return script


def fine(asked: Asked) -> Iterable[Part]:
    return answer(asked, "ok")


def hang(asked: Asked) -> Iterable[Part]:
    return [STREAM, HANG]


def test_chat_gives_a_whole_reply_and_remembers_it(deploy: Deploy) -> None:
    with deploy(fine) as (pd, _):
        reply = pd.chat("hi")
        assert (reply.text, pd.replies) == ("ok", [reply])
        assert pd.model == "m"
        assert [service.name for service in pd.services] == ["router"]


def test_a_hang_is_a_finding_with_evidence_and_replay(deploy: Deploy) -> None:
    with deploy(chats(fine, hang)) as (pd, _):
        pd.chat("hi")
        with pytest.raises(ProbeHang) as hung:
            pd.chat("it's", deadline=0.4)
        finding = hung.value.finding
        assert re.fullmatch(
            r"answer 2 hung: headers after \d\.\d s, then nothing for \d\.\d s$", finding.what
        )
        (before,) = finding.evidence
        assert re.fullmatch(r"answers before it: \d\.\d\d s", before)
        assert (finding.layer, finding.sureness) == (None, Sureness.OPEN)
        assert finding.ruled_out[0].startswith("client (late by ")
        assert finding.replay is not None
        assert finding.replay.startswith(f"curl -N {pd.target.entry}/v1/chat/completions")
        assert '-H "Authorization: Bearer $KEY"' in finding.replay
        assert str(hung.value).startswith("answer 2 hung: headers after")
        assert pd.replies[1].outcome is Outcome.HUNG


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (
            lambda _: [sized(b"busy", "503 Not Now")],
            "the answer was refused: 503 Not Now: busy",
        ),
        (
            lambda _: [STREAM, token("a"), END],
            "the answer broke off: the stream ended cleanly without [DONE] (after 1 token event)",
        ),
        (
            lambda _: [STREAM, event("nonsense"), END],
            "the answer is no answer: event 1 is not JSON: nonsense",
        ),
    ],
    ids=["refused", "broken", "garbled"],
)
def test_what_is_no_whole_answer_is_a_failure(deploy: Deploy, script: Script, what: str) -> None:
    with deploy(script) as (pd, _), pytest.raises(ProbeFailure) as failed:
        pd.chat("hi")
    assert not isinstance(failed.value, ProbeHang)
    assert failed.value.finding.what == what


def test_attempt_gives_back_whatever_comes(deploy: Deploy) -> None:
    with deploy(chats(lambda _: [sized(b"busy", "503 X")], hang, lambda _: [CLOSE], fine)) as (pd, _):
        outcomes = [pd.attempt("hi", deadline=0.4, connection="fresh").outcome for _ in range(3)]
        assert outcomes == [Outcome.REFUSED, Outcome.HUNG, Outcome.BROKEN]
        assert pd.attempt("hi").completed


def test_a_plain_completion(deploy: Deploy) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        assert asked.json["prompt"] == "once"
        return [sized({"choices": [{"index": 0, "text": " upon", "finish_reason": "stop"}]})]

    with deploy(script) as (pd, _):
        assert pd.complete("once", stream=False).text == " upon"
        with pytest.raises(ProbeFailure):
            pd.complete("once")


def test_together_asks_at_once_and_keeps_order(deploy: Deploy) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        yield 0.3 - 0.05 * int(asked.last)
        yield from answer(asked, asked.last)

    with deploy(script) as (pd, server):
        replies = pd.together([str(number) for number in range(5)])
        assert [reply.text for reply in replies] == ["0", "1", "2", "3", "4"]
        assert pd.replies == replies
        assert server.most_open == 5


def test_parameters_reach_the_body(deploy: Deploy) -> None:
    with deploy(fine) as (pd, server):
        pd.chat("hi", max_tokens=3, stream=False, seed=4, connection="fresh", deadline=5)
        body = server.asked[0].json
        assert (body["max_tokens"], body["stream"], body["seed"], body["temperature"]) == (3, False, 4, 0.0)
        assert not {"connection", "deadline"} & set(body)


def test_more_than_allowed_is_the_probe_s_mistake_and_is_not_sent(deploy: Deploy) -> None:
    allowance = Sends(requests=2, prompt_tokens=1000, output_tokens=20, at_once=2)
    with deploy(fine, allowance=allowance) as (pd, server):
        with pytest.raises(ValueError, match="mark `sends` says: 64 output tokens of 20"):
            pd.chat("hi")
        pd.together(["hi", "hi"], max_tokens=4)
        with pytest.raises(ValueError, match="3 requests of 2"):
            pd.chat("hi", max_tokens=4)
        assert len(server.asked) == 2
        assert pd.sent.requests == 2


def test_more_at_once_than_the_user_allows_is_not_run(deploy: Deploy) -> None:
    with deploy(fine, most_at_once=2) as (pd, server):
        with pytest.raises(NotRun, match="3 at once is more than the 2 that are allowed"):
            pd.together(["hi"] * 3)
        assert len(pd.together(["hi"] * 2)) == 2
        assert len(server.asked) == 2


def test_a_probe_whose_time_is_used_up_hung(deploy: Deploy) -> None:
    with deploy(fine, time_left=1.0) as (pd, server):
        pd.chat("hi")
        pd.began -= 1.0
        with pytest.raises(ProbeHang) as hung:
            pd.chat("hi")
        assert hung.value.finding.what == "the probe's 1 s are used up"
        assert re.fullmatch(r"answers: \d\.\d\d s", hung.value.finding.evidence[0])
        assert len(server.asked) == 1


def test_what_is_left_of_the_probe_s_time_bounds_an_answer_and_is_told(deploy: Deploy) -> None:
    with deploy(chats(hang), time_left=0.5) as (pd, _):
        began = time.monotonic()
        with pytest.raises(ProbeHang) as hung:
            pd.chat("hi", deadline=30)
        assert time.monotonic() - began < 10
    assert re.fullmatch(
        r"it had only the 0\.\d s that were left of the probe's 0 s", hung.value.finding.evidence[0]
    )


def test_an_answer_s_own_deadline_needs_no_such_line(deploy: Deploy) -> None:
    with deploy(chats(hang)) as (pd, _):
        assert not any("only" in line for line in pd.attempt("hi", deadline=0.3).notes)


def test_the_longest_wait_of_the_settings_bounds_an_answer(deploy: Deploy) -> None:
    with deploy(chats(hang), longest_wait=0.3) as (pd, _):
        began = time.monotonic()
        assert pd.attempt("hi", deadline=30).outcome is Outcome.HUNG
        assert time.monotonic() - began < 10


def slow(asked: Asked) -> Iterable[Part]:
    yield STREAM
    yield 1.0
    yield token("a") + token("b", "stop") + event("[DONE]") + END


def test_a_broken_budget_is_a_failure(deploy: Deploy) -> None:
    with deploy(chats(fine, slow), budget=LatencyBudget(ttft=0.75, e2e=0.8)) as (pd, _):
        pd.chat("hi")
        pd.chat("slowly")
        with pytest.raises(ProbeFailure) as over:
            pd.judge_budget()
    finding = over.value.finding
    assert re.fullmatch(r"over budget: TTFT .*s, budget 0.75 s \(1 of 2 over\)", finding.what)
    assert finding.evidence[0].startswith("E2E ")
    assert re.fullmatch(r"answers: \d\.\d\d s, \d\.\d\d s", finding.evidence[1])
    assert finding.replay is not None
    assert "slowly" in finding.replay


def test_a_kept_budget_and_no_budget_pass(deploy: Deploy) -> None:
    with deploy(slow, budget=LatencyBudget(ttft=15, e2e=15)) as (pd, _):
        pd.judge_budget()
        pd.chat("hi")
        pd.judge_budget()
        pd.budget = LatencyBudget()
        pd.judge_budget()


def test_only_whole_answers_are_held_against_the_budget(deploy: Deploy) -> None:
    def refuse_late(asked: Asked) -> Iterable[Part]:
        return [1.0, sized(b"busy", "503 Not Now")]

    with deploy(chats(refuse_late, hang, fine), budget=LatencyBudget(e2e=0.9)) as (pd, _):
        assert pd.attempt("hi").outcome is Outcome.REFUSED
        assert pd.attempt("hi", deadline=0.3).outcome is Outcome.HUNG
        pd.chat("hi")
        pd.judge_budget()


async def block_the_loop() -> None:
    time.sleep(0.6)  # noqa: ASYNC251 -- what must never happen, on purpose


def test_a_late_client_makes_the_budget_inconclusive(deploy: Deploy) -> None:
    with deploy(slow, budget=LatencyBudget(ttft=0.9)) as (pd, server):

        def block() -> None:
            server.wait_for(1)
            pd.loop.run(block_the_loop, bound=20)

        blocking = threading.Thread(target=block)
        blocking.start()
        reply = pd.chat("hi")
        blocking.join(20)
        assert pd.lag(reply) > 0.3
        with pytest.raises(
            Inconclusive, match=r"TTFT .*, but this machine's own event loop was as late as that"
        ):
            pd.judge_budget()


def test_fail_and_finding(deploy: Deploy) -> None:
    with deploy(fine) as (pd, _):
        pd.chat("first")
        reply = pd.chat("second")
        with pytest.raises(ProbeFailure) as failed:
            pd.fail("it is wrong", reply, "seen: x")
    finding = failed.value.finding
    assert (finding.what, finding.evidence) == ("it is wrong", ("seen: x",))
    assert finding.replay is not None
    assert "second" in finding.replay


def test_only_the_last_few_answers_before_it_are_told(deploy: Deploy) -> None:
    with deploy(chats(*[fine] * 6, hang)) as (pd, _):
        for _ in range(6):
            pd.chat("hi")
        with pytest.raises(ProbeHang) as hung:
            pd.chat("hi", deadline=0.3)
    assert hung.value.finding.what.startswith("answer 7 hung")
    assert hung.value.finding.evidence[0].count(" s") == 4


def test_nothing_is_sent_to_what_is_unreachable_or_has_no_model(deploy: Deploy) -> None:
    with deploy(fine) as (pd, server):
        pd.target = replace(pd.target, unreachable="t: connection refused")
        with pytest.raises(NotRun, match="t: connection refused"):
            pd.chat("hi")
        pd.target = replace(pd.target, unreachable=None, model=None)
        for use in (pd.chat, pd.complete, pd.attempt):
            with pytest.raises(NotRun, match="names no model"):
                use("hi")
        assert server.asked == []


def test_state_and_models_of_a_service(deploy: Deploy) -> None:
    with deploy(chats(fine)) as (pd, _):
        (router,) = pd.services
        assert pd.state(router).ready
        assert pd.models(router) == ("m",)


def test_no_text_of_a_failure_carries_the_key(deploy: Deploy) -> None:
    def echo(asked: Asked) -> Iterable[Part]:
        return [sized(asked.headers["authorization"].encode(), "401 Unauthorized")]

    with deploy(echo) as (pd, _), pytest.raises(ProbeFailure) as failed:
        pd.chat("hi")
    shown: list[Any] = [str(failed.value), repr(failed.value.finding), repr(pd.replies)]
    assert not any("sk-Xq7" in text for text in shown)
    assert "401 Unauthorized: Bearer •••" in failed.value.finding.what
