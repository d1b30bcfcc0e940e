import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.config import LoopConfig
from cadenza.loop.errors import LLMPackageMissingError
from cadenza.loop.llm import AnthropicLLM, NullLLM, OpenAICompatibleLLM, make_llm, service
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
