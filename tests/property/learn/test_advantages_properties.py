import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.learn.advantages import compute_gae, normalize_advantages

numbers = st.floats(-100, 100, width=32)
coefficients = st.floats(0, 1)


@st.composite
def rollouts(draw):
    steps, envs = draw(st.integers(0, 12)), draw(st.integers(1, 4))

    def table(dtype, elements):
        return draw(arrays(dtype, (steps, envs), elements=elements))

    return (
        table(np.float32, numbers),
        table(np.float32, numbers),
        table(np.float32, numbers),
        table(np.bool_, st.booleans()),
    )


def naive_gae(rewards, values, next_values, boundaries, gamma, gae_lambda):
    """Advantage of step t as its defining sum: Σ_k (γλ)^k δ_{t+k} up to the episode's end."""
    deltas = [
        float(r) + gamma * float(n) - float(v)
        for r, v, n in zip(rewards, values, next_values, strict=True)
    ]
    result = []
    for t in range(len(deltas)):
        total, weight = 0.0, 1.0
        for k in range(t, len(deltas)):
            total += weight * deltas[k]
            if boundaries[k]:
                break
            weight *= gamma * gae_lambda
        result.append(total)
    return np.array(result)


@given(rollout=rollouts(), gamma=coefficients, gae_lambda=coefficients)
def test_gae_equals_its_defining_sum_in_every_column(rollout, gamma, gae_lambda):
    batched = compute_gae(*rollout, gamma=gamma, gae_lambda=gae_lambda)
    for column in range(rollout[0].shape[1]):
        one = [array[:, column] for array in rollout]
        expected = naive_gae(*one, gamma, gae_lambda)
        single = compute_gae(*one, gamma=gamma, gae_lambda=gae_lambda)
        assert np.allclose(single, expected, rtol=1e-6, atol=1e-4)  # float32 out, sums up to 4e3
        assert np.array_equal(single, batched[:, column])


@settings(max_examples=50)
@given(advantages=arrays(np.float32, st.integers(2, 50), elements=numbers))
def test_normalised_advantages_have_mean_zero_and_deviation_at_most_one(advantages):
    result = normalize_advantages(advantages).astype(np.float64)
    assert abs(result.mean()) < 1e-6
    assert result.std() <= 1.0 + 1e-6
    if advantages.std() > 1.0:
        assert result.std() > 0.999
    assert (np.diff(result[np.argsort(advantages, kind="stable")]) >= 0.0).all()
