"""Environments at public doors: what comes in, and what one answers.

Refused is what would fail later in another library, or be taken for something else, as text is for
a number. A Box's bounds are not checked: many tasks leave them by rounding. N = environments.
"""

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from cadenza.core.checks import shown
from cadenza.core.errors import CadenzaError, ConfigurationError, InputError

_ANSWERS: Final = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
#: Keys of what an episode showed and said last, beside the first of the next one.
_FINALS: Final = frozenset(["final_obs", "final_observation", "final_info"])
#: Keys of an info that say whether an episode succeeded, in the order in which they count.
_SUCCESS: Final = ("is_success", "success")
#: Id of the ego's seat of any task, which its keyword ``task`` names; how other ids end.
_EGO_ID: Final = "cadenza/Ego-v1"
_VERSIONED: Final = re.compile(r"-v\d+$")
_REAL: Final = "fiub"  # NumPy's kinds of real numbers and truth values
_NUMBERS: Final = frozenset([float, int, np.float32, np.float64])
_TRUTHS: Final = frozenset([bool, np.bool_])
_OLD_GYM: Final = (
    "or, if it is of the older package gym, install shimmy and pass "
    'gymnasium.make("shimmy:GymV{}Environment-v0", env=...)'
)


class ParallelEnvLike(Protocol):
    """The part of `pettingzoo.ParallelEnv` that tasks and teams need."""

    @property
    def possible_agents(self) -> Sequence[str]:
        """All agents."""
        ...

    @property
    def agents(self) -> Sequence[str]:
        """Those who act next."""
        ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the agent's observation."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the agent's action."""
        ...

    def reset(self, seed: int | None = None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Start an episode; return observation and info by agent."""
        ...

    def step(self, actions: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """Advance one step; return observation, reward, terminated, truncated, info by agent."""
        ...


def known_id(name: str) -> tuple[str, dict[str, Any]]:
    """Return the id of a task's seat, which may be the task's own name, and further keywords."""
    named = {spec.name for spec in gymnasium.registry.values() if spec.namespace is None}
    is_id = "/" in name or name in named or _VERSIONED.search(name) is not None
    return (name, {}) if is_id else (_EGO_ID, {"task": name})


def made_by_id(name: str, owner: str = "env", **keywords: Any) -> gymnasium.Env[Any, Any]:
    """Return Gymnasium's environment of that id, or a task's seat by the name of the task.

    Raises:
        ConfigurationError: Gymnasium knows nothing of the id.
        UnknownNameError: There is no such task.
    """
    known, own = known_id(name)
    try:
        return gymnasium.make(known, **own, **keywords)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"{owner}: expected an id that Gymnasium can make, got {name!r}: {error}"
        ) from None


def advice_on(source: Any) -> str:
    """Return "; " and what to do with something that is no environment of Gymnasium, if known."""
    kind: Any = source if isinstance(source, type) else type(source)
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if callable(source) or isinstance(source, VectorEnv):
        return "; pass the environment itself, not what makes it"
    if isinstance(source, list | tuple) or "stable_baselines3" in roots:
        return "; pass a function that makes one of its environments, and num_envs=..."
    if "pettingzoo" in roots:
        return (
            "; all its robots learn together with MAPPO, HAPPO or HATD3, one of them in "
            "gymnasium.make('cadenza/Ego-v1', task='pettingzoo:module:env')"
        )
    if "gym" in roots or all(callable(getattr(kind, name, None)) for name in _ANSWERS):
        version = 26 if "seed" in inspect.signature(kind.reset).parameters else 21
        return f"; derive the class from gymnasium.Env, {_OLD_GYM.format(version)}"
    return ""


def require_call(function: Any, expected: str, advice: str, *values: Any, **named: Any) -> None:
    """Refuse a function that cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*values, **named)
    except TypeError as error:
        got = shown(function)
        raise ConfigurationError(
            f"env: expected {expected}, got {got}: {error}; {advice}."
        ) from error


def require_seeded_reset(env: Any) -> None:
    """Refuse an environment that cannot be reset with a seed, or that has such a wrapper."""
    while hasattr(env, "reset"):
        expected = f"{type(env).__name__}.reset to take seed=..."
        require_call(env.reset, expected, f"add the argument, {_OLD_GYM.format(21)}", seed=0)
        env = getattr(env, "env", None)


def autoreset_mode(env: Any, error: type[CadenzaError] = InputError) -> AutoresetMode:
    """Return when a vector environment begins new episodes, or refuse one that does not say."""
    known = {mode.value: mode for mode in AutoresetMode}
    told: Any = cast("dict[str, Any]", env.metadata or {}).get("autoreset_mode")
    if told in known or told in known.values():
        return AutoresetMode(told)
    raise error(
        f"{_name(env)}: expected metadata['autoreset_mode'] to be one of {[*known]}, got "
        f"{told!r}; use gymnasium.make_vec or a vector environment of gymnasium 1.1 or later."
    )


def values_of(env: Any, call: str, answer: Any) -> tuple[Any, ...]:
    """Return what ``env`` answered to `reset` or `step` as a tuple, whose last value is a dict."""
    names, are_several = _ANSWERS[call], issubclass(cast("Any", type)(answer), list | tuple)
    values: tuple[Any, ...] = tuple(answer) if are_several else (answer,)
    if len(values) == len(names) and isinstance(values[-1], Mapping):
        return values
    raise InputError(
        f"env: expected {_name(env)}.{call} to return {len(names)} values, ({', '.join(names)}), "
        f"got {len(values)}: {shown(answer)}; return those, the info a dict, "
        f"{_OLD_GYM.format(21)}."
    )


def step_rows(env: Any, answer: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an answer to `step` with rewards and endings as arrays, (N,), or () of one."""
    answered = values_of(env, "step", answer)
    seen, *values, info = answered
    reward, end, cut = values
    if type(reward) is type(end) is type(cut) is np.ndarray and (
        reward.shape == end.shape == cut.shape == shape
        and (reward.dtype.char, end.dtype.char, cut.dtype.char) == ("d", "?", "?")
    ):
        return answered
    rows = [_array(value) for value in values]
    owner, names = f"{_name(env)}.step", ("reward", "terminated", "truncated")
    what, size, each = "to be a plain number", "the shape ", ""
    if shape:
        names = ("rewards", "terminations", "truncations")
        what, size, each = f"of shape {shape}, one number for each environment", "", " of each"
    for place, name in enumerate(names):
        rows[place] = row = truths(name, values[place], owner) if place else rows[0]
        if row.shape != shape or row.dtype.kind not in _REAL:
            told = shown(values[place]) if row.shape == shape else f"{size}{row.shape}"
            advice = f"return {'bool' if place else 'float'}({name}){each}"
            raise InputError(f"{owner}: expected {name} {what}, got {told}; {advice}.")
    return seen, rows[0].astype(np.float64), *rows[1:], info


def truths(name: str, values: Any, owner: str = "environment") -> NDArray[np.bool_]:
    """Return ``values`` as truth values; NumPy would take every word, ``"False"`` too, for True."""
    array = _array(values)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in _REAL + "O" and np.isin(array, (0, 1)).all():
        return array.astype(np.bool_)
    raise InputError(
        f"{owner}: expected truth values in {name}, got {array.tolist()!r}; correct them."
    )


def finals_of(env: Any, info: Mapping[str, Any]) -> Any:
    """Return what ended episodes showed last, out of the info of a step that began others."""
    for key in ("final_obs", "final_observation"):
        if info.get(key) is not None:
            return info[key]
    raise InputError(
        f"{_name(env)}: expected 'final_obs' in the infos of a step that ended an episode, as "
        f"info['final_obs'] or info['final_observation'], got none but {sorted(info)}; report it, "
        "or use autoreset_mode=NEXT_STEP."
    )


def last_info(info: Mapping[str, Any], ended: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the info of a step that began other episodes in rows ``ended``, as if it had not.

    Each row of a value, (N, ...), is what followed the action: that of ``final_info`` where the
    episode ended. A mask ``_name``, (N,), says in which rows there is any.
    """
    rest = {key: value for key, value in info.items() if key.lstrip("_") not in _FINALS}
    finals = info.get("final_info")
    if not isinstance(finals, Mapping):
        return rest
    return _joined(rest, cast("Mapping[str, Any]", finals), ended)


def _joined(
    now: Mapping[str, Any], finals: Mapping[str, Any], ended: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return ``now`` with the rows ``ended`` of ``finals``, and whether each row has a value."""
    joined: dict[str, Any] = {}
    for key in [key for key in {**now, **finals} if not key.startswith("_")]:
        old: Any = now.get(key)
        new: Any = finals.get(key)
        if isinstance(new if old is None else old, Mapping):
            joined[key] = _joined(old or {}, new or {}, ended)
        else:
            before = _array(new if old is None else old)
            after = before if new is None else _array(new)
            if before.shape[:1] != ended.shape or before.shape != after.shape:
                joined[key] = old if new is None else new  # not one value for each row
                continue
            rows = ended.reshape(-1, *(1,) * (before.ndim - 1))
            joined[key] = np.where(rows, after, before)
        had, has = (np.asarray(infos.get(f"_{key}", key in infos)) for infos in (now, finals))
        joined[f"_{key}"] = np.where(ended, has, had)
    return joined


def successes(info: Mapping[str, Any], rows: NDArray[np.bool_]) -> list[float]:
    """Return 1 or 0 for each of ``rows`` as ``is_success`` or ``success`` says, NaN without."""
    found = np.full(len(rows), np.nan)
    for key in _SUCCESS:
        values = _array(info.get(key))
        if values.shape[:1] == rows.shape and values.size == values.shape[0]:
            flat = values.reshape(-1)
            told = np.isin(flat, (0, 1)) & np.asarray(info.get(f"_{key}", True)) & np.isnan(found)
            found[told] = flat[told].astype(np.float64)
    return found[rows].tolist()


def success(info: Mapping[str, Any]) -> float:
    """Return what `successes` returns, for the info of one environment."""
    told = {key: [info[key]] for key in _SUCCESS if key in info}
    return successes(told, np.ones(1, np.bool_))[0]


def require_observation(env: Any, seen: Any, space: Any, name: str = "observation") -> None:
    """Refuse an observation without the parts, shapes and kinds of numbers of ``space``."""
    is_tuple = isinstance(space, spaces.Tuple)
    if is_tuple or isinstance(space, Mapping):
        for key in range(len(cast("Any", space))) if is_tuple else [*cast("Any", space)]:
            try:
                inner = seen[key]
            except (IndexError, KeyError, TypeError):
                inner = None
            require_observation(env, inner, cast("Any", space)[key], f"{name}[{key!r}]")
        return
    array = seen if type(seen) is np.ndarray else _array(seen)
    kinds = _REAL if space.dtype.kind == "f" else "iub"
    fits = array.shape == space.shape and array.dtype.kind in kinds
    if not fits or not (isinstance(space, spaces.Box) or space.contains(array.astype(space.dtype))):
        told = f" of shape {array.shape}" if array.ndim else ""
        raise InputError(
            f"{_name(env)}: expected {name} in {space}, got {shown(seen)}{told}; "
            "correct it, or the observation_space."
        )


def flat_state_space(space: Any) -> spaces.Box[Any] | None:
    """Return the Box, float32, of what `spaces.flatten` makes of an observation, if it is one."""
    try:
        flat: Any = cast("Any", spaces).flatten_space(space)  # partly typed
    except NotImplementedError:
        return None
    return _flat_box(flat) if isinstance(flat, spaces.Box) else None


def flat_action_space(space: Any) -> spaces.Space[Any] | None:
    """Return a Discrete as it is, a real Box with one axis, float32, and None for others."""
    if isinstance(space, spaces.Discrete):
        return cast("spaces.Space[Any]", space)
    real = isinstance(space, spaces.Box) and np.issubdtype(cast("Any", space).dtype, np.floating)
    return _flat_box(space) if real else None


def _flat_box(space: Any) -> spaces.Box[Any]:
    low, high = (np.asarray(end, np.float32).reshape(-1) for end in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.float32)


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose answers are checked in every step: `InputError` says what is wrong."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        for name in ("observation_space", "action_space"):
            space: Any = getattr(env, name, None)
            if not isinstance(space, spaces.Space):
                raise ConfigurationError(
                    f"env: expected {_name(env)}.{name} to be a space of gymnasium.spaces, got "
                    f"{shown(space)} ({type(space).__module__}); make it of those."
                )
        require_seeded_reset(env)
        super().__init__(env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of a copy that has no environment yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset it."""
        given = {} if options is None else {"options": options}
        observation, info = values_of(self, "reset", self.env.reset(seed=seed, **given))
        require_observation(self, observation, self.env.observation_space)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step it."""
        answer: Any = self.env.step(action)
        seen, reward, ended, cut, info = values_of(self, "step", answer)
        require_observation(self, seen, self.env.observation_space)
        if not (type(reward) in _NUMBERS and type(ended) in _TRUTHS and type(cut) in _TRUTHS):
            step_rows(self, answer, ())  # refuses what is neither
        if not math.isfinite(reward):
            raise InputError(f"{_name(self)}: expected a finite reward, got {reward}; correct it.")
        return seen, reward, bool(ended), bool(cut), info


def _name(env: Any) -> str:
    return type(getattr(env, "unwrapped", env)).__name__


def _array(values: Any) -> NDArray[Any]:
    """Return ``values`` as an array; of None where they are none, as lists of several lengths."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        return np.array(None)
