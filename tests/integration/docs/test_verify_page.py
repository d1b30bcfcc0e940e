"""The code of the page on verification runs as it stands there, and does what the text says."""

import re
from pathlib import Path

import yaml

from cadenza.safety.verifier.config import VerifierConfig

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "verify-a-filter.md").read_text(
    encoding="utf-8"
)


def test_example_passes_the_filter_and_catches_the_careless_one(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(program, "docs/how-to/verify-a-filter.md", "exec"), {})  # noqa: S102 - our own page
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True"
    assert "episodes with one partner had an overlap" in second


def test_every_key_the_page_mentions_is_one_of_the_configuration():
    words = re.findall(
        r" ([a-z_]+)=(\S+)", "".join(re.findall(r"```console\n(.*?)```", PAGE, re.S))
    )
    assert len(words) > 5
    VerifierConfig.from_mapping({key: yaml.safe_load(value) for key, value in words})
