from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.evaluation.results import BundleSummary, EpisodeResult, episode_line
from cadenza.evaluation.summary import SummarySettings, compute_summary, recompute_summary
from tests.campaigns import size

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
reserved = {"condition", "partner", "member", "n_steps"}
metadata = st.dictionaries(st.text().filter(lambda k: k not in reserved), json_values, max_size=3)


@st.composite
def episode_sets(draw) -> list[EpisodeResult]:
    """Draw up to thirty episodes with different keys, under two conditions."""
    keys = draw(
        st.sets(
            st.tuples(
                st.sampled_from(["on", "off"]),
                st.sampled_from(["p", "q"]),
                st.integers(0, 3),
                st.integers(0, 4),
            ),
            max_size=30,
        )
    )
    return [
        EpisodeResult(
            seed=seed,
            episode_idx=index,
            initial_state_seed=index,
            condition=condition,
            partner=partner,
            success=draw(st.booleans()),
            contact=draw(st.booleans()),
            metadata=draw(metadata),
        )
        for condition, partner, seed, index in sorted(keys)
    ]


@settings(max_examples=size(30, 100))
@given(episodes=episode_sets())
def test_episodes_survive_their_file_format(episodes):
    for episode in episodes:
        line = episode_line(episode)
        read = EpisodeResult.model_validate_json(line)
        assert read == episode
        assert episode_line(read) == line


@settings(max_examples=size(30, 100))
@given(episodes=episode_sets(), data=st.data())
def test_summary_is_the_same_in_any_order_and_after_a_round_trip(episodes, data):
    settings_ = SummarySettings(headline_condition="on", comparison=("on", "off"))
    summary = compute_summary(episodes, settings_)
    shuffled = data.draw(st.permutations(episodes))
    assert compute_summary(shuffled, settings_) == summary
    reread = BundleSummary.model_validate_json(summary.model_dump_json())
    if reread.comparisons:
        assert recompute_summary(reread, episodes) == summary
