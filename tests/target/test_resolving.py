import asyncio
import time

import pytest
import seen
from pydantic import SecretStr
from scripted import Said, Server, closed_port, hang_up, silence

from pytest_pdserve.settings import Credential, Layout
from pytest_pdserve.target import Role, Service, Target, TargetError, inquiry


def service(role, url, name=None, *, declared=False, bootstrap_port=None):
    name = name or str(role)
    return Service(role=role, url=url, name=name, declared=declared, bootstrap_port=bootstrap_port)


def test_a_router_of_sglang(run, ask_target):
    async def scenario():
        worker = seen.sglang_worker
        async with seen.deployment(seen.sglang_router, worker(), worker()) as (router, prefill, decode):
            assert await ask_target(router.url) == Target(
                name="t",
                entry=router.url,
                services=(
                    service(Role.ROUTER, router.url, declared=True),
                    service(Role.PREFILL, prefill.url, bootstrap_port=8998),
                    service(Role.DECODE, decode.url),
                ),
                engine="sglang",
                engine_version="0.5.23",
                model="stub-model",
                models=("stub-model",),
                max_model_len=4096,
            )

    run(scenario())


def test_no_sglang_server_has_its_health_asked_since_that_generates(run, ask_target):
    async def scenario():
        worker = seen.sglang_worker()
        async with seen.deployment(seen.sglang_router, worker, worker) as servers:
            await ask_target(servers[0].url)
            await ask_target(servers[1].url)
            return {path for server in servers for path, _ in server.asked}

    assert run(scenario()) == {"/v1/models", "/workers", "/server_info", "/get_server_info"}


@pytest.mark.parametrize(("peer_is_local", "kept"), [(True, 2), (False, 0)])
def test_a_loopback_address_is_ours_only_if_the_router_is_here(
    run, ask_target, monkeypatch, peer_is_local, kept
):
    monkeypatch.setattr(inquiry, "is_local", lambda url: False)
    if not peer_is_local:
        monkeypatch.setattr(inquiry, "is_local_host", lambda host: False)

    async def scenario():
        worker = seen.vllm_worker()
        async with seen.deployment(seen.vllm_router, worker, worker) as (router, *workers):
            target = await ask_target(router.url)
            assert sum(bool(one.asked) for one in workers) == kept
            return target

    target = run(scenario())
    assert len(target.services) == 1 + kept
    assert any("on its own machine: left out" in note for note in target.notes) is not peer_is_local


def test_an_announced_name_that_does_not_resolve_here_is_left_out(run, ask_target):
    async def scenario():
        async with Server(seen.vllm_router(["http://prefill-0.invalid:8000"], [])) as router:
            return await ask_target(router.url)

    target = run(scenario())
    assert len(target.services) == 1
    assert any(
        "prefill http://prefill-0.invalid:8000, of which the router tells:" in note
        and note.endswith("left out")
        for note in target.notes
    )


def test_long_names_do_not_flood_the_notes(run, ask_target):
    async def scenario():
        async with Server({"/v1/models": Said({"data": [{"id": "x" * 5000}, {"id": "y"}]})}) as server:
            return await ask_target(server.url)

    target = run(scenario())
    assert target.model == "x" * 5000
    assert max(map(len, target.notes)) == inquiry.LONGEST_LINE


def test_a_router_of_sglang_is_recognised_while_its_workers_say_nothing(run, ask_target):
    async def scenario():
        async with seen.deployment(seen.sglang_router, {"*": hang_up}, {"*": hang_up}) as (router, *_):
            return await ask_target(router.url)

    target = run(scenario())
    assert target.engine == "sglang"
    assert len(target.services) == 3
    assert target.engine_version is None


def test_a_server_that_calls_its_model_local_is_not_thereby_sglang(run, ask_target):
    async def scenario():
        async with Server({"/v1/models": seen.models("local")}) as server:
            return await ask_target(server.url)

    assert run(scenario()).engine == "openai"


def test_a_router_of_vllm_with_two_prefill_servers_in_any_order(run, ask_target):
    async def scenario():
        async with Server(seen.vllm_worker()) as one, Server(seen.vllm_worker()) as two:
            first, second = sorted([one.url, two.url])
            for announced in ([first, second], [second, first]):
                async with Server(seen.vllm_router(announced, [second])) as router:
                    target = await ask_target(router.url)
                assert target.services[1:] == (
                    service(Role.PREFILL, first, "prefill 1"),
                    service(Role.PREFILL, second, "prefill 2"),
                    service(Role.DECODE, second),
                )
                assert (target.engine, target.engine_version, target.max_model_len) == (
                    "vllm",
                    "0.32.0",
                    2048,
                )
                assert target.notes == ()

    run(scenario())


def test_a_frontend_of_dynamo(run, ask_target):
    async def scenario():
        async with Server(seen.dynamo_frontend()) as frontend:
            return await ask_target(frontend.url)

    target = run(scenario())
    assert (target.engine, target.engine_version, target.model) == ("dynamo", "1.6.1", "tiny")
    assert target.max_model_len is None, "0 means unknown"
    assert [one.role for one in target.services] == [Role.ROUTER]
    assert target.notes == (
        "no prefill or decode server is known, so none can be looked at; dynamo does not tell its workers' "
        "system ports; they can be named in pdserve.toml",
    )


def test_dynamo_is_recognised_before_it_serves_a_model(run, ask_target):
    async def scenario():
        async with Server(seen.dynamo_frontend(offered=False)) as frontend:
            return await ask_target(frontend.url)

    target = run(scenario())
    assert target.engine == "dynamo"
    assert target.model is None
    assert any("offers no model at present" in note for note in target.notes)


def test_a_single_vllm_server(run, ask_target):
    async def scenario():
        async with Server(seen.vllm_worker()) as server:
            return await ask_target(server.url)

    target = run(scenario())
    assert (target.engine, target.engine_version, target.model) == ("vllm", "0.32.0", "smollm2")
    assert target.notes == (
        "no prefill or decode server is known, so none can be looked at; they can be named in pdserve.toml",
    )


def test_a_server_of_which_nothing_is_known(run, ask_target):
    async def scenario():
        async with Server({"/v1/models": Said({"data": [{"id": "a"}, {"id": "b"}]})}) as server:
            return await ask_target(server.url)

    target = run(scenario())
    assert (target.engine, target.engine_version) == ("openai", None)
    assert (target.model, target.models) == ("a", ("a", "b"))
    assert "2 models are offered; a is tested, since it comes first" in target.notes
    assert "the engine is not recognised: only the OpenAI API is relied on" in target.notes


def test_a_proxy_in_front_and_a_base_path(run, ask_target):
    async def scenario():
        worker = seen.sglang_worker
        async with seen.deployment(seen.sglang_router, worker(), worker()) as (router, prefill, decode):
            async with Server({"/base/v1/models": seen.models("local", "stub-model")}) as proxy:
                target = await ask_target(f"{proxy.url}/base", router=router.url)
                assert {path for path, _ in proxy.asked} == {"/base/v1/models"}
            return target, [proxy.url, router.url, prefill.url, decode.url]

    target, urls = run(scenario())
    assert [one.role for one in target.services] == list(Role)
    assert [one.declared for one in target.services] == [True, True, False, False]
    assert target.entry == target.services[0].url == f"{urls[0]}/base"
    assert [one.url for one in target.services[1:]] == urls[1:]


def test_what_the_settings_name_counts_for_its_role(run, ask_target):
    async def scenario():
        worker = seen.vllm_worker()
        async with (
            seen.deployment(seen.vllm_router, {}, worker) as (router, _, decode),
            Server(worker) as prefill,
        ):
            target = await ask_target(router.url, prefill=(prefill.url,), engine="vllm", model="smollm2")
            assert target.services[1:] == (
                service(Role.PREFILL, prefill.url, declared=True),
                service(Role.DECODE, decode.url),
            )

    run(scenario())


def test_settings_that_name_another_engine_are_believed_with_a_note(run, ask_target):
    async def scenario():
        async with Server(seen.vllm_worker()) as server:
            return await ask_target(server.url, engine="sglang")

    target = run(scenario())
    assert target.engine == "sglang"
    assert "the settings say that the engine is sglang; its answers look like vllm" in target.notes


def test_workers_of_different_versions_are_noted(run, ask_target):
    async def scenario():
        worker = seen.vllm_worker
        async with seen.deployment(seen.vllm_router, worker("0.31.0"), worker()) as (router, *_):
            return await ask_target(router.url)

    assert "the workers run different versions of vllm: 0.31.0, 0.32.0" in run(scenario()).notes


def test_a_router_that_fails_has_the_workers_asked_for_the_model(run, ask_target):
    async def scenario():
        async with Server(seen.vllm_worker()) as decode:
            paths = {
                **seen.vllm_router(["http://127.0.0.1:1"], [decode.url]),
                "/v1/models": Said(b"no prefill", 500),
            }
            async with Server(paths) as router:
                target = await ask_target(router.url)
                assert (
                    f'router {router.url} is not well: to /v1/models it answered 500 and "no prefill"'
                    in target.notes
                )
                assert any(f"the one that decode {decode.url} offers" in note for note in target.notes)
                return target

    target = run(scenario())
    assert target.model == "smollm2"
    assert target.unreachable is None
    assert [one.role for one in target.services] == [Role.ROUTER, Role.PREFILL, Role.DECODE]


def test_a_closed_models_page_is_no_obstacle_if_the_settings_name_the_model(run, ask_target):
    async def scenario():
        async with Server({}) as gateway:
            return await ask_target(gateway.url, model="m")

    target = run(scenario())
    assert target.model == "m"
    assert any("the model is taken from the settings" in note for note in target.notes)


@pytest.mark.parametrize("who", ["nobody", "router", "prefill"])
def test_the_common_layout(run, ask_target, monkeypatch, who):
    async def scenario():
        dead = await closed_port()
        async with Server(seen.sglang_worker()) as prefill, Server(seen.sglang_worker()) as decode:
            layout = {"prefill": prefill.port if who == "prefill" else int(dead.rpartition(":")[2])}
            monkeypatch.setattr(
                inquiry, "LAYOUT", Layout(router=0, decode=int(dead.rpartition(":")[2]), **layout)
            )
            paths = (
                seen.sglang_router([prefill.url], [decode.url])
                if who == "router"
                else seen.sglang_router([], [])
            )
            async with Server(paths) as router:
                target = await ask_target(router.url, layout=True)
        return target, prefill.url, decode.url, dead

    target, prefill, decode, dead = run(scenario())
    workers = target.services[1:]
    if who == "nobody":
        assert workers == ()
        assert f"nothing answers at prefill {dead} or decode {dead} (the common layout)" in target.notes
    elif who == "router":
        assert [one.url for one in workers] == [prefill, decode], (
            "the router's word counts more than the layout"
        )
    else:
        assert [(one.role, one.url, one.declared) for one in workers] == [
            (Role.PREFILL, prefill, False),
            (Role.DECODE, dead, False),
        ]
        assert any(f"decode {dead} (assumed by the common layout): " in note for note in target.notes)


def test_a_refused_port_is_a_dead_target_and_no_mistake(run, ask_target):
    async def scenario():
        dead = await closed_port()
        async with Server(seen.vllm_worker()) as prefill:
            return dead, await ask_target(dead, prefill=(prefill.url,), model="another")

    dead, target = run(scenario())
    assert target.unreachable is not None
    assert target.unreachable.startswith(f"router {dead}: ")
    assert "refused" in target.unreachable
    assert [one.role for one in target.services] == [Role.ROUTER, Role.PREFILL]
    assert target.engine == "vllm", "its workers tell"
    assert target.model == "another"


@pytest.mark.usefixtures("hasty")
def test_silence_is_a_dead_target(run, ask_target):
    async def scenario():
        async with Server({"*": silence}) as server:
            return await ask_target(server.url)

    target = run(scenario())
    assert target.unreachable is not None
    assert "nothing for 0.3 s" in target.unreachable


@pytest.mark.usefixtures("hasty")
def test_silent_workers_are_kept_for_the_health_probes(run, ask_target):
    async def scenario():
        silent = {"*": silence}
        async with seen.deployment(seen.vllm_router, silent, silent) as (router, *_):
            return await ask_target(router.url)

    target = run(scenario())
    assert [one.role for one in target.services] == [Role.ROUTER, Role.PREFILL, Role.DECODE]
    assert target.unreachable is None
    assert target.engine == "vllm"


def test_the_steps_together_keep_the_promised_bound():
    assert inquiry.FIRST + inquiry.RIGHTS + inquiry.WORKERS + inquiry.VERSION < 10


def test_services_are_asked_at_the_same_time(run, ask_target, monkeypatch):
    monkeypatch.setattr(inquiry, "WORKERS", 0.5)
    monkeypatch.setattr(inquiry, "VERSION", 0.5)

    async def scenario():
        async with Server({"*": silence}) as worker:
            urls = [f"{worker.url}/{number}" for number in range(20)]
            started = time.monotonic()
            async with Server(seen.vllm_router(urls, urls)) as router:
                target = await ask_target(router.url)
            assert len(target.services) == 41
            return time.monotonic() - started

    assert run(scenario()) < 10, "one after the other would take 20 s"


def test_an_unstarted_simulation_is_a_programming_error(run, ask_target):
    with pytest.raises(ValueError, match="must be started first"):
        run(ask_target(None, simulated=True))


def test_who_is_sent_the_key(run, ask_target):
    async def scenario(**kwargs):
        async with (
            Server(seen.vllm_worker()) as ours,
            Server(seen.vllm_worker(), host="localhost") as other,
            Server(seen.vllm_router([ours.url], [other.url])) as router,
        ):
            credential = Credential(api_key=SecretStr("sk-12345"), entry=router.url, **kwargs)
            target = await ask_target(router.url, credential=credential)
            assert router.keys() == ours.keys() == {"Bearer sk-12345"}
            return other.keys(), [note.replace(other.url, "URL") for note in target.notes]

    keys, notes = run(scenario())
    assert keys == {None}, "a discovered address on another host"
    assert notes == ["decode URL gets no API key: its host is not in send_key_to"]
    assert run(scenario(send_key_to=["localhost"])) == ({"Bearer sk-12345"}, [])


def test_a_cancelled_resolution_leaves_nothing_behind(run, ask_target):
    async def scenario():
        async with Server({"*": silence}) as server:
            task = asyncio.create_task(ask_target(server.url))
            await server.was_asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.05)
            return [task for task in asyncio.all_tasks() if "pytest_pdserve/" in repr(task)]

    assert run(scenario()) == []


def test_the_model_of_the_settings_must_be_offered(run, ask_target):
    async def scenario(wanted):
        async with Server(seen.vllm_worker()) as server:
            return server.url, await ask_target(server.url, model=wanted)

    assert run(scenario("smollm2"))[1].model == "smollm2"
    with pytest.raises(
        TargetError, match=r'offers no model "smolm2" \(offered: smollm2\)\. Did you mean "smollm2"\?'
    ):
        run(scenario("smolm2"))
