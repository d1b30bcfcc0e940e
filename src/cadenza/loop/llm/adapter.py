"""Adapters to language models, where LeAgents has them; see `cadenza.loop.llm`."""

from cadenza.loop.llm.anthropic_client import AnthropicLLM
from cadenza.loop.llm.factory import make_llm
from cadenza.loop.llm.openai_client import OpenAICompatibleLLM
from cadenza.loop.llm.protocol import LLMClient, NullLLM

__all__ = ["AnthropicLLM", "LLMClient", "NullLLM", "OpenAICompatibleLLM", "make_llm"]
