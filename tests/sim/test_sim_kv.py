"""The engines' KV memory: what is cached, who waits for room, and that all of it comes back."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from simclient import chat, copying, eventually, gauge

from pytest_pdserve.sim.cache import PrefixCache
from pytest_pdserve.sim.faults import Work, parse
from pytest_pdserve.sim.launch import SimError, Simulation, start
from pytest_pdserve.sim.plan import Timing
from pytest_pdserve.sim.pool import Pool
from pytest_pdserve.sim.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = "The grass is tall. " * 40


@pytest.fixture(scope="module")
def narrow() -> Iterator[Simulation]:
    """A deployment whose workers have room for 300 tokens of KV."""
    with start(kv_tokens=300) as simulation:
        yield simulation


def test_a_cache_matches_whole_leading_pages_but_never_the_last_token() -> None:
    cache = PrefixCache(4, 100)
    tokens = [b"%d" % n for n in range(10)]
    assert cache.match(tokens) == 0
    cache.keep(tokens)
    assert cache.match(tokens) == 8
    assert cache.match(tokens[:8]) == 4
    assert cache.match([*tokens[:4], b"x", *tokens[5:]]) == 4
    assert cache.match([b"x", *tokens[1:]]) == 0


def test_a_cache_forgets_what_was_not_used_for_longest() -> None:
    cache = PrefixCache(2, 4)
    for name in (b"a", b"b"):
        cache.keep([name, name])
    assert cache.match([b"a", b"a", b"z"]) == 2
    cache.keep([b"c", b"c"])
    assert [cache.match([name, name, b"z"]) for name in (b"a", b"b", b"c")] == [2, 0, 2]


def test_sglang_tells_of_cached_tokens_in_usage_and_metrics(sim: Simulation) -> None:
    before = gauge(sim.prefill[0], "sglang:cached_tokens_total")
    first = chat(sim.entry, f"{PAGES}code: 11").json["usage"]
    again = chat(sim.entry, f"{PAGES}code: 22").json["usage"]
    assert first["prompt_tokens_details"] is None
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert cached == (again["prompt_tokens"] - 3) // 64 * 64 > 0
    assert gauge(sim.prefill[0], "sglang:cached_tokens_total") == before + cached
    assert eventually(lambda: gauge(sim.prefill[0], "sglang:num_used_tokens") == 0)


def test_vllm_counts_cached_tokens_where_they_were_cached() -> None:
    with start(dialect="vllm") as vllm:
        for code in ("11", "22"):
            answer = chat(vllm.entry, f"{PAGES}code: {code}", model=vllm.model)
            assert answer.text == code
            assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        hits = gauge(vllm.prefill[0], "vllm:prefix_cache_hits_total")
        assert hits > 100
        assert gauge(vllm.prefill[0], "vllm:prefix_cache_queries_total") > 2 * hits
        alone = [chat(vllm.decode[0], f"{PAGES}code: {n}", model=vllm.model).json["usage"] for n in (33, 44)]
        assert [usage["prompt_tokens_details"]["cached_tokens"] > 100 for usage in alone] == [False, True]


def test_cached_tokens_are_not_computed_again() -> None:
    seconds = []
    with start(timing=Timing(prefill_tokens_per_s=200)) as slow:
        for code in ("1", "2"):
            began = time.monotonic()
            assert chat(slow.entry, f"{PAGES}code: {code}").text == code
            seconds.append(time.monotonic() - began)
    assert seconds[0] > 1.0
    assert seconds[1] < seconds[0] / 2


def test_who_has_no_room_waits_or_is_retracted_and_answers_stay_right(narrow: Simulation) -> None:
    codes = [str(n) for n in range(5000, 5012)]
    with ThreadPoolExecutor(12) as pool:
        long = [pool.submit(chat, narrow.entry, "Talk.", max_tokens=120, ignore_eos=True) for _ in range(6)]
        texts = list(pool.map(lambda code: chat(narrow.entry, *copying(code)).text, codes))
        ends = [answer.result().json["usage"]["completion_tokens"] for answer in long]
    assert texts == codes
    assert ends == [120] * 6
    for name in ("num_used_tokens", "num_running_reqs", "num_retracted_reqs", "num_queue_reqs"):
        assert eventually(lambda name=name: gauge(narrow.decode[0], f"sglang:{name}") == 0)  # type: ignore[misc]


def test_retraction_shows_in_the_gauge_while_it_lasts(narrow: Simulation) -> None:
    narrow.set_faults("decode-slow=3")
    with ThreadPoolExecutor(4) as pool:
        long = [pool.submit(chat, narrow.entry, "Talk.", max_tokens=200, ignore_eos=True) for _ in range(4)]
        assert eventually(lambda: gauge(narrow.decode[0], "sglang:num_retracted_reqs") > 0)
        assert gauge(narrow.decode[0], "sglang:num_used_tokens") <= 300
        assert {answer.result().status for answer in long} == {200}
    narrow.set_faults()


def test_what_can_never_fit_is_refused(narrow: Simulation) -> None:
    assert chat(narrow.entry, PAGES * 4).status == 400
    with pytest.raises(SimError, match="room for KV"):
        start(kv_tokens=0)


def test_a_step_takes_as_long_as_the_next_prepared_batch() -> None:
    timing = Timing(decode_step_s=1.0, decode_step_per_request_s=0.1, decode_buckets=(1, 4, 8))
    steps = [timing.step_s(batch) for batch in (1, 2, 4, 5, 8, 9)]
    assert steps == pytest.approx([1.1, 1.4, 1.4, 1.8, 1.8, 1.9])


def test_more_at_once_is_more_throughput_without_a_dip_asked_for() -> None:
    timing = Timing()
    throughput = [batch / timing.step_s(batch) for batch in timing.decode_buckets]
    assert throughput == sorted(throughput)
    dip = parse("wave-dip=80,1.6")
    assert 96 / (timing.step_s(96) * dip.pace(Work.DECODE, 96)) < 80 / (
        timing.step_s(80) * dip.pace(Work.DECODE, 80)
    )


def test_whoever_waits_longest_goes_on_when_room_comes_back() -> None:
    async def in_turn() -> list[str]:
        pool, order = Pool(Tally(), 10), []

        async def hold(name: str, tokens: int, release: asyncio.Event) -> None:
            async with pool.lease(tokens):
                order.append(name)
                await release.wait()

        first, rest = asyncio.Event(), asyncio.Event()
        rest.set()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for name, tokens, release in (("a", 8, first), ("large", 9, rest), ("small", 1, rest)):
                tasks.create_task(hold(name, tokens, release))
                await asyncio.sleep(0)
            assert order == ["a"]  # the small one would fit, and may not overtake
            first.set()
        return order

    assert asyncio.run(in_turn()) == ["a", "large", "small"]


def test_vllm_counts_what_it_retracts() -> None:
    with start(dialect="vllm", kv_tokens=300, faults=["decode-slow=3"]) as vllm:
        with ThreadPoolExecutor(4) as pool:
            asked = {"model": vllm.model, "max_tokens": 200, "ignore_eos": True}
            answers = [pool.submit(chat, vllm.entry, "Talk.", **asked) for _ in range(4)]
            assert {answer.result().status for answer in answers} == {200}
        assert gauge(vllm.decode[0], "vllm:num_preemptions_total") > 0
