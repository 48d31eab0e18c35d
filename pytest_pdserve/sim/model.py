"""A toy language model that is honest about being one.

It sees nothing but the tokens of its context and can continue a pattern of examples, copy what it is told to
copy, and recall a fact that stands in its context. Anything else gets a fixed sentence. Temperature and
sampling do not exist for it: the same context always gives the same answer.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import zlib
from typing import TYPE_CHECKING, Any

from pytest_pdserve.sim.grammar import FREE, Guide, fit
from pytest_pdserve.sim.plan import Skill
from pytest_pdserve.sim.tokens import EOS, cut, turns
from pytest_pdserve.sim.tools import decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILLER = (
    "I am a toy model of a simulated deployment: I copy, I recall, and otherwise I say this.",
    " A river runs from the hills to the sea, and every stone in it has been somewhere else before.",
    " Counting helps: one, two, three, four, five, six, seven, eight, nine, ten.",
)
_LABELLED = re.compile(r"(?i)\b(?:code|nonce|word|token|number|key|id|marker)\b[^:\n]{0,40}:\s*(\S+)")
_TOLD = re.compile(
    r"(?i)\b(?:repeat|copy|say|reply|answer|respond|write|echo|return)\b[^:\n]*:\s*(.+)$", re.S
)
_QUOTED = re.compile(
    r"(?i)\b(?:repeat|copy|say|reply|answer|respond|write|echo|return)\b[^\"'`\n]*[\"'`]([^\"'`\n]+)[\"'`]"
)
_FACT = re.compile(r"(?i)^(.{1,80}?)(?:\s+(?:is|was|are|equals|=)\s+|\s*[:=]\s*)(.{1,60}?)$")
_SENTENCE_END = re.compile(r"[.!?;]+(?:\s+|$)|\n+")
_WORD = re.compile(r"\w+")
_SMALL_WORDS = frozenset(
    "a an the my your our is was are what which who tell me please remember that this it of for in to do you "  # noqa: SIM905
    "i repeat recall give now only with just again name note and".split()
)


class Model:
    """The toy model under one skill and seed."""

    def __init__(self, skill: Skill, seed: int) -> None:
        self._skill = skill
        self._seed = seed

    def generate(self, context: Sequence[bytes], *, talkative: bool, guide: Guide = FREE) -> Iterator[bytes]:
        """Yield the answer's tokens without end: first what the model has to say, then EOS, then filler.

        A talkative model that has nothing to copy or recall never comes to EOS, so that an answer is as long
        as its token limit. Whoever consumes the tokens decides where to stop: at EOS, or beyond it. The form
        that `guide` demands is kept, also by a model without skill.
        """
        spoken = turns(context)
        formed = self._formed(spoken, guide)
        if self._skill is Skill.NONE and formed is None:
            yield from self._babble(context)
        answer = self._answer(spoken) if formed is None else formed
        if answer is not None or not talkative:
            yield from cut(answer or _FILLER[0])
            yield EOS
        yield from itertools.cycle(piece for sentence in _FILLER for piece in cut(sentence))

    def _babble(self, context: Sequence[bytes]) -> Iterator[bytes]:
        source = random.Random(zlib.crc32(b"".join(context), self._seed))
        while True:
            yield b" " + bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randint(1, 4)))

    def _formed(self, spoken: Sequence[tuple[str, str]], guide: Guide) -> str | None:
        """The answer whose form was asked for: tool calls, or JSON that obeys a schema."""
        role, asked = next(((role, text) for role, text in reversed(spoken) if role != "assistant"), ("", ""))
        known = asked if self._skill is Skill.COPY else ""
        calls = decide(_offered(spoken), role, known, guide)
        if calls:
            return "\n".join(calls)
        if guide.schema is None:
            return None
        texts = [text for role, text in spoken if role in ("system", "user")] if known else []
        return json.dumps(fit(guide.schema, "\n".join(texts)), ensure_ascii=False)

    def _answer(self, spoken: list[tuple[str, str]]) -> str | None:
        spoken = [turn for turn in spoken if turn[0] != "tools"]
        if spoken and spoken[-1] == ("assistant", ""):
            spoken.pop()
        asked = next((text for role, text in reversed(spoken) if role != "assistant"), "")
        if spoken and spoken[-1][0] == "":
            return _labelled(asked.rstrip().splitlines()[-1] if asked.strip() else "") or _recall(
                asked, [asked]
            )
        before = spoken[:-1]
        if spoken and spoken[-1][0] == "tool":
            return _labelled(asked) or asked.strip()
        return (
            _by_example(before, asked)
            or _told(asked)
            or _labelled(asked)
            or _recall(asked, [text for role, text in before if role != "assistant"])
        )


def _offered(spoken: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The tools that the context tells of; none where it is damaged."""
    text = next((text for role, text in spoken if role == "tools"), "[]")
    try:
        tools = json.loads(text)
    except ValueError:
        return []
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _by_example(before: Sequence[tuple[str, str]], asked: str) -> str | None:
    """Continue `user: <head>X<tail>`, `assistant: X` for the last user message, if it has that form."""
    for (role, text), (next_role, answer) in zip(reversed(before[:-1]), reversed(before[1:]), strict=True):
        if role != "user" or next_role != "assistant" or not answer.strip():
            continue
        head, found, tail = text.partition(answer.strip())
        if found and asked.startswith(head) and asked.endswith(tail) and len(asked) > len(head) + len(tail):
            return asked[len(head) : len(asked) - len(tail)].strip()
    return None


def _told(asked: str) -> str | None:
    """What the message says literally should be said, in quotes or after a colon."""
    match = _QUOTED.search(asked) or _TOLD.search(asked)
    return match[1].strip() if match else None


def _labelled(asked: str) -> str | None:
    """The token after a label such as "code:"."""
    match = _LABELLED.search(asked)
    return match[1].strip("\"'`.,;") if match else None


def _recall(asked: str, texts: Sequence[str]) -> str | None:
    """The latest fact ("<words> is <value>") whose words share most with the question.

    The question is the last sentence of what was asked; facts may stand before it, or in earlier texts.
    """
    *told, question = [sentence for sentence in _SENTENCE_END.split(asked) if sentence.strip()] or [""]
    told = [sentence for text in texts for sentence in _SENTENCE_END.split(text)] + told
    wanted = _telling_words(question)
    best: tuple[int, str] | None = None
    for sentence in told:
        fact = _FACT.match(sentence.strip())
        words = _telling_words(fact[1]) if fact else set()
        shared = len(words & wanted)
        if fact and shared and shared * 2 >= len(words) and (best is None or shared >= best[0]):
            best = (shared, fact[2].strip("\"'` "))
    return best[1] if best else None


def _telling_words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if word not in _SMALL_WORDS}
