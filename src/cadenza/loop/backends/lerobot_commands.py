"""Command lines for LeRobot: pure functions of a request, a configuration and a release.

Order:  as LeAgents wrote them, with what it lacked (seeds, shared environment settings) before the
        user's further arguments. No flag is given twice: LeRobot would silently take the last.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import ConfigurationError
from cadenza.loop.backends.lerobot_probe import LeRobotTools
from cadenza.loop.config import EvalConfig
from cadenza.loop.config_backends import (
    environment_of,
    seeded_words,
    unseeded_words,
)
from cadenza.loop.constitution.flags import fold
from cadenza.loop.contracts.records import (
    DataRequest,
    DatasetRef,
    EvalRequest,
    HarvestRequest,
    MergeRequest,
    TrainRequest,
)

#: Results of our scripts, in the folder of their step.
RESULT: Final = "result.json"
#: Dataset that a step makes, in its folder.
DATASET: Final = "dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all commands of a run share.

    Attributes:
        eval: Where policies are measured; its environment is also the harvest's.
        tools: What the installed LeRobot can do; None where none is installed, and further
            arguments are passed on unchecked.
        has_gpu: Whether there is a GPU.
    """

    eval: EvalConfig = field(default_factory=EvalConfig)
    tools: LeRobotTools | None = None
    has_gpu: bool = False

    @property
    def environment_words(self) -> tuple[str, ...]:
        """Words that change the environment, wherever the user gave them.

        Raises:
            ConfigurationError: ``eval.env_args`` says something about something else.
        """
        strangers = [word for word in self.eval.env_args if not word.startswith("--env.")]
        if strangers:
            raise ConfigurationError(
                f"eval.env_args: expected --env.key=value with LeRobot, got {strangers[0]!r}; give "
                "it to the commands that it is for, as extra_args."
            )
        extra = (word for word in self.eval.extra_args if word.startswith("--env."))
        return (*self.eval.env_args, *extra)

    def translated(self, tool: str, words: Sequence[str]) -> tuple[str, ...]:
        """Return further ``words`` in the names of this release."""
        return tuple(words) if self.tools is None else self.tools.translated(tool, words)


def train_command(
    request: TrainRequest, setting: Setting, *, steps: int, seed: int
) -> tuple[str, ...]:
    """Return the command that trains; it goes on when it is started again.

    Args:
        request: What to train.
        setting: What all commands share.
        steps: Gradient steps.
        seed: Seed of weights and sampling.

    Raises:
        ConfigurationError: A flag is unknown or given twice.
    """
    data, mix = request.dataset, request.mix
    if mix is not None and request.mix_ratio == 1.0:
        data, mix = mix, None
    if mix is not None and (request.mix_ratio == 0.0 or mix.root is None):
        mix = None
    extra = setting.translated("lerobot-train", request.extra_args)
    workers = [] if setting.has_gpu or _given("num_workers", extra) else ["--num_workers=0"]
    played = environment_of(extra)
    playing: tuple[str, ...] = ()
    if played is not None:
        shared = [word for word in setting.environment_words if not _given(_key(word), extra)]
        playing = (*shared, *_seeded("lerobot-train", played, [*shared, *extra]))
    return _once(
        "lerobot-train",
        f"--policy.path={request.init}" if request.init else f"--policy.type={request.rung}",
        "--policy.push_to_hub=false",
        f"--dataset.repo_id={data.repo_id}",
        *([] if data.root is None else [f"--dataset.root={data.root}"]),
        *_revision_words(data),
        *_episode_words(data),
        *([] if mix is None else _mix_words(mix, request.mix_ratio)),
        f"--output_dir={request.folder}",
        f"--steps={steps}",
        f"--batch_size={request.batch_size}",
        f"--seed={seed}",
        *workers,
        *playing,
        *extra,
    )


def eval_command(request: EvalRequest, setting: Setting) -> tuple[str, ...]:
    """Return the command that evaluates: ``seeds.count`` episodes of every task of the suite.

    Raises:
        ConfigurationError: A flag is unknown or given twice.
    """
    count = request.seeds.count
    words = [*setting.eval.env_args, *request.extra_args]
    return _once(
        "lerobot-eval",
        f"--policy.path={request.checkpoint.path}",
        f"--env.type={setting.eval.env_type}",
        f"--env.task={setting.eval.task_suite}",
        f"--eval.n_episodes={count}",
        f"--eval.batch_size={min(request.batch_size, count)}",
        f"--output_dir={request.folder}",
        f"--seed={request.seeds.start}",
        *setting.translated("lerobot-eval", words),
        *_seeded("lerobot-eval", setting.eval.env_type, words),
    )


def harvest_command(request: HarvestRequest, setting: Setting) -> tuple[str, ...]:
    """Return the command that collects successes, in the environment that policies are measured in.

    Raises:
        ConfigurationError: A flag is given twice.
    """
    extra = request.extra_args
    shared = [
        *(word for word in setting.environment_words if not _given(_key(word), extra)),
        *([] if _given("rename-map", extra) else _renaming_words(setting.eval.extra_args)),
    ]
    return _once(
        "cadenza-lerobot-collect",
        f"--policy-path={request.checkpoint.path}",
        f"--env-type={setting.eval.env_type}",
        f"--task={setting.eval.task_suite}",
        f"--episodes={request.episodes}",
        f"--out={request.folder / DATASET}",
        f"--repo-id={request.repo_id}",
        f"--device={request.device}",
        f"--seed={request.seeds.start}",
        f"--max-attempts={request.seeds.count}",
        *([f"--focus={','.join(request.focus)}"] if request.focus else []),
        *shared,
        *_seeded("cadenza-lerobot-collect", setting.eval.env_type, [*shared, *extra]),
        *extra,
        *([f"--task-text={request.task_text}"] if request.task_text else []),
        f"--result-json={request.folder / RESULT}",
    )


def merge_command(request: MergeRequest) -> tuple[str, ...]:
    """Return the command that joins local datasets by LeRobot's Python functions.

    LeRobot's own command cannot name two folders before release 0.5.

    Raises:
        ConfigurationError: A source is not local.
    """
    for source in request.sources:
        if source.root is None:
            raise ConfigurationError(
                f"merge of {source.repo_id}: expected a local dataset, got one without a folder."
            )
    return _once(
        "cadenza-lerobot-merge",
        f"--repo-ids={','.join(source.repo_id for source in request.sources)}",
        f"--roots={','.join(str(source.root) for source in request.sources)}",
        f"--out={request.folder / DATASET}",
        f"--repo-id={request.repo_id}",
        f"--result-json={request.folder / RESULT}",
    )


def select_command(
    request: DataRequest,
    *,
    suite: str,
    focus: Sequence[str],
    root: Path | None,
    instructions: Path | None,
) -> tuple[str, ...]:
    """Return the command that chooses a suite's episodes.

    Args:
        request: How many, of which dataset.
        suite: The suite.
        focus: Its tasks to take more of.
        root: Folder of a local dataset.
        instructions: File of suites and their instructions.
    """
    count = request.proposal.num_episodes
    return _once(
        "cadenza-lerobot-select",
        f"--repo-id={request.proposal.dataset}",
        *([] if root is None else [f"--root={root}"]),
        f"--suite={suite}",
        *([] if count is None else [f"--limit={count}"]),
        *([f"--focus={','.join(focus)}"] if focus else []),
        *([] if instructions is None else [f"--instructions={instructions.absolute()}"]),
        f"--result-json={request.folder / RESULT}",
    )


def rename_map(words: Sequence[str]) -> Mapping[str, str]:
    """Return the new names of features, by the old, that further arguments give.

    Raises:
        ConfigurationError: They are no JSON object of names.
    """
    for word in words:
        if fold(_key(word)) == "renamemap":
            try:
                found: Any = json.loads(word.partition("=")[2])
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise ConfigurationError(f"expected --rename_map as a JSON object, got {word!r}.")
            return {str(old): str(new) for old, new in found.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return {}


def _revision_words(data: DatasetRef) -> list[str]:
    return [] if data.revision is None else [f"--dataset.revision={data.revision}"]


def _episode_words(data: DatasetRef) -> list[str]:
    """Return the episodes that count: explicit ones, else the first of a dataset on a hub."""
    if data.episodes is not None:
        return [f"--dataset.episodes={list(data.episodes)}"]
    if data.num_episodes and data.root is None:
        return [f"--dataset.episodes={list(range(data.num_episodes))}"]
    return []


def _mix_words(mix: DatasetRef, ratio: float) -> list[str]:
    return [
        f"--mix.repo_id={mix.repo_id}",
        f"--mix.root={mix.root}",
        f"--mix.ratio={ratio}",
    ]


def _renaming_words(words: Sequence[str]) -> list[str]:
    names = rename_map(words)
    return [f"--rename-map={json.dumps(names, sort_keys=True)}"] if names else []


def _seeded(program: str, env_type: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return what a command says beside ``words`` so that its seeds choose initial states.

    Raises:
        ConfigurationError: ``words`` say otherwise.
    """
    for problem in unseeded_words(program, env_type, words):
        raise ConfigurationError(f"{problem}.")
    return seeded_words(env_type, words)


def _key(word: str) -> str:
    return word.partition("=")[0].removeprefix("--")


def _given(key: str, words: Sequence[str]) -> bool:
    return any(word.startswith("--") and fold(_key(word)) == fold(key) for word in words)


def _once(*words: str) -> tuple[str, ...]:
    """Return ``words``, a command, if each flag is there once.

    Raises:
        ConfigurationError: One is there twice.
    """
    seen: set[str] = set()
    for word in words[1:]:
        if not word.startswith("--"):
            continue
        name = fold(_key(word))
        if name in seen:
            raise ConfigurationError(
                f"{words[0]}: expected --{_key(word)} once, got it again as {word!r}; the loop "
                "sets it, or it stands in two places."
            )
        seen.add(name)
    return words
