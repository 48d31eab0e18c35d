"""Whether answers are right, judged so that a weak model is never held against a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_pdserve.chat import cut, first_code, new_copying
from pytest_pdserve.deployment import Inconclusive, ProbeFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_pdserve.chat import Copying, Reply
    from pytest_pdserve.deployment import Deployment

ASKED_AGAIN: Final = 8
"""Wrong answers that are asked for again at most: one alone takes as long as all of them together did."""

FRESH_CONVERSATIONS: Final = 2


def check_copies(pd: Deployment, asked: Sequence[Copying], replies: Sequence[Reply]) -> None:
    """Check that each reply gives its own code back.

    A code that only another request's prompt holds is cross-talk, whatever the model can do. Any other wrong answer
    (the first eight of them) is asked for again, alone: if it is right then, the deployment made the mistake; if it
    is wrong again, the model can't copy this one (a model's own mistakes came again 16 times of 16). Raises
    ProbeFailure, or Inconclusive when the model could copy less than half.
    """
    wrong = [place for place, copying in enumerate(asked) if not copying.copied(replies[place].text)]
    for place in wrong:
        _check_foreign(pd, asked, replies, place)
    mistakes = [place for place in wrong[:ASKED_AGAIN] if _right_alone(pd, asked[place])]
    if mistakes:
        shown = [_mistake(asked[place], replies[place]) for place in mistakes]
        raise ProbeFailure(
            pd.finding(
                f"{len(mistakes)} of {len(asked)} answers are wrong, and right when asked again alone",
                replies[mistakes[0]],
                *shown[:4],
                f"{len(wrong)} were wrong in all, {min(len(wrong), ASKED_AGAIN)} of them were asked again",
            )
        )
    if 2 * len(wrong) > len(asked):
        raise Inconclusive(
            f"the model got {len(wrong)} of {len(asked)} codes wrong, alone too: it copies too badly to judge by"
        )


def check_turn(pd: Deployment, asked: Copying, reply: Reply) -> None:
    """Check that one turn of a conversation gives back the code of its own message, not that of an earlier one.

    An earlier code, also when the same is asked again alone, is lost context only if fresh conversations of the
    same length lose it too, each of them: more examples never made a model copy worse (30 of 30 over 10 turns for
    one of 135M parameters), so a model that copies after three doesn't do that. Raises as `check_copies` does.
    """
    try:
        check_copies(pd, [asked], [reply])
    except Inconclusive:
        if first_code(reply.text) not in asked.examples:
            raise
        fresh = [new_copying(pd.source, examples=len(asked.examples)) for _ in range(FRESH_CONVERSATIONS)]
        answers = [pd.chat(copying.messages, connection="fresh", **pd.copy_way) for copying in fresh]
        pairs = list(zip(fresh, answers, strict=True))
        if not all(first_code(answer.text) in copying.examples for copying, answer in pairs):
            raise
        raise ProbeFailure(
            pd.finding(
                f"message {len(asked.examples) + 1} of the conversation got the answer to an earlier one",
                reply,
                _mistake(asked, reply),
                *(f"in a fresh conversation of that length too: {_mistake(*pair)}" for pair in pairs),
            )
        ) from None


def _check_foreign(pd: Deployment, asked: Sequence[Copying], replies: Sequence[Reply], place: int) -> None:
    found = first_code(replies[place].text)
    if found in asked[place].examples:
        return
    owners = [
        other
        for other, copying in enumerate(asked)
        if other != place and found in (copying.code, *copying.examples)
    ]
    if owners:
        raise ProbeFailure(
            pd.finding(
                f"answer {place + 1} carries a code of request {owners[0] + 1}: cross-talk",
                replies[place],
                _mistake(asked[place], replies[place]),
                f"{found} stands only in the prompt of request {owners[0] + 1}",
            )
        )


def _right_alone(pd: Deployment, copying: Copying) -> bool:
    return copying.copied(pd.chat(copying.messages, connection="fresh", **pd.copy_way).text)


def _mistake(copying: Copying, reply: Reply) -> str:
    found = first_code(reply.text)
    of_example = ", the code of an example" if found in copying.examples else ""
    return f"asked for {copying.code}, got {found or repr(cut(reply.text)[:40])}{of_example}"
