import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig, parse_spec
from cadenza.loop.errors import LLMPackageMissingError
from cadenza.loop.llm import AnthropicLLM, OpenAICompatibleLLM, make_llm
from cadenza.loop.llm import adapter as service


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_spec_is_split_at_the_first_colon_and_the_first_at_sign(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "google")
    for spec, kind, model in (
        ("openai:org/model:8b@http://127.0.0.1:8000/v1", OpenAICompatibleLLM, "org/model:8b"),
        ("gemini:flash", OpenAICompatibleLLM, "flash"),
        ("anthropic:claude@20250514", AnthropicLLM, "claude@20250514"),
    ):
        llm = make_llm(spec)
        assert isinstance(llm, kind)
        assert (llm.provider, llm.model) == (spec.partition(":")[0], model)


@pytest.mark.parametrize("spec", ["anthropic", "openai:", "gemini:", "openai:@http://x", "gemini"])
def test_spec_without_a_model_is_refused(spec):
    with pytest.raises(ValueError, match="expected provider:model, got no model after"):
        make_llm(spec)


@pytest.mark.parametrize("spec", ["mistral:large", "OpenAI:m", " openai:m", "gpt-5", ":m"])
def test_unknown_provider_is_refused(spec):
    with pytest.raises(ValueError, match="a provider of anthropic, gemini, openai, got provider"):
        make_llm(spec)


@pytest.mark.parametrize("spec", ["anthropic:m", "openai:m"])
def test_missing_package_names_the_extra(spec, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(service.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"install it with `pip install 'cadenza\[llm\]'`"):
        make_llm(spec)
    with pytest.raises(LLMPackageMissingError, match="expected the package"):
        make_llm(spec)


@pytest.mark.parametrize(
    ("spec", "instead"),
    [
        ("openai:m@https://ada:hunter2@host/v1", "OPENAI_API_KEY, or the .* in OPENAI_BASE_URL"),
        ("openai:m@https://hunter2@host/v1", "OPENAI_API_KEY"),
        ("openai:m@https://ada:a/hunter2@host/v1", "OPENAI_API_KEY"),
        ("openai:m@ada:hunter2@host", "OPENAI_API_KEY"),
        ("openai:m@https://host/v1?api-key=hunter2", "OPENAI_API_KEY"),
        ("openai:m@https://host/v1#hunter2", "OPENAI_API_KEY"),
        ("openai:https://ada:hunter2@host/v1", "OPENAI_API_KEY"),
        ("gemini:m@https://ada:hunter2@host", "a key in GEMINI_API_KEY, as an environment"),
        ("anthropic:m@https://ada:hunter2@host", "ANTHROPIC_API_KEY"),
    ],
)
def test_address_that_may_hold_a_key_is_refused_and_not_quoted(spec, instead):
    with pytest.raises(ValueError, match=f"stored and shown; give .*{instead}") as caught:
        parse_spec(spec)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="expected an address without user") as caught:
        LoopConfig.from_document({"run_name": "r", "llm": spec, "seed_dataset": "d"}, source="s")
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
