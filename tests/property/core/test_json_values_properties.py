import json
import math

from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.strict_json import json_line, strict_event

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def cleaned(value):
    """The value with null for every number JSON cannot write, by plain recursion."""
    if isinstance(value, dict):
        return {key: cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def refuse(constant: str):
    raise AssertionError(f"not strict JSON: {constant}")


@given(event=st.dictionaries(st.text().filter(lambda key: key != "non_finite"), values))
def test_event_line_always_parses_strictly_to_the_cleaned_event(event):
    line = json_line(strict_event(event))
    parsed = json.loads(line, parse_constant=refuse)
    flagged = parsed.pop("non_finite", [])
    assert parsed == cleaned(event)
    assert bool(flagged) == (cleaned(event) != event)
    assert line.count(b"\n") == 1
