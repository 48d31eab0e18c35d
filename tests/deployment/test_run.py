"""What the probes of one process share, for items whose marks say what they want."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from pytest_pdserve.capabilities import CapabilityMissing
from pytest_pdserve.chat import COPY_WAYS
from pytest_pdserve.deployment import GRACE, NotRun, ProbeHang
from pytest_pdserve.judge import LatencyBudget
from pytest_pdserve.load import Sends
from pytest_pdserve.markers import Depth
from pytest_pdserve.run import Run, transport
from pytest_pdserve.settings import Credential, Settings, TlsFiles
from pytest_pdserve.settings.tables import Budgets, Limits
from pytest_pdserve.target import Target
from tests.chat.llm_server import HANG, Asked, LlmServer, Part, answer, copier, sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.chat.llm_server import Script

KEY = "sk-Xq7Lm2Vw9Rt4Zp"


@contextmanager
def running(script: Script, **settings: Any) -> Iterator[tuple[Run, LlmServer]]:
    with LlmServer(script) as server, TemporaryDirectory() as folder:
        credential = Credential(api_key=SecretStr(KEY), entry=server.url)
        run = Run(
            settings=Settings(name="t", entry=server.url, credential=credential, **settings),
            target=Target(name="t", entry=server.url, services=(), engine="openai", model="m"),
            depth=Depth.STANDARD,
            disruptive=False,
            max_concurrency=4,
            seed=1,
            folder=Path(folder),
        )
        try:
            yield run, server
        finally:
            run.close()


def fine(asked: Asked) -> Iterable[Part]:
    return answer(asked, "ok")


@pytest.mark.timeout(40)
def test_a_probe_without_marks(request: pytest.FixtureRequest) -> None:
    with running(fine) as (run, server):
        pd = run.deployment(request.node)
        assert (pd.time_left, pd.allowance, pd.budget) == (40 - GRACE, None, LatencyBudget())
        assert (pd.most_at_once, pd.longest_wait) == (4, None)
        assert pd.chat("hi").text == "ok"
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.timeout(timeout=40)
@pytest.mark.latency_budget(ttft=1.5)
@pytest.mark.sends(requests=2, prompt_tokens=300, output_tokens=8)
@pytest.mark.parametrize("level", [3])
def test_marks_and_settings_become_limits(request: pytest.FixtureRequest, level: int) -> None:
    limits = {"budgets": Budgets(ttft=9.0, e2e=7.0), "limits": Limits(deadline=5.0)}
    with running(fine, **limits) as (run, _):
        pd = run.deployment(request.node)
        assert pd.budget == LatencyBudget(ttft=1.5, e2e=7.0)
        assert pd.allowance == Sends(requests=2, prompt_tokens=300, output_tokens=8).at_level(level)
        assert (pd.time_left, pd.longest_wait) == (40 - GRACE, 5.0)


@pytest.mark.timeout(40)
def test_randomness_is_the_seed_s_and_the_probe_s(request: pytest.FixtureRequest) -> None:
    with running(fine) as (run, _):
        first, again = (run.deployment(request.node).source.random() for _ in range(2))
        run.seed = 2
        assert first == again != run.deployment(request.node).source.random()


def test_a_probe_without_a_time_out_is_a_mistake(request: pytest.FixtureRequest) -> None:
    with running(fine) as (run, _), pytest.raises(ValueError, match="has no time-out"):
        run.deployment(request.node)


@pytest.mark.timeout(40)
@pytest.mark.sends(requests=1, prompt_tokens=10, output_tokens=1)
def test_trying_a_capability_costs_the_probe_nothing(request: pytest.FixtureRequest) -> None:
    with running(copier) as (run, server):
        pd = run.deployment(request.node)
        began = pd.began
        run.require(("copy",), pd)
        assert len(server.asked) == 3
        assert (pd.replies, pd.sent) == ([], Sends())
        assert pd.began > began
        run.require(("copy",), pd)
        run.require((), pd)
        assert len(server.asked) == 3


@pytest.mark.timeout(40)
def test_a_strict_server_that_refuses_one_way_is_asked_in_the_next(request: pytest.FixtureRequest) -> None:
    def script(asked: Asked) -> Iterable[Part]:
        if "chat_template_kwargs" in asked.json:
            return [sized({"error": {"message": "unknown field"}}, status="400 Bad Request")]
        return copier(asked) if asked.json["max_tokens"] > 100 else answer(asked, "Let me think")

    with running(script) as (run, _):
        pd = run.deployment(request.node)
        run.require(("copy",), pd)
        assert pd.copy_way == COPY_WAYS[2]


@pytest.mark.timeout(40)
def test_a_missing_capability(request: pytest.FixtureRequest) -> None:
    with running(fine) as (run, _), pytest.raises(CapabilityMissing, match="copied 0 of 6"):
        run.require(("copy",), run.deployment(request.node))


@pytest.mark.timeout(40)
def test_an_earlier_hang_keeps_later_probes_from_running(request: pytest.FixtureRequest) -> None:
    with running(lambda _: [HANG], limits=Limits(deadline=0.3)) as (run, _):
        pd = run.deployment(request.node)
        with pytest.raises(ProbeHang):
            run.require(("copy",), pd)
        with pytest.raises(NotRun, match="whether the model can copy is unknown"):
            run.require(("copy",), pd)


def test_the_plain_client_speaks_to_the_entry_with_the_key() -> None:
    with running(lambda _: [sized({"ok": 1})]) as (run, server), run.plain_client() as http:
        assert http.get("/v1/models").json() == {"ok": 1}
        http.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert [asked.path for asked in server.asked] == ["/v1/models"] * 2
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {KEY}", "Bearer wrong"]


def test_the_plain_client_does_not_follow_redirects() -> None:
    with (
        running(lambda _: [sized(b"", "307 X", location="/on")]) as (run, server),
        run.plain_client() as http,
    ):
        assert http.get("/").status_code == 307
    assert len(server.asked) == 1


def test_a_tls_file_that_is_of_no_use_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(ValueError, match=r"ca\.pem") as problem:
        transport(Settings(name="t", entry="https://t", tls=TlsFiles(ca=missing)))
    assert "\n" not in str(problem.value)


def test_closing_ends_the_loop_thread() -> None:
    with running(fine) as (run, _):
        pass
    with pytest.raises(RuntimeError, match="closed"):
        run.loop.run(run.observer.watch, bound=1)
