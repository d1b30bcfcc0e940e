"""Which state a run goes on from, and how every part gets back to it."""

from cadenza.aht.checkpointing import StoredState, load_newest_state
from cadenza.aht.loop import reset_partner_rows, total_iterations
from cadenza.aht.loop_state import LoopState
from cadenza.aht.replay import require_same_observation
from cadenza.aht.run import Run
from cadenza.aht.run_files import unfinished_runs
from cadenza.aht.safety_station import SafetyStation
from cadenza.aht.types import EgoTrainer, ResumableTrainer
from cadenza.core.errors import ConfigurationError
from cadenza.core.types import Observation


def find_stored_state(run: Run) -> StoredState | None:
    """Return the state to resume from, or None if the run left none.

    Raises:
        ConfigurationError: Only runs of this configuration by other code could be resumed.
    """
    stored = load_newest_state(run.files)
    if stored is None and run.files.read_card() is None:
        others = unfinished_runs(
            run.files.folder,
            fingerprint=run.context.config_fingerprint or "",
            other_than=run.files.run_id,
        )
        if others:
            raise ConfigurationError(
                f"train: expected an unfinished run {run.files.run_id} to resume, got only "
                f"{', '.join(others)} of the same configuration, made by other code or packages; "
                "check that version out to resume it, or start anew without resume."
            )
    return stored


def is_finished(run: Run, stored: StoredState) -> bool:
    """Return whether the run ended and ``stored`` is its last state, nothing being damaged."""
    final_frames = total_iterations(run.config) * run.config.env.num_envs
    return _has_ended(run) and run.files.curve.is_file() and stored.step == final_frames


def refuse_to_replace(run: Run, *, resume: bool) -> None:
    """Raise if the run has results that starting anew would replace.

    Raises:
        ConfigurationError: It has.
    """
    policies = run.files.policies()
    # A kill within the first save leaves one policy without a state: the same is written again.
    if not policies or (resume and len(policies) == 1 and not _has_ended(run)):
        return
    advice = (
        "there is no training state to resume from; pass overwrite (--overwrite) to delete the run "
        "and start anew."
        if resume
        else "pass resume (--resume) to go on with the run, or overwrite (--overwrite) to delete "
        "it and start anew."
    )
    raise ConfigurationError(
        f"train: run {run.files.run_id} already has {len(policies)} checkpoint(s) in "
        f"{run.files.folder}; {advice}"
    )


def _has_ended(run: Run) -> bool:
    card = run.files.read_card()
    return card is not None and card["status"] == "finished"


def restore(
    run: Run,
    stored: StoredState,
    state: LoopState,
    trainer: EgoTrainer,
    station: SafetyStation | None,
) -> Observation:
    """Bring every part back to the stored state; return the current observation.

    Raises:
        ConfigurationError: The learner cannot load a training state.
        CheckpointError: The replayed episode differs from the stored one.
    """
    cfg, content = run.config, stored.content
    if not isinstance(trainer, ResumableTrainer):
        raise ConfigurationError(
            f"train: expected a learner with load_training_state to resume, got "
            f"{type(trainer).__name__}; start the run anew with overwrite."
        )
    trainer.load_training_state(content["trainer"])
    state.load_state_dict(content["loop"], paths=stored.policy_paths)
    if state.awaiting_reset:
        obs: Observation = {}  # the next step begins with a reset
    else:
        obs = _replay(run, state)
        require_same_observation(obs, content["observation"])
    if station is not None:
        station.begin_run(cfg.seed)
        station.load_state_dict(content["safety"])
    return obs


def _replay(run: Run, state: LoopState) -> Observation:
    """Play the record of the running episode, or of the whole run when batched."""
    if run.config.env.num_envs == 1:
        return state.replay.play(run.env, run.partner, run.config.env.agent_uids)
    episodes = 0

    def reset_rows(ended: list[int]) -> None:
        nonlocal episodes
        episodes = reset_partner_rows(run.partner, ended, run.config.seed, episodes)

    return state.replay.play(
        run.env, run.partner, run.config.env.agent_uids, on_rows_ended=reset_rows
    )
