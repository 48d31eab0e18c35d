"""How services answer cheap questions, for each engine's paths."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from pytest_pdserve.chat import http_client
from pytest_pdserve.engines import ENGINES
from pytest_pdserve.observe import Observer, ServiceState
from pytest_pdserve.settings import Credential
from pytest_pdserve.target import Role, Service, Target
from tests.chat.llm_server import CLOSE, HANG, Asked, LlmServer, Part, head, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KEY = "sk-Xq7Lm2Vw9Rt4Zp"
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}, {"id": "other"}]}


def serving(paths: dict[str, Iterable[Part]]) -> Callable[[Asked], Iterable[Part]]:
    missing = [sized({"detail": "Not Found"}, "404 Not Found")]
    return lambda asked: paths.get(asked.path, missing)


def observe(
    paths: dict[str, Iterable[Part]],
    use: Callable[[Observer, Service], Any],
    *,
    engine: str = "openai",
    role: Role = Role.ROUTER,
    credential: Credential | None = None,
) -> Any:
    """What `use(observer, service)` gives, for one service that answers on `paths`."""
    with LlmServer(serving(paths)) as server:
        service = Service(role=role, url=server.url, name=str(role), declared=True)
        target = Target(name="t", entry=server.url, services=(service,), engine=engine)
        allowed = credential or Credential(api_key=SecretStr(KEY), entry=server.url)

        async def run() -> Any:
            async with http_client(allowed) as http:
                return await asyncio.wait_for(use(Observer(target, http, allowed), service), 20)

        return asyncio.run(run())


def state(paths: dict[str, Iterable[Part]], *, deadline: float = 5.0, **options: Any) -> ServiceState:
    return observe(paths, lambda observer, service: observer.state(service, deadline=deadline), **options)


@pytest.mark.parametrize(
    ("engine", "role"), [(engine, role) for engine in ENGINES for role in Role], ids=lambda value: str(value)
)
def test_every_engine_s_first_path_is_asked_first_and_the_last_one_last(engine: str, role: Role) -> None:
    paths = ENGINES[engine].ready[role]
    first = state({path: [sized(b"ok", kind="text/plain")] for path in paths}, engine=engine, role=role)
    assert (first.path, first.ready, first.status) == (paths[0], True, 200)
    last = state({paths[-1]: [sized(b"ok", kind="text/plain")]}, engine=engine, role=role)
    assert (last.path, last.ready) == (paths[-1], True)
    none = state({}, engine=engine, role=role)
    assert (none.path, none.ready) == (paths[-1], False)
    assert none.problem == f'404 from {paths[-1]}: "{{"detail": "Not Found"}}"'


def test_an_unknown_path_of_vllm_router_is_a_405() -> None:
    lacks = [sized(b"Only POST requests are supported", "405 Method Not Allowed", "text/plain")]
    seen = state({"/readiness": lacks, "/health": [sized(b"All servers healthy")]}, engine="vllm")
    assert (seen.path, seen.ready) == ("/health", True)


def test_ready_says_how_long_it_took() -> None:
    seen = state({"/readiness": [sized({"status": "ready"})]}, engine="sglang")
    assert seen.seconds is not None
    assert 0 < seen.seconds < 5
    assert str(seen) == f"router: 200 from /readiness in {seen.seconds * 1000:.0f} ms"


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            [
                sized(
                    {"status": "not ready", "reason": "insufficient healthy workers"},
                    "503 Service Unavailable",
                )
            ],
            '503 from /readiness: "{"status": "not ready", "reason": "insufficient healthy workers"}"',
        ),
        ([sized(b"", "500 Oops")], "500 from /readiness: an empty body"),
        (
            [sized(b"<html><title>Welcome to nginx!</title>", kind="text/html")],
            '/readiness is an HTML page titled "Welcome to nginx!"',
        ),
        (
            [sized(b"", "302 Found", location="/login")],
            "/readiness: 302 Found: a redirect to '/login', not followed",
        ),
        ([sized(f"who is {KEY}?".encode(), "401 Unauthorized")], '401 from /readiness: "who is •••?"'),
    ],
)
def test_what_is_wrong_is_said(parts: Iterable[Part], problem: str) -> None:
    seen = state({"/readiness": parts}, engine="sglang")
    assert (seen.problem, seen.ready) == (problem, False)
    assert str(seen) == f"router: {problem}"


def test_garbage_and_a_closed_connection() -> None:
    garbage = state({"/readiness": [b"\x16\x03\x01 ready\r\n\r\n", CLOSE]}, engine="sglang")
    assert garbage.problem.startswith("/readiness: ")
    assert (garbage.ready, garbage.status) == (False, None)
    closed = state({"/readiness": [CLOSE]}, engine="sglang")
    assert "connection closed" in closed.problem
    assert closed.seconds is None


@pytest.mark.parametrize("parts", [[HANG], [head(), HANG]], ids=["before headers", "in the body"])
def test_a_service_that_hangs_is_bounded(parts: list[Part]) -> None:
    seen = state({"/readiness": parts}, engine="sglang", deadline=0.3)
    assert (seen.ready, seen.seconds) == (False, None)
    assert "then nothing for 0." in seen.problem


def test_the_deadline_is_for_all_paths_together() -> None:
    lacks = [0.5, sized(b"", "404 Not Found")]
    seen = state(
        {"/model_info": lacks, "/get_model_info": lacks, "/v1/models": lacks},
        engine="sglang",
        role=Role.PREFILL,
        deadline=1.3,
    )
    assert seen.path != "/model_info"
    assert "then nothing for 0." in seen.problem
    assert seen.status is None


def test_a_service_that_wants_a_key_which_it_may_not_get_counts_as_up() -> None:
    locked = {"/readiness": [sized(b"no key", "401 Unauthorized")]}
    stranger = Credential(api_key=SecretStr(KEY), entry="http://elsewhere:1")
    seen = state(locked, engine="sglang", credential=stranger)
    assert seen.ready
    assert str(seen).startswith("router: 401 from /readiness in ")
    assert not state(locked, engine="sglang").ready


def models(body: Part, **options: Any) -> Any:
    return observe({"/v1/models": [body]}, lambda observer, service: observer.models(service), **options)


def test_models_are_listed() -> None:
    assert models(sized(MODELS)) == ("tiny", "other")
    assert models(sized({"data": []})) == ()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (sized({"models": []}), '/v1/models is no list of models: "{"models": []}"'),
        (sized(b"OK"), '/v1/models is no list of models: "OK"'),
        (sized(b"<html>", kind="text/html"), "/v1/models is an HTML page"),
        (sized(b"down", "503 X"), '503 from /v1/models: "down"'),
        (sized(b"[" * 100_000), '/v1/models is no list of models: "' + "[" * 119 + '…"'),
    ],
)
def test_no_list_of_models_is_one_line(body: Part, line: str) -> None:
    assert models(body) == line
