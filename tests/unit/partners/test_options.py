"""Reading numeric options of partners."""

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.partners.options import NumberOption, refuse_unknown_options

OPEN = NumberOption(key="gain", default=2.0, low=0.0, high=4.0, summary="pull, 1/s")
CLOSED = NumberOption(
    key="gain", default=2.0, low=0.0, high=4.0, summary="pull, 1/s", low_excluded=False
)


def test_absent_option_has_its_default():
    assert OPEN.read("Partner", {"other": "1"}) == 2.0


@pytest.mark.parametrize(("text", "value"), [("4", 4.0), (" 0.5 ", 0.5), ("1e-3", 0.001)])
def test_option_text_is_read_as_a_number(text, value):
    assert OPEN.read("Partner", {"gain": text}) == value


@pytest.mark.parametrize("text", ["0", "4.1", "nan", "two"])
def test_option_outside_its_range_names_class_key_and_range(text):
    with pytest.raises(
        ConfigurationError, match=r"Partner: option 'gain' \(pull, 1/s\).*\(0, 4\], got"
    ):
        OPEN.read("Partner", {"gain": text})


def test_closed_range_includes_its_low_end():
    assert CLOSED.read("Partner", {"gain": "0"}) == 0.0
    with pytest.raises(ConfigurationError, match=r"\[0, 4\], got '-0.1'"):
        CLOSED.read("Partner", {"gain": "-0.1"})


def test_unknown_option_lists_the_known_ones():
    with pytest.raises(
        ConfigurationError,
        match=r"Partner: unknown option 'gian' \(did you mean 'gain'\?\); known options: "
        r"checkpoint_tier, gain, note, role, task, uid\. "
        r"Remove it; on a command line: '~partner\.extra\.gian'",
    ):
        refuse_unknown_options("Partner", {"gian": "1", "uid": "x"}, ["gain"])


def test_metadata_keys_are_always_accepted():
    keys = {"uid": "x", "task": "t", "role": "r", "note": "n"}
    refuse_unknown_options("Partner", {**keys, "gain": "1"}, ["gain"])
    with pytest.raises(ConfigurationError, match="'gain'"):
        refuse_unknown_options("Partner", {**keys, "gain": "1"}, [])
