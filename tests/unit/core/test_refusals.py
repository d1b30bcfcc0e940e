"""One sentence for what a public door refuses."""

import pytest

from cadenza.core.errors import ConfigurationError, InputError, refuse


def test_a_refusal_names_what_was_expected_what_came_and_what_to_do():
    with pytest.raises(InputError, match=r"^steps: expected an integer >= 1, got 0; count on\.$"):
        refuse(InputError, "steps", expected="an integer >= 1", got=0, do="count on")


def test_a_value_is_cut_and_a_text_told_as_it_is():
    with pytest.raises(ConfigurationError, match=r"got \[0, .{70,75}\.\.\.\.$"):
        refuse(ConfigurationError, "envs", expected="one", got=list(range(100)))
    with pytest.raises(ConfigurationError, match=r"^envs: expected one, got two and more\.$"):
        refuse(ConfigurationError, "envs", expected="one", got="two and more")
