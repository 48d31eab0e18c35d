"""What is seen around a request: services watched, and canaries one hop further in, in both engines' ways."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pdserve.chat import ChatClient, chat_request, http_client
from pytest_pdserve.engines import Meaning
from pytest_pdserve.evidence import Hop, Surroundings, Through
from pytest_pdserve.observe import Observer
from pytest_pdserve.settings import Credential
from pytest_pdserve.sim.launch import Simulation, start
from pytest_pdserve.target import Role, Service, Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with start(dialect=request.param, proxy=True, decode=2) as simulation:
        yield simulation


@pytest.fixture
def strike(sim: Simulation) -> Iterator[Simulation]:
    yield sim
    sim.set_faults()


def target_of(sim: Simulation) -> Target:
    services = [
        Service(role=Role.PROXY, url=sim.entry, name="proxy", declared=True),
        Service(role=Role.ROUTER, url=sim.router, name="router", declared=True),
    ]
    for role in (Role.PREFILL, Role.DECODE):
        alike = [service for service in sim.services if str(service.role) == str(role)]
        services += [
            Service(
                role=role,
                url=each.url,
                name=f"{role} {number}" if len(alike) > 1 else str(role),
                declared=True,
                bootstrap_port=each.bootstrap_port,
            )
            for number, each in enumerate(alike, 1)
        ]
    return Target(
        name="t", entry=sim.entry, services=tuple(services), engine=str(sim.dialect), model=sim.model
    )


def look(sim: Simulation, use: Callable[[Observer], Awaitable[Any]]) -> Any:
    target = target_of(sim)

    async def run() -> Any:
        async with http_client() as http:
            observer = Observer(target, http, Credential(entry=target.entry))
            observer.note(0.1)
            return await asyncio.wait_for(use(observer), 30)

    return asyncio.run(run())


def surroundings(sim: Simulation, **how: Any) -> Surroundings:
    found: Surroundings = look(sim, lambda observer: observer.surroundings(**how))
    return found


def fates(hops: tuple[Hop, ...]) -> set[str]:
    return {"good" if hop.completed else "hung" if hop.hung else "failed" for hop in hops}


def test_a_sound_deployment_answers_in_every_way(sim: Simulation) -> None:
    around = surroundings(sim)
    assert {each.name for each in around.watched} == {"proxy", "router", "prefill", "decode 1", "decode 2"}
    assert not any(each.problem for each in around.watched)
    assert fates(around.hops) == {"good"}, around.hops
    ways = {hop.through for hop in around.hops}
    alone = {Through.PREFILL, Through.DECODE} if sim.dialect == "vllm" else set()
    assert ways == {Through.ENTRY, Through.ROUTER, Through.PAIR} | alone
    assert {hop.services for hop in around.through(Through.PAIR)} == {
        ("prefill", "decode 1"),
        ("prefill", "decode 2"),
    }
    assert {hop.prefill_done for hop in around.through(Through.PAIR)} == {True}
    for role in (Role.PREFILL, Role.DECODE):
        for worker in around.of(role):
            assert (worker.now(Meaning.RUNNING), worker.now(Meaning.TRANSFERRING)) == (0, 0)


def test_what_stands_still_is_seen_while_it_is_open(strike: Simulation) -> None:
    strike.set_faults("decode-hang-midstream=2")
    request = chat_request(strike.model, "hello", max_tokens=8, temperature=0.0, stream=True)

    async def hang(observer: Observer) -> Surroundings:
        found: list[Surroundings] = []

        async def around(failed: Any, hung: Any) -> Surroundings:
            found.append(await observer.surroundings(failed, still_open=True))
            return found[0]

        target = target_of(strike)
        async with http_client() as http:
            client = ChatClient(target, http=http, look_around=around)
            replies = await asyncio.gather(*(client.ask(request, deadline=1.0) for _ in range(3)))
        assert all(reply.surroundings is found[0] for reply in replies)
        return found[0]

    around = look(strike, hang)
    running = [worker for worker in around.of(Role.DECODE) if worker.always(Meaning.RUNNING)]
    assert running
    assert all(worker.moved(Meaning.TOKENS_OUT) == 0 for worker in running)
    assert fates(around.through(Through.ENTRY)) == {"hung"}


def test_a_proxy_that_hangs_is_passed_by(strike: Simulation) -> None:
    strike.set_faults("hang-midstream=1,role=proxy")
    around = surroundings(strike)
    assert fates(around.through(Through.ENTRY)) == {"hung"}
    assert fates(around.through(Through.ROUTER)) == {"good"}


def test_a_kept_connection_is_tried_where_one_failed(strike: Simulation) -> None:
    strike.set_faults("hang-before-headers=role=proxy,reused=1")
    around = surroundings(strike, reused=True)
    assert fates(around.through(Through.ENTRY)) == {"good"}
    assert fates(around.through(Through.ENTRY, reused=True)) == {"hung"}


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_a_stopped_and_a_dead_worker_are_told_apart_from_those_that_answer(dialect: str) -> None:
    # a deployment of its own: failures open its router's breakers for a minute
    with start(dialect=dialect, proxy=True, decode=2) as own:
        own.pause("decode-1")
        own.kill("prefill-0")
        around = surroundings(own, still_open=True)
    found = {each.name: (each.reached, bool(each.readings)) for each in around.watched}
    assert found["decode 1"] == (True, True)
    assert found["decode 2"] == (False, False)
    assert found["prefill"] == (False, False)
    problems = {each.name: each.problem for each in around.watched}
    assert "refused" in problems["prefill"]
    assert "then nothing for" in problems["decode 2"]


def test_answers_that_are_no_answers_are_not_completed(strike: Simulation) -> None:
    strike.set_faults("error-event=1")
    around = surroundings(strike)
    assert fates(around.through(Through.PAIR)) == {"failed"}
    assert all("error event" in hop.reason for hop in around.through(Through.PAIR))


def test_others_requests_show_as_running(sim: Simulation) -> None:
    request = chat_request(sim.model, "hi", max_tokens=1500, temperature=0.0, stream=True)

    def talk() -> bool:
        async def run() -> bool:
            async with ChatClient(target_of(sim)) as client:
                return (await client.ask(request, deadline=60)).completed

        return asyncio.run(run())

    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk)
        watched = ()
        while not talking.done() and not any(each.always(Meaning.RUNNING) for each in watched):
            watched = look(sim, lambda observer: observer.watch())
        assert talking.result()
    decodes = [each for each in watched if each.role is Role.DECODE]
    assert max(each.moved(Meaning.TOKENS_OUT) or 0 for each in decodes) > 0
