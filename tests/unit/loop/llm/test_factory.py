import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.errors import LLMPackageMissingError
from cadenza.loop.llm import AnthropicLLM, NullLLM, OpenAICompatibleLLM, make_llm, service
from cadenza.loop.llm.factory import GEMINI_BASE_URL
from cadenza.loop.llm.redaction import secrets_of
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
    llm = make_llm("openai:org/model:8b@http://127.0.0.1:8000/v1")
    assert isinstance(llm, OpenAICompatibleLLM)
    assert (llm.provider, llm.model) == ("openai", "org/model:8b")
    assert llm._base_url == "http://127.0.0.1:8000/v1"
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

    monkeypatch.setattr(service.importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"install it with `pip install 'cadenza\[llm\]'`"):
        make_llm(spec)
    with pytest.raises(LLMPackageMissingError, match="expected the package"):
        make_llm(spec)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("anthropic:claude@1", "anthropic:claude@1"),
        ("openai:m", "openai:m"),
        ("openai:org/m:8b@http://host:8000/v1", "openai:org/m:8b@http://host:8000/v1"),
        ("gemini:m@host", "gemini:m@host"),
    ],
)
def test_model_is_shown_by_the_text_that_names_it(text, shown):
    assert parse_spec(text).shown == shown


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


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        ("https://ada:a%40b@host/v1", {"ada:a%40b", "a%40b", "a@b"}),
        ("https://token@host:8000", {"token"}),
        ("https://host/v1/a@b", set()),
        ("https://host", set()),
        (None, set()),
    ],
)
def test_secrets_of_an_address_are_its_password_or_only_name(address, secrets):
    assert set(secrets_of(address)) == secrets


def test_address_of_the_environment_keeps_its_password_out_of_replies(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://ada:hunter2@host/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://ada:hunter2@host")
    for spec in ("openai:m", "anthropic:m"):
        llm = make_llm(spec)
        assert not isinstance(llm, NullLLM)
        assert "hunter2" in llm._secrets()
