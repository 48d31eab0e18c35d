import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_pdserve.settings.lines import LONGEST_VALUE, line_of

TEXT = '''# a comment, entry = 1
[targets.one]
entry = "http://h"
model = """
[targets.two]
entry = 3
"""
prefill = [
  "http://a", # ] "
  "http://b",
]
budgets = { ttft = 1, "e2e" = 2 }
limits.deadline = 3

[ targets . "a b" ] # spaced
"en=try" = 1

[targets.one.tls]
ca = 'x'
[targets.empty]
[[rows]]
a = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("targets", "one"), 2),
        (("targets", "one", "entry"), 3),
        (("targets", "one", "model"), 4),
        (("targets", "one", "prefill"), 8),
        (("targets", "one", "prefill", "1"), 8),
        (("targets", "one", "budgets", "e2e"), 12),
        (("targets", "one", "limits", "deadline"), 13),
        (("targets", "a b", "en=try"), 16),
        (("targets", "one", "tls", "ca"), 19),
        (("targets", "one", "tls", "nothing"), 18),
        (("targets", "empty", "entry"), 20),
        (("targets", "two"), 2),
        (("rows", "a"), 22),
        (("elsewhere",), None),
    ],
)
def test_where_a_key_stands(path, line):
    assert line_of(TEXT, path) == line


@pytest.mark.parametrize(
    ("lines", "line"), [(LONGEST_VALUE - 10, LONGEST_VALUE - 6), (LONGEST_VALUE + 10, 1)]
)
def test_behind_a_value_that_is_too_long_for_the_search_the_table_is_named(lines, line):
    text = "[table]\na = [\n" + "1,\n" * lines + "]\nb = 1\n"
    assert line_of(text, ("table", "b")) == line


@settings(deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.integers(0, 9), min_size=1, max_size=8),
    st.data(),
)
def test_the_line_found_holds_the_key(values, data):
    lines = ["[table]"]
    for key, value in values.items():
        lines += ["#"] * data.draw(st.integers(0, 2))
        lines.append(f"{key} = {value}")
    for key in values:
        line = line_of("\n".join(lines), ("table", key))
        assert lines[line - 1].startswith(f"{key} =")
