"""The learner written once more from its equations, with plain torch layers and distributions.

Step by step where ours is batched, on torch's global generator where ours owns one; only the value
network sees the whole rollout at once, as in ours. Every number has to agree bit for bit.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class ReferenceLearner:
    """Scalar or batched PPO with HARL's actor; call inside `torch.random.fork_rng`."""

    def __init__(self, *, observation_dim, action_dim, settings, torch_seed, minibatch_rng):
        torch.manual_seed(torch_seed)
        width = settings["hidden_dim"]
        self.body = nn.Sequential(
            nn.LayerNorm(observation_dim),
            orthogonal(nn.Linear(observation_dim, width), math.sqrt(2)), nn.ReLU(),
            nn.LayerNorm(width),
            orthogonal(nn.Linear(width, width), math.sqrt(2)), nn.ReLU(),
            nn.LayerNorm(width),
        )  # fmt: skip
        self.head = orthogonal(nn.Linear(width, action_dim), 0.01)
        self.log_std = nn.Parameter(torch.ones(action_dim))
        self.critic = nn.Sequential(
            nn.Linear(observation_dim, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )  # fmt: skip
        self.settings = settings
        self.rng = minibatch_rng
        self.actor_parameters = [*self.body.parameters(), self.log_std, *self.head.parameters()]
        self.actor_optimizer = torch.optim.Adam(self.actor_parameters, lr=settings["lr"], eps=1e-5)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=settings["lr"])
        self.rows = []

    def policy(self, x):
        return Normal(self.head(self.body(x)), torch.sigmoid(self.log_std) * 0.5)

    def act(self, state):
        """Draw actions (N, A) for a state (N, O)."""
        x = torch.tensor(state)
        with torch.no_grad():
            policy = self.policy(x)
            action = policy.sample()
            log_prob = policy.log_prob(action)
        self.rows.append({"state": x, "action": action, "log_prob": log_prob})
        return action.numpy()

    def observe(self, next_state, reward, terminated, truncated, final_state):
        """Complete the last row; every argument has leading axis N."""
        self.rows[-1] |= {
            "reward": np.asarray(reward, dtype=np.float32),
            "terminated": np.asarray(terminated),
            "truncated": np.asarray(truncated) & ~np.asarray(terminated),
            "final": torch.tensor(final_state),
        }
        self.last_state = torch.tensor(next_state)

    def update(self):
        rows, n_envs = self.rows, len(self.last_state)
        finals = [(t, i) for t, row in enumerate(rows) for i in np.flatnonzero(row["truncated"])]
        inputs = [row["state"] for row in rows] + [self.last_state]
        inputs += [rows[t]["final"][i : i + 1] for t, i in finals]
        with torch.no_grad():
            values = self.critic(torch.cat(inputs)).flatten().numpy()
        count = len(rows) * n_envs
        table = values[: count + n_envs].reshape(-1, n_envs)
        at_limit = dict(zip(finals, values[count + n_envs :], strict=True))
        advantages = np.stack(
            [self.column_advantages(table, at_limit, i) for i in range(n_envs)], axis=1
        )
        returns = (advantages + table[:-1]).reshape(-1, 1)
        exact = advantages.astype(np.float64)
        normalised = ((exact - exact.mean()) / (exact.std() + 1e-5)).astype(np.float32)
        self.epochs(
            torch.cat([row["state"] for row in rows]),
            torch.cat([row["action"] for row in rows]),
            torch.cat([row["log_prob"] for row in rows]),
            torch.tensor(normalised.reshape(-1, 1)),
            torch.tensor(returns),
        )
        self.rows = []

    def column_advantages(self, table, at_limit, i):
        gamma, decay = self.settings["gamma"], self.settings["gae_lambda"]
        running, result = 0.0, []
        for t in reversed(range(len(self.rows))):
            row = self.rows[t]
            ended = bool(row["terminated"][i])
            cut = bool(row["truncated"][i])
            following = 0.0 if ended else float(at_limit[t, i] if cut else table[t + 1, i])
            delta = float(row["reward"][i]) + gamma * following - float(table[t, i])
            running = delta + gamma * decay * (0.0 if ended or cut else 1.0) * running
            result.append(np.float32(running))
        return np.array(result[::-1], dtype=np.float32)

    def epochs(self, states, actions, old_log_probs, advantages, returns):
        n, size = len(states), self.settings["batch_size"]
        count = max(1, n // size)
        per_batch = max(1, n // count)
        for _ in range(self.settings["n_epochs"]):
            order = self.rng.permutation(n)
            for j in range(count):
                stop = n if j == count - 1 else (j + 1) * per_batch
                indices = torch.tensor(order[j * per_batch : stop])
                self.actor_step(
                    states[indices], actions[indices], old_log_probs[indices], advantages[indices]
                )
                loss = nn.functional.mse_loss(self.critic(states[indices]), returns[indices])
                self.critic_optimizer.zero_grad()
                loss.backward()
                self.critic_optimizer.step()

    def actor_step(self, states, actions, old_log_probs, advantages):
        policy = self.policy(states)
        clip = self.settings["clip_eps"]
        log_probs = policy.log_prob(actions)
        entropy = policy.entropy().sum(-1).mean()
        ratio = torch.prod(torch.exp(log_probs - old_log_probs), dim=-1, keepdim=True)
        clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
        gain = torch.min(ratio * advantages, clipped * advantages)
        loss = -torch.sum(gain, dim=-1, keepdim=True).mean()
        self.actor_optimizer.zero_grad()
        (loss - entropy * 0.01).backward()
        nn.utils.clip_grad_norm_(self.actor_parameters, 10.0)
        self.actor_optimizer.step()


def orthogonal(layer, gain):
    nn.init.orthogonal_(layer.weight.data, gain=gain)
    nn.init.constant_(layer.bias.data, 0)
    return layer
