"""Observations of many agents become one network call and one response each."""

import numpy as np
import pytest
import torch
from torch import nn

from cadenza.core.errors import ConfigurationError, InputError, PreconditionError, UnknownNameError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import DictObservation, EpisodeState
from cadenza.learn.proxies import GenericAgentProxy, active_agents


class Recorder(nn.Module):
    """Remembers how it was called and returns what ``answer`` makes of the inputs."""

    def __init__(self, answer=lambda *inputs: inputs[0]):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.answer = answer
        self.calls = []
        self.modes = []
        self.dropout = nn.Dropout()

    def forward(self, *inputs):
        self.calls.append(inputs)
        self.modes.append((self.training, self.dropout.training, torch.is_grad_enabled()))
        return self.answer(*inputs)


def seen(value, state=EpisodeState.RUNNING, **more):
    return DictObservation({"reward": 0.0}, state, {"obs": np.asarray(value), **more})


def rows(responses, key="actions"):
    return {agent: np.asarray(r.list_data[key]).tolist() for agent, r in responses.items()}


def spaces(**state):
    return MDPSpace(
        None, BoxSpace(np.float32, (1,)), DictSpace({k: BoxSpace(*v) for k, v in state.items()})
    )


def with_logprob(x):
    return x, torch.full((len(x), 1), 99.0)


def test_every_active_agent_gets_its_row_and_no_log_probability():
    policy = Recorder(with_logprob)
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",))
    observations = {
        7: seen([1.0, 2.0], EpisodeState.INITIAL),
        3: seen([0.0, 0.0], EpisodeState.TERMINAL),
        5: seen([3.0, 4.0]),
        9: seen([0.0, 0.0], EpisodeState.INTERRUPTED),
    }
    responses = agent(observations)
    assert list(responses) == [7, 5]
    assert rows(responses) == {7: [1.0, 2.0], 5: [3.0, 4.0]}
    assert all(response.scalar_data == {} for response in responses.values())
    assert policy.calls[0][0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert active_agents(observations) == [7, 5]


def test_inputs_come_in_the_order_of_the_keys():
    policy = Recorder(lambda goal, obs: (goal, obs.sum(1, keepdim=True)))
    agent = GenericAgentProxy(policy, "cpu", ("goal", "obs"), ("actions",))
    responses = agent({0: seen([1.0, 2.0], goal=np.array([5.0]))})
    assert rows(responses) == {0: [5.0]}
    assert [tuple(x.shape) for x in policy.calls[0]] == [(1, 1), (1, 2)]


def test_outputs_go_to_their_keys_by_position_with_and_without_log_probability():
    three = Recorder(lambda x: (x + 1, torch.full((len(x), 1), 99.0), x + 2))
    agent = GenericAgentProxy(three, "cpu", ("obs",), ("actions", "latents"))
    responses = agent({0: seen([1.0])})
    assert (rows(responses), rows(responses, "latents")) == ({0: [2.0]}, {0: [3.0]})
    two = Recorder(lambda x: (x + 1, x + 2))
    plain = GenericAgentProxy(two, "cpu", ("obs",), ("actions", "latents"), uses_logprobs=False)
    responses = plain({0: seen([1.0])})
    assert (rows(responses), rows(responses, "latents")) == ({0: [2.0]}, {0: [3.0]})


def test_mapping_outputs_are_found_by_key():
    policy = Recorder(lambda x: {"other": x, "actions": 2 * x})
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",))
    assert rows(agent({0: seen([4.0])})) == {0: [8.0]}
    unknown = GenericAgentProxy(policy, "cpu", ("obs",), ("actions", "values"))
    with pytest.raises(UnknownNameError, match=r"without \['values'\]; correct output_keys"):
        unknown({0: seen([4.0])})


def test_inputs_are_brought_to_the_declared_type_and_shape():
    policy = Recorder(lambda pixels, kind: pixels.flatten(1).sum(1, keepdim=True))
    declared = spaces(pixels=(np.float32, (2, 2)), kind=(torch.int64, ()))
    agent = GenericAgentProxy(
        policy, "cpu", ("pixels", "kind"), ("actions",), uses_logprobs=False, spaces=declared
    )
    agent({0: seen([0.0], pixels=np.arange(4, dtype=np.uint8), kind=np.float64(3.0))})
    pixels, kind = policy.calls[0]
    assert (pixels.dtype, tuple(pixels.shape)) == (torch.float32, (1, 2, 2))
    assert (kind.dtype, tuple(kind.shape)) == (torch.int64, (1,))


def test_without_spaces_floats_get_the_type_of_the_parameters_and_integers_stay():
    policy = Recorder(lambda x, k: x)
    agent = GenericAgentProxy(policy, "cpu", ("obs", "k"), ("actions",))
    agent({0: seen(np.zeros(2), k=np.int64(1))})
    assert [x.dtype for x in policy.calls[0]] == [torch.float32, torch.int64]
    agent.with_policy(policy.double())({0: seen(np.zeros(2, np.float32), k=np.int64(1))})
    assert policy.calls[1][0].dtype == torch.float64
    without = nn.Identity()
    answer = GenericAgentProxy(without, "cpu", ("obs",), ("actions",))({0: seen(np.zeros(2))})
    assert answer[0].list_data["actions"].dtype == np.float32


@pytest.mark.parametrize(("mode", "training"), [("sample", True), ("greedy", False)])
@pytest.mark.parametrize("before", [True, False])
def test_mode_holds_during_the_call_only(mode, training, before):
    policy = Recorder().train(before)
    policy.dropout.train(not before)
    agent = GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), mode=mode)
    agent({0: seen([1.0])})
    assert policy.modes == [(training, training, False)]
    assert (policy.training, policy.dropout.training) == (before, not before)


def test_mode_comes_back_after_an_error():
    def fail(_):
        raise ZeroDivisionError

    policy = Recorder(fail)
    with pytest.raises(ZeroDivisionError):
        GenericAgentProxy(policy, "cpu", ("obs",), ("actions",), mode="greedy")({0: seen([1.0])})
    assert policy.training


def test_copies_act_with_another_policy_or_mode():
    first, second = Recorder(), Recorder(lambda x: 10 * x)
    agent = GenericAgentProxy(first, "cpu", ("obs",), ("actions",))
    other = agent.with_policy(second).with_mode("greedy")
    assert rows(other({0: seen([1.0])})) == {0: [10.0]}
    assert (second.modes[0][0], agent.mode, agent.policy) == (False, "keep", first)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"input_keys": ()}, ConfigurationError, r"input_keys .* distinct names, got \(\)"),
        ({"input_keys": "obs"}, ConfigurationError, "write a tuple"),
        ({"output_keys": ("a", "a")}, ConfigurationError, "output_keys"),
        ({"mode": "random"}, ConfigurationError, "'keep', 'sample' or 'greedy', got 'random'"),
        ({"spaces": spaces(goal=(np.float32, ()))}, UnknownNameError, r"among \['goal'\]"),
    ],
)
def test_malformed_proxies_are_refused(change, error, match):
    arguments = {"input_keys": ("obs",), "output_keys": ("actions",)} | change
    with pytest.raises(error, match=match):
        GenericAgentProxy(Recorder(), "cpu", **arguments)


@pytest.mark.parametrize(
    ("answer", "observations", "error", "match"),
    [
        (with_logprob, {}, PreconditionError, "expected at least one observation"),
        (with_logprob, {0: seen([1.0]), 1: seen([1.0, 2.0])}, InputError, "one shape for all"),
        (lambda x: (x, x, x), {0: seen([1.0])}, InputError, "and a log-probability, got 3"),
        (lambda x: x.sum(), {0: seen([1.0])}, InputError, r"with 1 rows.*got shape \(\)"),
        (lambda x: x[:1], {0: seen([1.0]), 1: seen([1.0])}, InputError, r"with 2 rows"),
    ],
)
def test_calls_that_do_not_fit_are_refused(answer, observations, error, match):
    agent = GenericAgentProxy(Recorder(answer), "cpu", ("obs",), ("actions",))
    with pytest.raises(error, match=match):
        agent(observations)
