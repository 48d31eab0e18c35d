"""Judging the entry's answer to /v1/models: is this a server to test, a dead one, or a mistake?"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from pytest_pdserve.engines import OPENAI
from pytest_pdserve.settings import Settings, did_you_mean
from pytest_pdserve.target.ask import Answer
from pytest_pdserve.target.models import Model, read_models
from pytest_pdserve.target.target import TargetError
from pytest_pdserve.wire import Outcome, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the entry said."""

    models: tuple[Model, ...] = ()
    unreachable: str | None = None
    notes: tuple[str, ...] = ()


def judge(answer: Answer, settings: Settings, where: str) -> Entry:
    """Read the entry's answer; `where` names it for people. Raises TargetError for people's mistakes."""
    match answer.exchange.outcome:
        case Outcome.COMPLETED:
            return _completed(answer, where)
        case Outcome.REFUSED:
            return _refused(answer, settings, where)
        case Outcome.GARBLED:
            raise TargetError(f"{where} is no LLM server: {answer.reason}")
        case Outcome.BROKEN | Outcome.HUNG:
            return _no_answer(answer, settings, where)


def rights(status: int | None, *, sent: bool, where: str) -> TargetError:
    """What to say of 401 and 403."""
    if sent:
        return TargetError(
            f"{where} answered {status}: it does not accept the API key or headers of the settings"
        )
    return TargetError(f"{where} answered {status}: it wants an API key and none was sent; see api_key_env")


def _completed(answer: Answer, where: str) -> Entry:
    models = read_models(answer.json)
    if models is None:
        raise TargetError(
            f"{where} is no LLM server: to {OPENAI.models_path} it answered {answer.shown()}, not a list of models"
        )
    if not models:
        return Entry(notes=(f"{where} offers no model at present",))
    return Entry(models=models)


def _refused(answer: Answer, settings: Settings, where: str) -> Entry:
    status = answer.status or 0
    if status in (401, 403):
        raise rights(status, sent=bool(settings.credential.headers_for(answer.exchange.url)), where=where)
    saying = f"to {OPENAI.models_path} it answered {status} and {answer.shown()}"
    if status >= 500 or status == 429:
        return Entry(notes=(f"{where} is not well: {saying}",))
    if settings.model is not None:
        return Entry(notes=(f"the model is taken from the settings; of {where}: {saying}",))
    raise TargetError(
        f"{where} is no LLM server, or its base path is another, or it keeps its models to itself and "
        f"pdserve.toml must name one: {saying}"
    )


def _no_answer(answer: Answer, settings: Settings, where: str) -> Entry:
    done = answer.exchange
    if done.phase is Phase.RESOLVE:
        raise _unknown_host(answer.reason, settings, where)
    if done.phase is Phase.TLS and done.outcome is Outcome.BROKEN:
        raise TargetError(f"{where}: {answer.reason}")
    return Entry(unreachable=f"{where}: {answer.reason}")


def _unknown_host(reason: str, settings: Settings, where: str) -> TargetError:
    if not settings.layout:
        return TargetError(f"{where}: {reason}")
    host = urlsplit(settings.entry or "").hostname or ""
    reason = reason.removeprefix(f"'{host}': ")
    if settings.file is None:
        return TargetError(f'no host "{host}" answers ({reason}), and there is no pdserve.toml that names it')
    known = ", ".join(settings.known) or "none"
    return TargetError(
        f'no target "{host}" in {settings.file.name} (known: {known}) and no host of that name answers '
        f"({reason}).{did_you_mean(host, settings.known)}"
    )
