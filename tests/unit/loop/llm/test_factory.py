import pytest

from cadenza.loop.errors import LLMPackageMissingError
from cadenza.loop.llm import AnthropicLLM, NullLLM, OpenAICompatibleLLM, make_llm, wire
from cadenza.loop.llm.factory import GEMINI_BASE_URL
from cadenza.loop.llm.spec import parse_spec


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("spec", [None, ""])
def test_no_spec_is_no_model(spec):
    llm = make_llm(spec)
    assert isinstance(llm, NullLLM)
    assert llm.complete("anything", system="s", max_tokens=1) == ""


def test_spec_is_split_at_the_first_colon_and_the_first_at_sign():
    llm = make_llm("openai:org/model:8b@http://user@127.0.0.1:8000/v1")
    assert isinstance(llm, OpenAICompatibleLLM)
    assert (llm.provider, llm.model) == ("openai", "org/model:8b")
    assert llm._base_url == "http://user@127.0.0.1:8000/v1"
    assert llm._api_key == "not-needed"


def test_anthropic_model_keeps_its_at_sign():
    llm = make_llm("anthropic:claude@20250514")
    assert isinstance(llm, AnthropicLLM)
    assert (llm.provider, llm.model) == ("anthropic", "claude@20250514")


def test_openai_key_explicit_then_environment_then_placeholder(monkeypatch):
    assert OpenAICompatibleLLM("m")._api_key == "not-needed"
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert OpenAICompatibleLLM("m")._api_key == "from-environment"
    assert OpenAICompatibleLLM("m", None, "explicit")._api_key == "explicit"


def test_gemini_takes_its_own_key_then_googles(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "google")
    llm = make_llm("gemini:flash")
    assert isinstance(llm, OpenAICompatibleLLM)
    assert (llm.provider, llm._base_url, llm._api_key) == ("gemini", GEMINI_BASE_URL, "google")
    monkeypatch.setenv("GEMINI_API_KEY", "gemini")
    llm = make_llm("gemini:flash@http://127.0.0.1:9/")
    assert isinstance(llm, OpenAICompatibleLLM)
    assert (llm._base_url, llm._api_key) == ("http://127.0.0.1:9/", "gemini")


def test_gemini_without_a_key_is_refused():
    with pytest.raises(ValueError, match="expected GEMINI_API_KEY or GOOGLE_API_KEY"):
        make_llm("gemini:flash")


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

    monkeypatch.setattr(wire.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"install it with `pip install 'cadenza\[llm\]'`"):
        make_llm(spec)
    with pytest.raises(LLMPackageMissingError, match="expected the package"):
        make_llm(spec)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("anthropic:claude@1", "anthropic:claude@1"),
        ("openai:m", "openai:m"),
        ("openai:m@http://ada:secret@host:8000/v1", "openai:m@http://host:8000/v1"),
        ("gemini:m@host", "gemini:m@host"),
    ],
)
def test_model_is_shown_without_a_password(text, shown):
    assert parse_spec(text).shown == shown
