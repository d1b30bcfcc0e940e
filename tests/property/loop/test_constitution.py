"""Whatever the words: what is cleared is inside the bounds and reads the same again."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cadenza.loop.constitution import ConstitutionError, Roots, load_constitution
from cadenza.loop.constitution.kinds import switch
from cadenza.loop.constitution.typed_jobs import (
    PROGRAMS,
    LeRobotHarvest,
    LeRobotTrain,
    NativeHarvest,
    NativeTrain,
)

RUN = Path("/srv/runs/friday").resolve()
SEED = Path("/srv/seed").resolve()
ROOTS = Roots(write=(RUN,), read=(SEED,))
CONSTITUTION = load_constitution(None)
#: Values that the keys are tried with, good and bad mixed.
VALUES = (
    *("true", "false", "null", "1", "7", "500", "501", "200000", "200001", "65537", "0.5", "1e-4"),
    *("act", "bc", "pusht", "crossing", "aloha", "PushT-v0", "cpu", "cuda", "local/x", "merge"),
    *("lerobot/smolvla_base", "somebody/else", "[0, 1]", "[32,64]", "[local/a, local/b]", "a,b"),
    *(f"{RUN}/cycle_0/x", f"{RUN}/a,{RUN}/b", f"{RUN}/../else", f"{SEED}/x", "/etc/x", "x", ""),
    *('{"a": "b"}', "-1", "--", "@x", "1_0", "１", "a\nb", "é", "push the T", "discover", "../x"),
)
#: One good value per kind of key, so that whole commands often clear.
GOOD = {
    "policy.push_to_hub": "false",
    "push_to_hub": "false",
    "wandb.enable": "false",
    "trust_remote_code": "false",
    "policy.type": "act",
    "env.type": "pusht",
    "env-type": "pusht",
    "task": "crossing",
    "mix-ratio": "0.5",
    "suite": "libero_spatial",
    "rung": "bc",
}
PATHS = (
    *("policy", "path", "out", "json", "dir", "root", "roots", "sources", "dataset", "init", "mix"),
)


def good_value(key):
    if key in GOOD:
        return GOOD[key]
    if "repo" in key:
        return "lerobot/x"
    return f"{RUN}/cycle_0/{key}/x" if key.endswith(PATHS) else "7"


@st.composite
def commands(draw):
    program = draw(st.sampled_from(list(PROGRAMS.values())))
    keys = [sorted(group)[-1] for group in program.required()]
    words = [(key, good_value(key)) for key in dict.fromkeys(keys)]
    extra = st.tuples(st.sampled_from(sorted(program.kinds())), st.sampled_from(VALUES))
    words += draw(st.lists(extra, max_size=2))
    argv = list(program.WORDS)
    for key, value in draw(st.permutations(words)):
        if program.kinds()[key] is switch:
            argv.append(f"--{key}")
        elif draw(st.booleans()):
            argv.append(f"--{key}={value}")
        else:
            argv += [f"--{key}", value]
    return argv


@st.composite
def mutated(draw):
    argv = draw(commands())
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(argv) - 1))
        word = argv[place]
        cut = draw(st.integers(0, len(word)))
        change = draw(st.sampled_from(["drop", "double", "swap", "insert", "replace", "letter"]))
        if change == "drop" and len(argv) > 1:
            del argv[place]
        elif change == "double":
            argv.insert(place, word)
        elif change == "swap":
            argv[place], argv[-1] = argv[-1], argv[place]
        elif change == "insert":
            argv.insert(place, draw(st.sampled_from(VALUES)))
        elif change == "replace":
            argv[place] = f"{word.partition('=')[0]}={draw(st.sampled_from(VALUES))}"
        elif change == "letter":
            argv[place] = word[:cut] + draw(st.characters()) + word[cut:]
    return argv


def judge(argv):
    try:
        return None, CONSTITUTION.clear(argv, ROOTS)
    except ConstitutionError as error:
        return error.verdict, None


def require_inside(job):
    """Assert the bounds from the job's own words, by other means than the constitution's."""
    rules = CONSTITUTION.rules
    argv = job.argv()
    assert all(word.startswith("--") for word in argv[len(job.WORDS) :])
    assert argv[0] in rules.allowed_programs
    flags = dict(word[2:].partition("=")[::2] for word in argv[len(job.WORDS) :])
    assert len(flags) == len(argv) - len(job.WORDS)
    assert all(key.isascii() and key == key.lower() for key in flags)
    assert int(flags.get("steps", 1)) <= 200_000
    # Training's `episodes` are indices, the others' is a count.
    episodes = flags.get(
        "eval.n_episodes", "1" if isinstance(job, NativeTrain | LeRobotTrain) else None
    )
    episodes = episodes or flags.get("episodes", "1")
    assert int(episodes) <= (65_536 if job.WORDS[-1] == "collect" else 500)
    if isinstance(job, NativeHarvest | LeRobotHarvest):
        assert job.attempts <= 65_536
    for key in ("env.type", "env-type"):
        assert flags.get(key, "pusht") in rules.allowed_env_types
    for key in ("policy.push_to_hub", "push_to_hub", "wandb.enable", "trust_remote_code"):
        assert flags.get(key, "false") == "false"
    for key in ("output_dir", "out", "result-json", "new_root"):
        if key in flags:
            assert Path(flags[key]).resolve().is_relative_to(RUN)
            assert Path(flags[key]).resolve() != RUN
    for key in ("dataset.root", "dataset", "mix", "init", "policy", "root"):
        if key in flags:
            path = Path(flags[key]).resolve()
            assert path.is_relative_to(RUN) or path.is_relative_to(SEED)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(mutated())
def test_cleared_command_is_inside_and_reads_the_same_again(argv):
    verdict, job = judge(argv)
    event(f"refused by {verdict.rule}" if job is None else f"cleared {job.WORDS}")
    if job is None:
        assert verdict.rule
        assert verdict.reason.isprintable()
        return
    require_inside(job)
    again = CONSTITUTION.clear(job.argv(), ROOTS)
    assert again == job
    assert again.argv() == job.argv()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(VALUES), st.integers()), max_size=6))
def test_arbitrary_words_are_refused(words):
    with pytest.raises(ConstitutionError):
        CONSTITUTION.clear(words, ROOTS)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.title())
def test_least_command_of_every_program_is_cleared(program):
    """So the property above is not about refusals alone."""
    groups = [sorted(group)[-1] for group in program.required()]
    keys = list(dict.fromkeys(groups))
    argv = [*program.WORDS, *(f"--{key}={good_value(key)}" for key in keys)]
    require_inside(CONSTITUTION.clear(argv, ROOTS))
