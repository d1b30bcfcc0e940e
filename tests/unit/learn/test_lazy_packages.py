"""Short names of packages are imported at first use, and unknown ones are refused."""

import importlib

import pytest


@pytest.mark.parametrize("package", ["env", "collectors"])
def test_every_short_name_leads_to_its_object(package):
    module = importlib.import_module(f"cadenza.learn.{package}")
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing
