import json

from hypothesis import given
from hypothesis import strategies as st

from cadenza.loop.config import DataConfig
from cadenza.loop.contracts.records import EvalReport, Proposal
from cadenza.loop.llm.protocol import data_mark, fenced
from cadenza.loop.orchestrator.proposer import CuratedProposer, DeterministicProposer, LLMProposer

CAP = 40
REPORT = EvalReport(
    checkpoint="c", env_type="e", task_suite="s", n_episodes=9, success_rate=0.5,
    per_task={"a": 0.1, "b": 0.9},
)  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.sampled_from([10**400, -1, 0, 1e308, "reuse_seed", "recollect_failing", "a"]),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=5,
)  # fmt: skip
plans = st.fixed_dictionaries(
    {"action": st.sampled_from(["reuse_seed", "recollect_failing"]) | values},
    optional=dict.fromkeys(("dataset", "num_episodes", "notes", "focus", "index", "score"), values),
)
replies = st.one_of(
    st.text(),
    plans.map(json.dumps),
    st.lists(plans | values, max_size=4).map(json.dumps),
    st.lists(st.sampled_from('{}[]",:0-9 NaN')).map("".join),
)


class Saying:
    def __init__(self, said):
        self.said = list(said)

    def complete(self, prompt, *, system=None, max_tokens=1024):
        return self.said.pop(0) if self.said else ""


@given(said=st.lists(replies, min_size=1, max_size=4), cycle=st.integers(0, 4095))
def test_no_reply_leaves_the_bounds(tmp_path_factory, said, cycle):
    fallback = DeterministicProposer("seed", 5, 2.0, CAP)
    root = tmp_path_factory.getbasetemp() / "no-pages"
    for proposer in (
        LLMProposer(Saying(said), root, fallback),
        CuratedProposer(Saying(said), root, fallback, DataConfig()),
    ):
        for report in (None, REPORT):
            proposal = proposer.propose(cycle, report)
            assert proposal.dataset == "seed"
            assert proposal.num_episodes is not None
            assert 1 <= proposal.num_episodes <= CAP
            assert set(proposal.focus) <= set(REPORT.per_task)
            assert proposal.notes.isprintable()
            assert Proposal.model_validate_json(proposal.model_dump_json()) == proposal


@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_delimiters_stand_in_no_text(texts):
    mark = data_mark(texts)
    assert all(mark not in text for text in texts)
    prompt = "\n\n".join(fenced("page", str(i), text, mark) for i, text in enumerate(texts))
    assert prompt.count(f"</page {mark}>") == len(texts)
