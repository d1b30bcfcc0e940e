"""Stacked learners against autograd, against `PPOLearner`, and against other groupings."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cadenza.core.device import single_torch_thread
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.agents.on_policy import RolloutBatch, policy_terms, total_loss
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import MAPPOConfig, PPOLearner
from cadenza.learn.nn.policy_networks import FactoredHead, Policy
from cadenza.learn.stacked.networks import StackedPolicies
from cadenza.learn.stacked.ppo import StackedPPO, surrogate_terms, value_terms
from cadenza.learn.stacked.rollout import Cut

#: Actor's and critic's rows, and outputs.
D, S = 9, 15
SETTINGS = {
    "choice": {"choices": 5},
    "normal": {"action_dim": 2},
}


@pytest.fixture(autouse=True)
def _one_thread():
    with single_torch_thread():
        yield


def config(**changes):
    shape = {"rollout_length": 12, "batch_size": 30, "epochs": 3, "hidden_sizes": (16, 16)}
    return MAPPOConfig(**{**shape, **changes})


def drawn_policies(settings, kind, members):
    """Policies whose decisions differ clearly, and log-deviations that do."""
    learners = [
        PPOLearner(settings, observation_dim=D, critic_dim=S, seed=seed, **SETTINGS[kind])
        for seed in range(members)
    ]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for learner in learners:
            learner.network.actor.layers[-1].weight *= 60.0
            for spread in learner.network.head.parameters():
                spread += torch.rand(spread.shape, generator=generator) - 0.5
    return [learner.network for learner in learners]


def minibatch(policies, rows, seed=0):
    """Rows, decisions near the policies', and what learning needs of them, (K, B, ...)."""
    rng = torch.Generator().manual_seed(seed)
    members = len(policies)
    seen = torch.randn(members, rows, D, generator=rng)
    judged = torch.randn(members, rows, S, generator=rng)
    with torch.no_grad():
        outputs = [p.actor(x) for p, x in zip(policies, seen, strict=True)]
        acted = [p.head.sample(out, rng) for p, out in zip(policies, outputs, strict=True)]
        old = [
            p.head.log_prob(out, a) + 0.3 * torch.randn(rows, generator=rng)
            for p, out, a in zip(policies, outputs, acted, strict=True)
        ]
    scalars = torch.randn(2, members, rows, generator=rng) * torch.tensor([1.0, 8.0])[:, None, None]
    return seen, judged, torch.stack(acted), torch.stack(old), *scalars


def plain_gradients(policy, settings, parts, bonus):
    """Autograd's, of `policy_terms` and `value_error`, by layer as the stack lays them out."""
    seen, judged, acted, old, advantages, returns = parts
    batch = RolloutBatch(observations=seen, actions=acted, old_log_probs=old, advantages=advantages)
    terms = policy_terms(policy, batch, advantages, settings.clip_epsilon)
    error = (policy.value(judged) - returns).square().mean()
    loss = total_loss(terms, error, settings.value_coefficient, bonus)
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return {name: g for (name, _), g in zip(policy.named_parameters(), gradients, strict=True)}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("choice", {}), ("normal", {"activation": "relu"}), ("normal", {"hidden_sizes": (16,)})],
)
@pytest.mark.parametrize(("members", "rows"), [(1, 512), (4, 512), (20, 1074)])
def test_written_gradients_are_those_of_autograd(kind, changes, members, rows):
    bonus = 0.05 if members < 20 else 0.0
    chosen = config(**changes)
    policies = drawn_policies(chosen, kind, members)
    parts = minibatch(policies, rows)
    stack = StackedPolicies(policies, activation=chosen.activation)
    seen, judged, acted, old, advantages, returns = parts
    terms = stack.head.terms(stack.act(seen), acted)
    surrogate = surrogate_terms(terms.log_probs, old, advantages, chosen.clip_epsilon)
    _, slope = value_terms(stack.judge(judged), returns)
    stack.differentiate(
        seen,
        judged,
        terms,
        surrogate.slope,
        chosen.value_coefficient * slope,
        bonus=torch.full((members, 1, 1), bonus / rows),
    )
    norms = stack.norms()
    stack.flat.copy_(stack.gradient)  # a policy of gradients: `policy` undoes the layout
    for member, policy in enumerate(policies):
        expected = plain_gradients(policy, chosen, [part[member] for part in parts], bonus)
        found = dict(stack.policy(member).named_parameters())
        assert found.keys() == expected.keys()
        whole = float(torch.cat([g.flatten() for g in expected.values()]).norm())
        assert float(norms[member]) == pytest.approx(whole, rel=1e-6)
        for name, gradient in expected.items():
            apart = float((found[name].detach() - gradient).norm())
            assert apart <= 1e-6 * max(float(gradient.norm()), whole), name


#: Steps and rows of a rollout.
T, R = 12, 5


def played(learner, seed, *, members=None):
    """Fill a rollout with what each member's own generator draws; return it and each step's rows.

    Member k's part depends on ``seed`` + k alone.
    """
    count = learner.members
    rngs = [np.random.default_rng(seed + k) for k in (members or range(count))]
    rollout = learner.new_rollout(steps=T, rows=R)

    def draw(shape):
        return np.stack([rng.normal(2.0, 3.0, shape) for rng in rngs]).astype(np.float32)

    for t in range(T):
        rollout.observations[:, t] = learner.scale(draw((R, D)), learn=True)
        rollout.decisions[:, t] = learner.act(rollout.observations[:, t])
        rollout.rewards[:, t] = draw(R)
        ends = np.stack([rng.random((2, R)) < 0.15 for rng in rngs])
        rollout.boundaries[:, t] = ends.any(axis=1)
        for k in range(count):
            rows = np.flatnonzero(ends[k, 1] & ~ends[k, 0])
            final = rngs[k].normal(2.0, 3.0, (len(rows), S)).astype(np.float32)
            if len(rows):
                rollout.cuts.append(Cut(k, t, rows, final))
    rollout.critic_observations[...] = draw((T + 1, R, S))
    return rollout


def stacked(chosen, kind, seeds):
    return StackedPPO(chosen, observation_dim=D, critic_dim=S, seeds=seeds, **SETTINGS[kind])


def learned_alone(learner, rollout, member):
    """Let a `PPOLearner` learn from one member's part of a rollout, scaled by itself."""
    width = None if rollout.decisions.ndim == 3 else rollout.decisions.shape[-1]
    buffer = OnPolicyBuffer(
        BufferShape(capacity=T, rows=R, observation_dim=D, critic_dim=S, action_dim=width)
    )
    cuts = {cut.step: cut for cut in rollout.cuts if cut.member == member}
    for t in range(T):
        judged = learner.scale_critic(rollout.critic_observations[member, t], learn=True)
        buffer.stage(rollout.observations[member, t], rollout.decisions[member, t], judged)
        ends = rollout.boundaries[member, t]
        rewards = learner.normal.rewards.scale(rollout.rewards[member, t], ends | (t == T - 1))
        following = learner.scale_critic(rollout.critic_observations[member, t + 1], learn=False)
        cut = cuts.get(t)
        final = (
            (cut.rows, learner.scale_critic(cut.critic_observations, learn=False)) if cut else ()
        )
        terminated = ends.copy()
        if cut:
            terminated[cut.rows] = False
        buffer.commit(Outcome(rewards, terminated, ends), following, *final)
    return learner.update(buffer)


@pytest.mark.parametrize("kind", SETTINGS)
def test_two_updates_are_those_of_the_plain_learner(kind):
    chosen = config(
        normalize_rewards=True,
        normalize_observations=True,
        entropy_coefficient=0.01,
        learning_rate=1e-3,
    )
    seeds = [3, 8]
    stack = stacked(chosen, kind, seeds)
    alone = [
        PPOLearner(chosen, observation_dim=D, critic_dim=S, seed=s, **SETTINGS[kind]) for s in seeds
    ]
    for iteration in range(2):
        rollout = played(stack, 10 * iteration)
        expected = [learned_alone(learner, rollout, k) for k, learner in enumerate(alone)]
        figures = stack.update(rollout)
        for k, learner in enumerate(alone):
            ours, theirs = stack.policy(k).state_dict(), learner.network.state_dict()
            for name, weights in theirs.items():
                assert torch.allclose(ours[name], weights, rtol=0.0, atol=1e-6), (kind, name)
            for name, figure in figures[k].items():
                assert figure == pytest.approx(expected[k][name], rel=1e-4, abs=1e-6), name


@given(data=st.data(), kind=st.sampled_from(sorted(SETTINGS)), scaled=st.booleans())
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_bytes_of_a_member_do_not_depend_on_its_group(data, kind, scaled):
    members = 5
    order = data.draw(st.permutations(range(members)))
    marks = sorted(data.draw(st.sets(st.integers(1, members - 1))))
    groups = [order[a:b] for a, b in zip([0, *marks], [*marks, members], strict=True)]
    chosen = config(
        hidden_sizes=(18, 64),
        normalize_rewards=scaled,
        normalize_observations=scaled,
        entropy_coefficient=0.01,
    )

    def trained(group):
        stack = stacked(chosen, kind, [100 + k for k in group])
        for iteration in range(2):
            stack.update(played(stack, 50 * iteration, members=group))
        return {k: stack.member_state(i)["parameters"] for i, k in enumerate(group)}

    together, parts = trained(list(range(members))), [trained(group) for group in groups]
    for part in parts:
        for k, parameters in part.items():
            assert torch.equal(parameters, together[k])


def test_members_go_on_in_another_stack_as_in_their_own():
    chosen = config(normalize_rewards=True, normalize_observations=True)
    whole = stacked(chosen, "choice", [1, 2, 3])
    whole.update(played(whole, 0))
    other = stacked(chosen, "choice", [7, 8])  # seeds of others: everything is in the state
    for place, k in enumerate((2, 0)):
        other.load_member_state(place, whole.member_state(k))
    whole.update(played(whole, 70))
    other.update(played(other, 70, members=[2, 0]))
    for place, k in enumerate((2, 0)):
        assert torch.equal(
            other.member_state(place)["parameters"], whole.member_state(k)["parameters"]
        )


def test_members_that_stop_early_stay_where_they_stopped():
    # With a bound that every pass exceeds, an update is one pass; without one, three.
    rollouts = [played(stacked(config(), "choice", [1, 2]), 0) for _ in range(2)]
    stops = stacked(config(target_kl=1e-12, learning_rate=1e-2), "choice", [1, 2])
    once = stacked(config(epochs=1, learning_rate=1e-2), "choice", [1, 2])
    stops.update(rollouts[0])
    once.update(rollouts[1])
    for k in range(2):
        state, expected = stops.member_state(k), once.member_state(k)
        assert state["steps"] == expected["steps"] == T * R // 30
        assert torch.equal(state["parameters"], expected["parameters"])


def test_what_is_not_finite_names_the_member_and_changes_nothing():
    stack = StackedPPO(config(), observation_dim=D, seeds=[1, 2], choices=5, names=["a", "b"])
    before = stack.policies.flat.clone()
    rollout = stack.new_rollout(steps=T, rows=R)
    rollout.rewards[:, ::2] = 1.0
    estimate = stack.estimate(rollout)
    advantages = estimate.advantages
    advantages[1] = np.inf  # only the gradient is not finite
    with pytest.raises(InputError, match="b: expected finite numbers"):
        stack.update(estimate.with_advantages(advantages))
    assert torch.equal(stack.policies.flat, before)
    rollout.rewards[0, 0, 0] = np.nan
    with pytest.raises(InputError, match="a: expected finite numbers"):
        stack.update(rollout)


def test_rollouts_of_one_update_are_learned_from_as_one():
    both, one = (stacked(config(epochs=1), "choice", [4]) for _ in range(2))
    both.update(played(both, 0), played(both, 30))
    one.update(played(one, 0))
    assert both.member_state(0)["steps"] == 2 * one.member_state(0)["steps"] == 4


def test_densities_are_those_of_each_policy():
    stack = stacked(config(), "normal", [1, 2, 3])
    rows = np.random.default_rng(0).normal(size=(7, D)).astype(np.float32)
    acted = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    densities = stack.log_density(rows, acted)
    for k in range(3):
        expected = stack.policy(k).log_prob(torch.tensor(rows), torch.tensor(acted))
        assert densities[k] == pytest.approx(expected.detach().numpy(), abs=1e-5)


def test_policies_of_several_choices_are_refused():
    policy = Policy(
        D,
        FactoredHead([2, 3]),
        hidden_sizes=(8,),
        generator=torch.Generator(),
        critic_dim=S,
    )
    with pytest.raises(ConfigurationError, match=r"got FactoredHead; train .* one by one"):
        StackedPolicies([policy])


def test_advantages_put_in_place_of_others_are_learned_from():
    stack = stacked(config(normalize_advantages=False), "choice", [4, 5])
    before = [stack.policy(k).actor.state_dict() for k in range(2)]
    estimate = stack.estimate(played(stack, 0))
    stack.update(
        estimate.with_advantages(estimate.advantages * np.array([0.0, 1.0])[:, None, None])
    )
    moved = [
        any(not torch.equal(stack.policy(k).actor.state_dict()[n], w) for n, w in before[k].items())
        for k in range(2)
    ]
    assert moved == [False, True]


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_bonuses_multiply_the_entropy_coefficient_of_each_member(kind):
    both = stacked(config(entropy_coefficient=0.1), kind, [4, 5])
    both.update(played(both, 0), bonuses=np.array([1.0, 3.0]))
    more = stacked(config(entropy_coefficient=0.1 * 3.0), kind, [4, 5])
    more.update(played(more, 0))
    for name, value in both.member_state(1).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, more.member_state(1)[name])
    assert not torch.equal(both.member_state(0)["parameters"], more.member_state(0)["parameters"])


def test_member_begun_anew_learns_beside_the_others_as_on_its_own():
    both, anew = (stacked(config(), "choice", seeds) for seeds in ([4, 5], [6]))
    own = stacked(config(), "choice", [4])
    for rollout in (0, 1):
        if rollout:
            both.load_member_state(1, anew.member_state(0))
        played_both = played(both, rollout)
        for stack, member in ((own, 0), (anew, 1)):
            if member == 0 or rollout:
                alone = stack.new_rollout(steps=T, rows=R)
                for name in (
                    "observations",
                    "critic_observations",
                    "decisions",
                    "rewards",
                    "boundaries",
                ):
                    getattr(alone, name)[0] = getattr(played_both, name)[member]
                alone.cuts = [c._replace(member=0) for c in played_both.cuts if c.member == member]
                stack.update(alone)
        both.update(played_both)
    for member, stack in enumerate((own, anew)):
        state, expected = both.member_state(member), stack.member_state(0)
        assert state["steps"] == expected["steps"]
        assert torch.equal(state["parameters"], expected["parameters"])


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("normalize_values", True, "False"),
        ("squash_actions", True, "False"),
        ("value_loss", "huber", "mse"),
        ("clip_value", 0.2, "None"),
        ("activation", "elu", "tanh or relu"),
    ],
)
def test_settings_that_a_stack_cannot_have_are_refused(setting, value, expected):
    with pytest.raises(ConfigurationError, match=f"ppo.{setting}: expected {expected}, got"):
        stacked(config(**{setting: value}), "choice", [1])
