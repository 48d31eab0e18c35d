"""Services that are killed, stopped and restarted, by hand and as faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simclient import call, chat, copying, eventually, gauge

from pytest_pdserve.sim.launch import SimError, Simulation, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 1.0
PROMPTS = "sglang:prompt_tokens_total"


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulation]:
    # the breakers of its router close again after 0.6 s
    with start(decode=2, time_scale=0.01) as simulation:
        yield simulation


@pytest.fixture
def strike(sim: Simulation) -> Iterator[Callable[..., Simulation]]:
    """Sets faults; they are gone afterwards, and the deployment is whole again."""

    def set_faults(*texts: str) -> Simulation:
        sim.set_faults(*texts)
        return sim

    yield set_faults
    sim.set_faults()
    assert eventually(lambda: works(sim))
    assert all(works(sim) for _ in range(4))


def works(sim: Simulation) -> bool:
    answer = chat(sim.entry, *copying("8151"))
    return answer.status == 200 and answer.text == "8151"


def refuses(url: str) -> bool:
    try:
        call(url, "/health")
    except ConnectionRefusedError:
        return True
    return False


def is_silent(url: str) -> bool:
    try:
        call(url, "/health", timeout_s=WAIT_S)
    except TimeoutError:
        return True
    return False


def ask(sim: Simulation) -> int:
    """The status of an answer; 599 when the connection broke or nothing came instead."""
    try:
        return chat(sim.entry, *copying("77"), model=sim.model, timeout_s=3 * WAIT_S).status
    except (ConnectionError, TimeoutError):
        return 599


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_service_refuses_until_it_is_started_again(sim: Simulation) -> None:
    before, urls = dict(sim.pids), sim.decode
    sim.kill("decode-1")
    assert refuses(urls[1])
    assert not refuses(urls[0])
    sim.restart("decode-1")
    changed = [name for name, pid in sim.pids.items() if pid != before[name]]
    assert changed == ["decode-1"]
    assert sim.decode == urls
    assert call(urls[1], "/health").status == 200
    assert eventually(lambda: all(works(sim) for _ in range(4)))


def test_a_restarted_service_counts_from_zero(sim: Simulation) -> None:
    assert works(sim)
    assert gauge(sim.prefill[0], PROMPTS) > 0
    sim.restart("prefill-0")
    assert gauge(sim.prefill[0], PROMPTS) == 0
    assert works(sim)


def test_a_paused_service_is_silent_and_goes_on(sim: Simulation) -> None:
    sim.pause("router")
    assert is_silent(sim.router)
    assert state(sim.pids["router"]) == "T"
    sim.resume("router")
    assert call(sim.router, "/health").status == 200


def test_an_unknown_service_is_named(sim: Simulation) -> None:
    with pytest.raises(
        SimError, match=r'no service "decode" \(known: prefill-0, router, decode-0, decode-1\)'
    ):
        sim.kill("decode")


def test_stopping_ends_paused_services_too() -> None:
    with start() as own:
        own.pause("decode-0")
        pids = list(own.pids.values())
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_prefill_dead(strike: Callable[..., Simulation]) -> None:
    sim = strike("prefill-dead")
    assert refuses(sim.prefill[0])
    assert chat(sim.entry, *copying("1")).status >= 500


def test_decode_dead(strike: Callable[..., Simulation]) -> None:
    sim = strike("decode-dead")
    assert all(map(refuses, sim.decode))
    # prefill waits for a decode that never comes; the router, as the real one does, waits for prefill
    with pytest.raises(TimeoutError):
        chat(sim.entry, *copying("1"), timeout_s=WAIT_S)


def test_one_decode_dead(strike: Callable[..., Simulation]) -> None:
    sim = strike("one-decode-dead")
    assert [refuses(url) for url in sim.decode] == [True, False]


def test_decode_stopped(strike: Callable[..., Simulation]) -> None:
    sim = strike("decode-stopped")
    assert all(map(is_silent, sim.decode))
    with pytest.raises(TimeoutError):
        chat(sim.entry, *copying("1"), timeout_s=WAIT_S)


def test_prefill_stopped(strike: Callable[..., Simulation]) -> None:
    sim = strike("prefill-stopped")
    assert is_silent(sim.prefill[0])
    with pytest.raises(TimeoutError):
        chat(sim.entry, *copying("1"), timeout_s=WAIT_S)


def test_a_fault_may_strike_at_the_start() -> None:
    with start(faults=["prefill-dead"]) as own:
        assert refuses(own.prefill[0])
        assert not refuses(own.decode[0])


def test_faults_of_processes_take_no_scope() -> None:
    with pytest.raises(SimError, match="decode-dead strikes processes, not requests"):
        start(faults=["decode-dead=after=3"])


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_silent_restart(dialect: str) -> None:
    with start(dialect=dialect, time_scale=0.01, faults=["silent-restart=2"]) as own:
        pid = own.pids["decode-0"]
        assert [ask(own) for _ in range(2)] == [200, 200]
        assert ask(own) >= 500
        assert eventually(lambda: not refuses(own.decode[0]))
        assert not Path(f"/proc/{pid}").exists()
        assert eventually(lambda: ask(own) == 200)
        assert [ask(own) for _ in range(4)] == [200] * 4
