"""Language models: they propose and write lessons; nothing the loop decides depends on them.

Start at:    `make_llm` (``"provider:model"`` to a client), `GuardedLLM`, `RecordedLLM`.
Promise:     to the loop every failure is the empty text; a repeated step gets the reply it got
             before; no key stands in a log, an error or a recorded reply.
May import:  `core`, `loop.errors`, `loop.store.rows`.  Must not import: agents, orchestrator.
Adding one:  an `Asker` in a file of its own, and a line in `adapter`.
Import time: the services' packages are imported when a client of theirs is made.
"""

from cadenza.loop.llm.adapter import AnthropicLLM, OpenAICompatibleLLM, make_llm
from cadenza.loop.llm.guard import GuardedLLM, RecordedLLM
from cadenza.loop.llm.protocol import LLMClient, NullLLM, asking

__all__ = [
    "AnthropicLLM",
    "GuardedLLM",
    "LLMClient",
    "NullLLM",
    "OpenAICompatibleLLM",
    "RecordedLLM",
    "asking",
    "make_llm",
]
