"""From settings to a `Target`: ask the entry what it is, what it serves and who its workers are."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import httpx

from pytest_pdserve.engines import DYNAMO, ENGINES, OPENAI, WORKERS_PATH
from pytest_pdserve.settings import LAYOUT, Settings, authority, one_line
from pytest_pdserve.target.ask import Answer, ask, refuses_chat
from pytest_pdserve.target.detect import engine_name, read_version
from pytest_pdserve.target.entry import Entry, judge, rights
from pytest_pdserve.target.models import Model, choose, read_models
from pytest_pdserve.target.target import Role, Service, Target, TargetError
from pytest_pdserve.target.workers import Told, is_local, is_local_host, read_workers
from pytest_pdserve.wire import Phase

FIRST, RIGHTS, WORKERS, VERSION = 4.0, 1.5, 2.5, 1.5
"""Seconds for each of the steps that follow one another; together they stay below the promised ten."""

LONGEST_LINE = 600
"""Characters of a note or error; what servers say of themselves may be longer."""


async def resolve(settings: Settings, client: httpx.AsyncClient) -> Target:
    """Ask the deployment what it is; takes 10 s at most.

    Raises TargetError, one line, for what a person must mend first: a host that does not exist, TLS failures,
    missing rights, a model that is not served, a server of another kind. An entry that refuses or says
    nothing is no such mistake: the target comes back with `unreachable` set.
    """

    def line(text: str) -> str:
        shown = one_line(settings.credential.mask(text))
        return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 1] + "…"

    try:
        target = await _Inquiry(settings, client).target()
    except TargetError as error:
        raise TargetError(line(str(error))) from None
    unreachable = line(target.unreachable) if target.unreachable is not None else None
    return replace(target, notes=tuple(map(line, target.notes)), unreachable=unreachable)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A worker that may belong to the target."""

    role: Role
    url: str
    declared: bool = False
    assumed: bool = False
    """Only the common layout speaks for it."""

    def __str__(self) -> str:
        return f"{self.role} {self.url}"


class _Inquiry:
    """One resolution: the questions, and the notes that collect on the way."""

    def __init__(self, settings: Settings, client: httpx.AsyncClient) -> None:
        if settings.entry is None:
            raise ValueError("settings without an entry: the simulation must be started first")
        self.settings = settings
        self.client = client
        self.entry = settings.entry
        self.router = settings.router or settings.entry
        self.entry_role = Role.ROUTER if self.router == self.entry else Role.PROXY
        self.where = f"{self.entry_role} {self.entry}"
        self.notes: list[str] = []

    async def target(self) -> Target:
        models, workers = await self._ask_all(
            [self.entry + OPENAI.models_path, self.router + WORKERS_PATH], FIRST
        )
        said = judge(models, self.settings, self.where)
        self.notes += said.notes
        told = await self._told(workers)
        candidates = self._candidates(told)
        urls = [one.url + OPENAI.models_path for one in candidates]
        # On SGLang's workers /health generates, so only what offers no model, as none of them does, is asked.
        health_too = models.ok and not said.models
        answers = await self._ask_all(urls + [self.entry + "/health"] * health_too, WORKERS)
        health = answers.pop() if health_too else None
        found = self._keep(list(zip(candidates, answers, strict=True)))
        engine = self._engine(said, [answer for _, answer in found], told, health)
        offered, model = self._model(said, found)
        services = self._services([one for one, _ in found], dict(told.bootstrap_ports))
        self._note_gaps(services, engine, said)
        version = await self._version(engine, [one.url for one, answer in found if answer.came])
        return Target(
            name=self.settings.name,
            entry=self.entry,
            services=services,
            engine=engine,
            engine_version=version,
            model=model.id if model else self.settings.model,
            models=tuple(one.id for one in offered),
            max_model_len=_longest(model, [answer for _, answer in found]),
            notes=tuple(self.notes),
            unreachable=said.unreachable,
        )

    async def _ask(self, url: str, deadline: float) -> Answer:
        return await ask(self.client, self.settings.credential, url, deadline=deadline)

    async def _ask_all(self, urls: Iterable[str], deadline: float) -> list[Answer]:
        return await asyncio.gather(*(self._ask(url, deadline) for url in urls))

    async def _told(self, workers: Answer) -> Told:
        """What the router says of its workers, noted where it cannot be used."""
        if workers.status in (401, 403):
            # sglang-router with a key lets everybody read /v1/models, but neither /workers nor chat;
            # elsewhere /workers alone may be closed to us.
            if await refuses_chat(self.client, self.settings.credential, self.entry, deadline=RIGHTS):
                sent = bool(self.settings.credential.headers_for(self.entry))
                raise rights(workers.status, sent=sent, where=self.where)
            self.notes.append(
                f"router {self.router} answered {workers.status} to {WORKERS_PATH}: it is not asked for them"
            )
        if not workers.ok:
            return Told()
        peer = (workers.exchange.timeline.peer or "").rpartition(":")[0].strip("[]")
        told = read_workers(workers.json, router_is_local=is_local(self.router) or is_local_host(peer))
        if told is None:
            return Told()
        self.notes += told.notes
        return told

    def _candidates(self, told: Told) -> list[_Candidate]:
        """By role: what the settings name, else what the router tells, else what the layout suggests."""
        candidates = []
        for role, named in ((Role.PREFILL, self.settings.prefill), (Role.DECODE, self.settings.decode)):
            candidates += [_Candidate(role=role, url=url, declared=True) for url in named]
            if not named:
                candidates += [
                    _Candidate(role=role, url=url) for told_role, url in told.workers if told_role is role
                ]
        if self.settings.layout and not candidates:
            host = httpx.URL(self.entry).host
            for role, port in ((Role.PREFILL, LAYOUT.prefill), (Role.DECODE, LAYOUT.decode)):
                candidates.append(_Candidate(role=role, url=authority("http", host, port), assumed=True))
        return candidates

    def _keep(self, asked: Sequence[tuple[_Candidate, Answer]]) -> list[tuple[_Candidate, Answer]]:
        """Those that belong to the target, as far as one can tell from here."""
        if asked and all(one.assumed and not answer.came for one, answer in asked):
            self.notes.append(
                f"nothing answers at {' or '.join(str(one) for one, _ in asked)} (the common layout)"
            )
            return []
        kept = []
        for one, answer in asked:
            if not one.declared and answer.exchange.phase is Phase.RESOLVE:
                self.notes.append(f"{one}, of which the router tells: {answer.reason}: left out")
                continue
            kept.append((one, answer))
            if one.assumed and not answer.came:
                self.notes.append(f"{one} (assumed by the common layout): {answer.reason}")
            if not self.settings.credential.empty and not self.settings.credential.trusts(one.url):
                self.notes.append(f"{one} gets no API key: its host is not in send_key_to")
        return kept

    def _engine(self, said: Entry, answers: list[Answer], told: Told, health: Answer | None) -> str:
        detected = engine_name(
            entry=said.models,
            workers=[model for answer in answers for model in read_models(answer.json) or ()],
            lists_workers=bool(told.workers),
            health=health.json if health else None,
        )
        engine = self.settings.engine or detected
        if detected not in (engine, OPENAI.name):
            self.notes.append(
                f"the settings say that the engine is {engine}; its answers look like {detected}"
            )
        if engine == OPENAI.name and self.settings.engine is None and said.unreachable is None:
            self.notes.append("the engine is not recognised: only the OpenAI API is relied on")
        return engine

    def _model(
        self, said: Entry, found: Sequence[tuple[_Candidate, Answer]]
    ) -> tuple[tuple[Model, ...], Model | None]:
        """The models offered, and the one under test; the workers are believed where the entry says none."""
        offered, where = said.models, self.where
        for one, answer in found:
            if not offered and (offered := read_models(answer.json) or ()):
                where = str(one)
                self.notes.append(f"the model is the one that {one} offers, since the entry names none")
        if said.unreachable is not None and self.settings.model is not None:
            return offered, next((model for model in offered if model.id == self.settings.model), None)
        model = choose(self.settings.model, offered, where)
        if model is not None and self.settings.model is None and len(offered) > 1:
            self.notes.append(
                f"{len(offered)} models are offered; {model.id} is tested, since it comes first"
            )
        return offered, model

    def _services(
        self, workers: Sequence[_Candidate], bootstrap_ports: Mapping[str, int]
    ) -> tuple[Service, ...]:
        services = [Service(role=self.entry_role, url=self.entry, name=str(self.entry_role), declared=True)]
        if self.entry_role is Role.PROXY:
            services.append(Service(role=Role.ROUTER, url=self.router, name=str(Role.ROUTER), declared=True))
        for role in (Role.PREFILL, Role.DECODE):
            alike = [one for one in workers if one.role is role]
            for number, one in enumerate(alike, 1):
                name = f"{role} {number}" if len(alike) > 1 else str(role)
                services.append(
                    Service(
                        role=role,
                        url=one.url,
                        name=name,
                        declared=one.declared,
                        bootstrap_port=bootstrap_ports.get(one.url),
                    )
                )
        return tuple(services)

    def _note_gaps(self, services: Sequence[Service], engine: str, said: Entry) -> None:
        missing = [
            role for role in (Role.PREFILL, Role.DECODE) if all(one.role is not role for one in services)
        ]
        if not missing or said.unreachable is not None:
            return
        why = "dynamo does not tell its workers' system ports; " if engine == DYNAMO.name else ""
        self.notes.append(
            f"no {' or '.join(missing)} server is known, so none can be looked at; {why}"
            "they can be named in pdserve.toml"
        )

    async def _version(self, engine: str, workers: list[str]) -> str | None:
        sources = ENGINES[engine].versions
        places = [
            (base + source.path, source.keys)
            for source in sources
            for base in (workers if source.at == "worker" and workers else [self.entry])
        ]
        answers = await self._ask_all((url for url, _ in places), VERSION)
        versions = [
            read_version(answer.json, keys)
            for answer, (_, keys) in zip(answers, places, strict=True)
            if answer.ok
        ]
        told = list(dict.fromkeys(version for version in versions if version is not None))
        if len(told) > 1:
            self.notes.append(f"the workers run different versions of {engine}: {', '.join(told)}")
        return told[0] if told else None


def _longest(model: Model | None, workers: Sequence[Answer]) -> int | None:
    """What the entry says of the model's longest sequence, else the least that a worker says."""
    if model is None or model.max_model_len is not None:
        return model.max_model_len if model else None
    alike = (one for answer in workers for one in read_models(answer.json) or () if one.id == model.id)
    return min((one.max_model_len for one in alike if one.max_model_len is not None), default=None)
