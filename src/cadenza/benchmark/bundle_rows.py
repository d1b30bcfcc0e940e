"""Sealed bundles as rows that `evaluation.judgement` compares."""

from pathlib import Path

from cadenza.benchmark.bundle import BUNDLE_NAME, FAILURES_NAME, episode_file_name
from cadenza.benchmark.verify import MALFORMED, BundleUnderTest, read_bundle_files, sums_checks
from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.evaluation.imports import EVALUATION_SEED, Results, Row, refusal
from cadenza.evaluation.results import ResultBundle


def read_bundle(folder: Path) -> Results:
    """Return the episodes of a bundle; its conditions and partners are tasks with common starts.

    Raises:
        IntegrityError: The bundle is damaged; `eval verify` tells all.
        ConfigurationError: It is incomplete.
    """
    try:
        files = read_bundle_files(folder)
        wrong = [f"{row.name}: {row.detail}" for row in sums_checks(files) if not row.ok]
        if wrong:
            raise IntegrityError(wrong[0])
        content = parse_json_object(files[BUNDLE_NAME], source=BUNDLE_NAME)
        bundle = ResultBundle.model_validate(content)
        case = BundleUnderTest(bundle=bundle, files=files, repo_path=None)
        plan, journals = case.plan, case.episodes
    except MALFORMED as error:
        sentence = refusal(f"{folder}", "a bundle that verifies", " ".join(f"{error}".split()))
        raise IntegrityError(f"{sentence}") from error
    if FAILURES_NAME in files:
        got = f"{FAILURES_NAME}; finish it with `eval run --resume`"
        raise refusal(f"{folder}", "a whole bundle", got)
    has_success = bundle.metadata.get("has_success") is not False
    rows = [
        Row(
            arm=bundle.policy_id,
            task=f"{episode.condition} / {episode.partner}",
            start=str(episode.initial_state_seed),
            training_seed=str(seed),
            success=episode.success if has_success else None,
            score=episode.episode_return,
            source=f"{folder / episode_file_name(seed)}",
            line=f"line {number}",
        )
        for seed, episodes in journals.items()
        for number, episode in enumerate(episodes, start=1)
    ]
    facts: dict[str, object] = {
        "headline condition": bundle.summary.headline_condition,
        "task": f"{plan.env.task} version {plan.task_version}",
        "package": plan.package_version,
        "sources": plan.code_sha256[:12],
        **plan.env.model_dump(mode="json", exclude={"task"}),
    }
    for kind, entries in (("condition", plan.conditions), ("partner", plan.partners)):
        for entry in entries:
            facts[f"{kind} {entry.name}"] = entry.model_dump(mode="json", exclude={"name", "seen"})
    return Results(
        kind="bundle",
        rows=rows,
        facts=facts,
        drawn_starts=True,
        shared_starts=True,
        score="episode return",
        clusters=EVALUATION_SEED,
        headline=bundle.summary.headline_condition,
    )
