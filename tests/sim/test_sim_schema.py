"""JSON that obeys a schema, with what the prompt states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from simclient import Answer, chat

from pytest_pdserve.sim.grammar import fit

if TYPE_CHECKING:
    from pytest_pdserve.sim.launch import Simulation

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 1, "maximum": 150},
        "größe": {"type": "number"},
        "member": {"type": "boolean"},
        "level": {"enum": ["low", "high"]},
        "kind": {"const": "person"},
        "nothing": {"type": "null"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
        "address": {"$ref": "#/$defs/address"},
        "contact": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "lines": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city", "lines"],
        }
    },
}
STATED = "name: Ada, age: 36, größe: 1.63, member: yes, level: high, city: Paris, tags: a, b, c, d"


def ask(sim: Simulation, text: str, schema: dict[str, Any] | None, **more: Any) -> Answer:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    if schema is None:
        form = {"type": "json_object"}
    return chat(sim.entry, text, response_format=form, **{"max_tokens": 400, **more})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_answer_obeys_the_schema_and_says_what_is_stated(sim: Simulation, stream: bool) -> None:
    found = json.loads(ask(sim, STATED, PERSON, stream=stream).text)
    jsonschema.validate(found, PERSON)
    told = {key: found[key] for key in ("name", "age", "größe", "member", "level", "tags")}
    assert told == {
        "name": "Ada",
        "age": 36,
        "größe": 1.63,
        "member": True,
        "level": "high",
        "tags": ["a", "b", "c"],
    }
    assert found["address"]["city"] == "Paris"


def test_without_statements_it_is_valid_all_the_same(sim: Simulation) -> None:
    jsonschema.validate(json.loads(ask(sim, "Go on.", PERSON).text), PERSON)


def test_an_object_in_the_prompt_is_given_back(sim: Simulation) -> None:
    given = {"name": "語 😀", "age": 7}
    assert json.loads(ask(sim, f"Give back {json.dumps(given)}", PERSON).text) == given


def test_any_object(sim: Simulation) -> None:
    assert json.loads(ask(sim, 'Say {"a": [1, 2]}', None).text) == {"a": [1, 2]}
    assert json.loads(ask(sim, "Say something", None).text) == {}


def test_a_limit_cuts_it_off(sim: Simulation) -> None:
    answer = ask(sim, STATED, PERSON, max_tokens=5)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("schema", [None, {"$ref": "#/nowhere"}, {"type": "object", "properties": 5}])
def test_a_form_without_a_good_schema_is_400(sim: Simulation, schema: Any) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(sim.entry, "hello", response_format=wrong).status == 400
    assert chat(sim.entry, "code: 17").text == "17"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"allOf": [{"type": "integer"}, {"minimum": 4}]}, "", 4),
        ({"oneOf": [{"type": "boolean"}]}, "", False),
        ({"type": ["integer", "null"]}, "", 0),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, "", []),
        ({"type": "string", "maxLength": 3}, 'say "abcdef"', "abc"),
    ],
)
def test_single_forms(schema: dict[str, Any], text: str, value: Any) -> None:
    assert fit(schema, text) == value


def test_a_schema_that_holds_itself_ends(sim: Simulation) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert isinstance(fit(node, ""), dict)
