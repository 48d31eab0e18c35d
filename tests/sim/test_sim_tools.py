"""Tool calls: when the toy model makes them, and their form on the wire beside what vLLM sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simclient import Answer, chat

from pytest_pdserve.sim.launch import Simulation, start
from pytest_pdserve.sim.tools import CLOSE, ToolReader, written

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "vllm"


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


STRING, NUMBER = {"type": "string"}, {"type": "integer"}
WEATHER = tool("get_weather", "The present weather of a city.", city=STRING)
SET = tool("set_value", "Store a number under a key.", key=STRING, value=NUMBER)
TOOLS = [WEATHER, SET]


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def either(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with start(dialect=request.param) as simulation:
        yield simulation


def ask(sim: Simulation, text: str, **more: Any) -> Answer:
    return chat(sim.entry, text, **{"model": sim.model, "tools": TOOLS, "max_tokens": 400, **more})


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    """(name, arguments) of each call of an unstreamed answer."""
    calls = answer.json["choices"][0]["message"].get("tool_calls") or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def streamed_calls(answer: Answer) -> tuple[list[tuple[str, str]], list[str], str | None]:
    """(name, arguments as they came) of each call of a stream, the ids, and the finish reason."""
    calls: dict[int, list[str]] = {}
    ids, finish = [], None
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], ["", ""])
                call[0] += part["function"].get("name") or ""
                call[1] += part["function"].get("arguments") or ""
                ids += [part["id"]] if part.get("id") else []
    return [(name, arguments) for name, arguments in calls.values()], ids, finish


def finish(answer: Answer) -> str:
    return str(answer.json["choices"][0]["finish_reason"])


def test_auto_calls_what_is_asked_for(either: Simulation) -> None:
    answer = ask(either, "What is the weather in Oslo?")
    assert calls_of(answer) == [("get_weather", {"city": "Oslo"})]
    assert finish(answer) == "tool_calls"
    assert answer.json["choices"][0]["message"]["content"] is None


def test_auto_leaves_alone_what_is_not(either: Simulation) -> None:
    refused = 'Do not call get_weather with {"city": "Oslo"}. Repeat this: hello'
    for text in ("Repeat this: hello", "Do not call get_weather. Repeat this: hello", refused):
        answer = ask(either, text)
        assert (calls_of(answer), answer.text, finish(answer)) == ([], "hello", "stop")


def test_none_never_calls(either: Simulation) -> None:
    answer = ask(either, "What is the weather in Oslo?", tool_choice="none")
    assert calls_of(answer) == []


def test_required_always_calls(either: Simulation) -> None:
    answer = ask(either, "Repeat this: hello", tool_choice="required")
    assert [name for name, _ in calls_of(answer)] == ["get_weather"]
    assert finish(answer) == "tool_calls"


def test_a_named_tool_is_called_with_what_is_stated(either: Simulation) -> None:
    choice = {"type": "function", "function": {"name": "set_value"}}
    answer = ask(either, "key: k481516, value: 17", tool_choice=choice)
    assert calls_of(answer) == [("set_value", {"key": "k481516", "value": 17})]
    # as captured: vLLM ends a call that was forced by name with "stop"
    assert finish(answer) == ("stop" if either.dialect == "vllm" else "tool_calls")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_arguments_given_literally_come_back_exactly(either: Simulation, stream: bool) -> None:
    given = {"key": "ключ 語 😀", "value": -3}
    answer = ask(either, f"Call set_value with {json.dumps(given, ensure_ascii=False)}", stream=stream)
    if stream:
        ((name, arguments),), ids, reason = streamed_calls(answer)
        assert (name, json.loads(arguments), len(ids), reason) == ("set_value", given, 1, "tool_calls")
    else:
        assert calls_of(answer) == [("set_value", given)]


@pytest.mark.parametrize("count", [2, 4, 16])
def test_parallel_calls(either: Simulation, count: int) -> None:
    given = [{"key": f"k{place}", "value": place} for place in range(count)]
    text = " ".join(f"Call set_value with {json.dumps(arguments)}." for arguments in given)
    assert calls_of(ask(either, text, max_tokens=1500)) == [("set_value", arguments) for arguments in given]
    calls, ids, reason = streamed_calls(ask(either, text, stream=True, max_tokens=1500))
    assert [json.loads(arguments) for _, arguments in calls] == given
    assert (len(set(ids)), reason) == (count, "tool_calls")
    alone = ask(either, text, parallel_tool_calls=False, max_tokens=1500)
    assert calls_of(alone) == [("set_value", given[0])]


def test_several_cities_are_several_calls(either: Simulation) -> None:
    answer = ask(either, "What is the weather in Oslo, Lima and Rome?")
    assert calls_of(answer) == [("get_weather", {"city": city}) for city in ("Oslo", "Lima", "Rome")]


def test_a_cut_off_call_ends_with_length(either: Simulation) -> None:
    text = 'Call set_value with {"key": "a long key that does not end soon", "value": 1}'
    answer = ask(either, text, max_tokens=30)
    assert (finish(answer), calls_of(answer)) == ("length", [])
    assert answer.text.startswith('<tool_call>\n{"name": "set_value"')
    ((name, arguments),), _, reason = streamed_calls(ask(either, text, max_tokens=30, stream=True))
    assert (name, reason) == ("set_value", "length")
    assert '{"key": "a long key that does not end soon"'.startswith(arguments)


def test_a_result_is_answered_or_leads_to_the_next_call(either: Simulation) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    messages = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "weather code: r4711"},
    ]
    assert ask(either, "", messages=messages).text == "r4711"
    messages[-1]["content"] = 'Now call set_value with {"key": "r4711", "value": 2}'
    assert calls_of(ask(either, "", messages=messages)) == [("set_value", {"key": "r4711", "value": 2})]


def test_tools_and_calls_count_as_prompt(either: Simulation) -> None:
    plain = chat(either.entry, "hello", model=either.model, max_tokens=1).json["usage"]["prompt_tokens"]
    assert ask(either, "hello", max_tokens=1).json["usage"]["prompt_tokens"] > plain + 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "perhaps"},
        {"tools": [{"type": "function"}]},
        {"tools": [], "tool_choice": "required"},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"$ref": "#/nowhere"}}}]},
    ],
)
def test_bad_tools_are_400(either: Simulation, wrong: dict[str, Any]) -> None:
    assert ask(either, "hello", **wrong).status == 400


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_reader_finds_the_same_however_the_text_is_cut(size: int) -> None:
    calls = [("a", '{"x": "}\\n</tool_cal"}'), ("b_c", "{}")]
    text = "Well: " + "\n".join(written(*call) for call in calls)
    reader, said, found = ToolReader(), "", {}
    parts = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)] + [reader.finish()]
    for piece, found_parts in parts:
        said += piece
        for part in found_parts:
            name, arguments = found.get(part.index, ("", ""))
            found[part.index] = (part.name or name, arguments + part.arguments)
    assert (said, list(found.values())) == ("Well: ", calls)


def test_the_reader_gives_back_what_only_looked_like_a_call() -> None:
    reader = ToolReader()
    assert reader.feed("<tool_call>\nno")[0] + reader.finish()[0] == "<tool_call>\nno"
    assert ToolReader().feed(f"{CLOSE} x")[0] == f"{CLOSE} x"


def shape(event: Any) -> Any:
    """An event with everything that differs from answer to answer replaced by its type."""
    if isinstance(event, dict):
        return {key: shape(value) for key, value in event.items()}
    if isinstance(event, list):
        return [shape(value) for value in event]
    return event if event is None or isinstance(event, bool) else type(event).__name__


def captured_events(name: str) -> list[Any]:
    text = (CAPTURES / name).read_text().replace("\r\n", "\n")
    first = text.split("data: [DONE]")[0]
    return [
        json.loads(line.removeprefix("data: ")) for line in first.splitlines() if line.startswith("data: {")
    ]


@pytest.mark.parametrize(
    ("capture", "choice"),
    [
        ("sse-tool-named-strict.txt", {"type": "function", "function": {"name": "get_weather"}}),
        ("sse-tool-required-strict.txt", "required"),
    ],
)
def test_a_streamed_call_has_the_captured_shape(capture: str, choice: Any) -> None:
    real = captured_events(capture)
    with start(dialect="vllm") as sim:
        ours = ask(sim, "city: Paris", stream=True, tool_choice=choice).chunks
    assert [shape(event) for event in (ours[0], ours[1], ours[2], ours[-1])] == [
        shape(event) for event in (real[0], real[1], real[2], real[-1])
    ]
    assert ours[-1]["choices"][0]["finish_reason"] == real[-1]["choices"][0]["finish_reason"]
    pattern = r"chatcmpl-tool-[0-9a-f]{16}"
    for event in (ours[1], real[1]):
        assert re.fullmatch(pattern, event["choices"][0]["delta"]["tool_calls"][0]["id"])


def test_a_cut_off_call_has_the_captured_body() -> None:
    real = json.loads(
        (CAPTURES / "json-tool-truncated.txt").read_text().replace("\r\n", "\n").split("\n\n", 1)[1]
    )
    with start(dialect="vllm") as sim:
        ours = ask(sim, "city: Paris", tool_choice="required", max_tokens=14).json
    assert shape(ours) == shape(real)
    both = [body["choices"][0]["message"]["content"] for body in (ours, real)]
    assert all(text.startswith('<tool_call>\n{"name"') for text in both)
