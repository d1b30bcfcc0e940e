import inspect
import warnings

import pytest

from cadenza.core.deprecation import deprecated


def caught_messages(function, calls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            function(2)
    assert all(warning.category is DeprecationWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def test_bare_decorator_warns_and_calls():
    @deprecated
    def double(x):
        """Return twice ``x``."""
        return 2 * x

    name = "test_bare_decorator_warns_and_calls.<locals>.double"
    with pytest.warns(DeprecationWarning, match="Call to deprecated function"):
        assert double(4) == 8
    assert caught_messages(double, 1) == [f"Call to deprecated function '{name}'."]
    assert (double.__name__, double.__doc__) == ("double", "Return twice ``x``.")
    assert list(inspect.signature(double).parameters) == ["x"]


def test_reason_and_version_are_part_of_the_message():
    @deprecated(reason="use twice", version="23.1.0")
    def double(x):
        return 2 * x

    (message,) = caught_messages(double, 1)
    assert message.endswith("double': use twice -- deprecated since version 23.1.0.")


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 10), ({"max_warn_count": 3}, 3), ({"max_warn_count": 0}, 0)]
)
def test_warnings_end_after_their_maximum(options, expected):
    @deprecated(reason="use twice", **options)
    def double(x):
        return 2 * x

    assert len(caught_messages(double, 15)) == expected


def test_warning_points_at_the_caller():
    @deprecated(reason="use twice")
    def double(x):
        return 2 * x

    with pytest.warns(DeprecationWarning, match="use twice") as caught:
        double(1)
    assert caught[0].filename == __file__
