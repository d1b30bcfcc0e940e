"""`cadenza eval compare`: what people have, judged, refused or not compared."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from cadenza.cli.main import app
from tests import foreign_results as made
from tests.campaigns import size
from tests.foreign_results import outcomes

#: What a comparison may end with; everything else is a crash.
CODES = {0, 2, 20, 21, 22}


@pytest.fixture
def compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words, **files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return CliRunner().invoke(app, ["eval", "compare", *words])

    return run


def refused(result, *parts):
    """Check one sentence on one line that names ``parts``."""
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


RECORDED = Path(__file__).parents[1] / "loop/backends/recorded/eval_info-0.4.4.json"
PAIR = {"a": made.lerobot([outcomes(25, 50)]), "b": made.lerobot([outcomes(40, 50)])}


def test_better_worse_and_undecided_have_their_own_codes(compare):
    better = compare("a", "b", **PAIR)
    assert better.exit_code == 0
    first, pairing, *_ = better.stdout.splitlines()
    assert first.startswith("b: better: 0.800 against 0.500, difference +0.300 [")
    p = stats.boschloo_exact([[40, 25], [10, 25]]).pvalue
    assert f"Boschloo's exact test, p = {p:.2g}; shows a true difference of 0." in first
    unpaired = "not paired: nothing proves that episodes began alike"
    assert pairing == f"{unpaired}; clusters: none, every episode counts by itself"
    assert compare("b", "a").exit_code == 20
    nearly = compare("a", "c", c=made.lerobot([outcomes(27, 50)]))
    assert nearly.exit_code == 21
    assert compare("a", "c", "--fail-on", "worse").exit_code == 0
    assert compare("b", "a", "--fail-on", "worse").exit_code == 20
    harmless = compare("a", "c", "--margin", "0.3").stdout
    assert harmless.startswith("c: not worse than 0.3 below: ")
    assert "; margin 0.3" in harmless
    refused(compare("a", "c", "--margin", "5"), "below 1, got 5; points? say 0.05")
    refused(compare("a", "c", "--json", "--markdown"), "got both")
    few = {name: made.lerobot([[name == "e"] * 2]) for name in "de"}
    assert "; too few to show any difference in four" in compare("d", "e", **few).stdout


def test_files_without_seeds_are_paired_on_the_users_word_only(compare):
    ours, theirs = [True] * 24 + [False] * 4, [True] * 13 + [False] * 11 + [True] * 2 + [False] * 2
    files = {"a": made.lerobot([theirs], counts=True), "b": made.lerobot([ours], counts=True)}
    word = ("--paired-by", "position", "--eval-seed", "1000")
    result = compare("a", "b", *word, **files)
    # 11 wins and 2 losses of 28, golden value of the unconditional test, twice
    assert "exact McNemar (unconditional), p = 0.015" in result.stdout
    assert "28 pairs by position, on your word that all evaluations had seed 1000" in result.stdout
    refused(compare("a", "b", "--paired-by", "position"), "--eval-seed")
    refused(compare("a", "b", "--eval-seed", "3"), "--paired-by")


def test_result_recorded_from_lerobot_is_read(compare):
    told = json.loads(
        compare("a", "r", "--json", a=made.lerobot([[True] * 3]), r=RECORDED.read_text()).stdout
    )
    assert told["counts"]["r"]["judged"] == 3
    assert told["overall"][0]["comparison"]["candidate"] == 0.0


def test_positions_of_libero_need_one_environment(compare):
    files = {name: made.lerobot([outcomes(5, 10)], group="libero_10") for name in ("a", "b")}
    word = ("--paired-by", "position", "--eval-seed", "7")
    refused(compare("a", "b", *word, **files), "a per_task[0].successes[0]", "--environments 1")
    refused(compare("a", "b", *word, "--environments", "4"), "got 4")
    assert compare("a", "b", *word, "--environments", "1").exit_code == 21


def test_seeds_of_one_environment_pair_and_the_rest_is_counted(compare):
    files = {
        "a": made.lerobot_single(outcomes(4, 20)),
        "b": made.lerobot_single(outcomes(18, 20), first_seed=1005),
    }
    told = json.loads(compare("a", "b", "--json", **files).stdout)
    assert told["basis"].startswith("15 pairs by start, as the files state them; ")
    assert told["counts"]["b"] == {"attempted": 20, "abandoned": 0, "judged": 15, "unpaired": 5}
    assert told["overall"][0]["comparison"]["test"] == "exact McNemar (unconditional)"
    null = compare("a", "c", c=made.lerobot_single(outcomes(18, 20), first_seed=None))
    assert "not paired" in null.stdout


def test_arms_of_one_file_are_named(compare):
    arms = {"old": outcomes(4, 20), "new": outcomes(18, 20)}
    files = {"t.csv": made.fieldtrial_csv(arms), "o.csv": made.orbit_csv(arms)}
    field = compare("t.csv#old", "t.csv#new", **files)
    # starts of a field trial are chosen by hand
    assert "exact McNemar (conditional)" in field.stdout
    assert "20 pairs by start" in field.stdout
    assert "Boschloo" in compare("o.csv#old", "o.csv#new").stdout
    blocks = {"p": made.orbit_csv(arms, blocks=("cell 1", "cell 2", "cell 3"))}
    assert "Welch's t" in compare("p#old", "p#new", **blocks).stdout
    assert "Boschloo" in compare("o.csv#old", "p#new").stdout  # no blocks noted on one side
    refused(compare("t.csv", "t.csv#new"), "t.csv#old", "got old, new.")
    refused(compare("t.csv#old", "t.csv#newest"), "newest")
    blind = made.fieldtrial_csv({"N4": outcomes(1, 4), "K7": outcomes(2, 4)})
    refused(compare("x.csv#N4", "x.csv#K7", **{"x.csv": blind}), "blind codes", "unblind")


def test_abandoned_episodes_are_counted_and_judged_as_failures_too(compare):
    arms = {"old": [False] * 8 + [True] * 12, "new": [True] * 20}
    void = {("new", i) for i in range(8, 20)}
    table = made.fieldtrial_csv(arms, invalid=void)
    told = json.loads(compare("t#old", "t#new", "--json", t=table).stdout)
    (finding,) = told["overall"]
    assert told["counts"]["t#new"] == {
        "attempted": 20, "abandoned": 12, "judged": 8, "unpaired": 0,
    }  # fmt: skip
    # 8 wins of 8: 2 / 2^8; with failures 8 wins, 12 losses
    assert finding["comparison"]["p"] == pytest.approx(2 / 256)
    assert finding["comparison"]["verdict"] == "better"
    assert finding["as_failures"] == "undecided"
    again = made.fieldtrial_csv({"new": arms["new"]}).splitlines(keepends=True)[9:]
    told = json.loads(compare("t#old", "t#new", "--json", t=table + "".join(again)).stdout)
    assert told["counts"]["t#new"]["abandoned"] == 0


def test_training_seeds_are_clusters_from_folders_or_a_column(compare):
    rates = {"a": (9, 10, 8, 11), "b": (14, 15, 13, 16)}
    files = {
        f"{arm}__seed_{i}__eval_info.json": made.lerobot([outcomes(k, 20)])
        for arm, counts in rates.items()
        for i, k in enumerate(counts)
    }
    folders = compare("a", "b", **files)
    assert "Welch's t on seed means" in folders.stdout
    assert "Training luck" not in folders.stdout
    column = {
        f"{arm}.csv": "training_seed,success\n"
        + "".join(f"{seed},{int(x)}\n" for seed, k in enumerate(counts) for x in outcomes(k, 20))
        for arm, counts in rates.items()
    }
    table = compare("a.csv", "b.csv", **column)
    assert table.stdout.partition("p = ")[2][:8] == folders.stdout.partition("p = ")[2][:8]
    refused(compare("a/seed_0", "b"), "a/seed_0", "two or more training seeds")
    real = {name: text.replace("success", "score") for name, text in column.items()}
    assert "Welch" in compare("a.csv", "b.csv", "--score-range", "0", "1", **real).stdout
    refused(compare("a.csv", "b.csv"), "a.csv line 2", "--score-range")
    refused(compare("a.csv", "b.csv", "--score-range", "0", "0.5"), "score in [0.0, 0.5]")


def test_numbers_that_are_not_judged_may_be_missing(compare):
    files = {
        n: t.replace('"sum_rewards": [\n          1.0', '"sum_rewards": [NaN')
        for n, t in PAIR.items()
    }
    assert all("NaN" in text for text in files.values())
    assert compare("a", "b", **files).exit_code == 0
    scores = "training_seed,success,score\n" + "".join(
        f"{i % 3},1,{x}\n" for i, x in enumerate(["0.5", "0.7", "nan"] * 4)
    )
    assert compare("s", "t", s=scores, t=scores).exit_code == 21
    refused(compare("s", "t", "--score-range", "0", "1"), "s line 4", "got nan")
    judged = compare("u", "v", "--score-range", "0", "1", u=scores.replace("nan", ""), v=scores)
    refused(judged, "u line 4", "a score, got none")
    told = compare(
        "u",
        "v",
        "--score-range",
        "0",
        "1",
        u=scores.replace("nan", "1"),
        v=scores.replace("nan", "1"),
    )
    assert "judged by score; " in told.stdout


def test_folders_and_tasks_that_do_not_meet_are_named(compare):
    dated = "runs__2026-01-01__12-00_pusht__eval_info.json"
    many = {"a": made.lerobot([outcomes(5, 9)] * 5), dated: PAIR["b"]}
    wanted = "seed_0/ seed_1/ .."
    refused(compare("a", "runs", **many), wanted, "name one of runs/2026-01-01/12-00_pusht.")
    table = {"c": "task,success\nlift,1\n"}
    common = compare("a", "c", **table)
    refused(common, "got a with pusht_0, pusht_1, pusht_2, ..; c with lift. In CSV")


def test_different_rules_are_not_compared_without_a_reason(compare):
    files = {
        "a": made.robo_evals(outcomes(5, 30)),
        "b": made.robo_evals(outcomes(25, 30), mujoco="3.4.0"),
    }
    result = compare("a", "b", **files)
    assert result.exit_code == 22
    assert "mujoco: 3.3.0 in a, 3.4.0 in b" in result.stdout
    result = compare("a", "b", "--despite", "only the renderer changed")
    assert (result.exit_code, result.stdout.count("only the renderer changed")) == (0, 1)
    # a side that says nothing contradicts nobody
    assert compare("a", "c", c=made.lerobot([outcomes(5, 30)]), **files).exit_code == 2  # no task


def test_tasks_come_after_the_overall_verdict_and_share_their_level(compare):
    files = {
        "a": made.lerobot([outcomes(10, 40), outcomes(20, 40), outcomes(20, 40)]),
        "b": made.lerobot([outcomes(22, 40), outcomes(20, 40)]),
    }
    told = json.loads(compare("a", "b", "--json", **files).stdout)
    assert told["one_sided"] == {"pusht_2": ["a"]}
    p = [finding["comparison"]["holm_p"] for finding in told["by_task"]]
    raw = stats.boschloo_exact([[22, 10], [18, 30]]).pvalue
    assert p[0] == pytest.approx(2 * raw, abs=1e-5)  # Holm over two
    assert p[1] > 0.9
    assert told["by_task"][0]["comparison"]["p"] == pytest.approx(raw, abs=1e-5)
    text = compare("a", "b", "--markdown").stdout
    assert text.splitlines()[0].startswith("b: **")
    assert "- pusht_0: **better**" in text
    assert f"p = {raw:.2g}, Holm p = {2 * raw:.2g}; " in text
    assert "- not judged: pusht_2, only in a" in text
    uneven = made.lerobot([outcomes(22, 40), outcomes(2, 4)])
    refused(compare("a", "u", u=uneven), "same share of episodes in every task")


def test_several_candidates_share_the_level_and_the_best_are_a_set(compare):
    counts = {"a": 20, "b": 45, "c": 47}
    files = {name: made.robostats_jsonl(outcomes(k, 60)) for name, k in counts.items()}
    told = json.loads(compare("a", "b", "c", "--json", **files).stdout)
    assert told["ranking"]["best"] == ["c", "b"]
    assert told["ranking"]["ranks"] == {"c": [1, 2], "b": [1, 2], "a": [3, 3]}
    for finding in told["overall"]:
        alone = json.loads(compare("a", finding["arm"], "--json").stdout)["overall"][0]
        assert finding["comparison"]["verdict"] == "better"
        assert finding["comparison"]["holm_p"] > alone["comparison"]["p"]
        assert finding["comparison"]["p"] == alone["comparison"]["p"]
    lines = compare("a", "b", "c", "--markdown").stdout.partition("\n\n")[0].splitlines()
    assert [line[:4] for line in lines] == ["- b:", "- c:", "- ca", "- ra"]
    refused(compare("a", "a"), "different results")


def test_columns_of_any_csv_are_mapped(compare):
    files = {
        name: "slot,ok\n" + "".join(f"{i},{x}\n" for i, x in enumerate(outcomes(k, 30)))
        for name, k in (("a", 9), ("b", 24))
    }
    assert "30 pairs" in compare("a", "b", "--map", "start=slot, success = ok", **files).stdout
    refused(compare("a", "b"), "a line 1", "--map success=COLUMN")
    refused(compare("a", "b", "--map", "success=o"), "success=o")


#: What is wrong with a file, and what the sentence names.
BAD = {
    "empty": ("", "x line 1", "names of columns"),
    "truncated": (PAIR["b"][:700], "x: ", "strict JSON"),
    "unknown": ('{"a": 1}', "x: ", "an object with a"),
    "null success": (PAIR["b"].replace("true", "null", 1), "x per_task[0].successes[", "null"),
    "other success": (PAIR["b"].replace("true", "2", 1), "x per_task[0]", "got 2"),
    "count": (PAIR["b"].replace('des": 50', 'des": 49', 1), "per_group.pusht", "got 49"),
    "percentage": (PAIR["b"].replace("80.0", "90.0", 1), "per_group.pusht", "pc_success 80.0"),
    "not a number": (PAIR["b"].replace("80.0", "NaN", 1), "x per_group", "NaN"),
    "task twice": (made.lerobot([[True]] * 2).replace('id": 1', 'id": 0'), "per_task[1]", "once"),
    "start twice": (made.robostats_jsonl([True]) * 2, "x line 2", "0 again"),
    "short row": ("start,success\n1,1\n2\n", "x line 3", "truncated"),
    "word": ("start,success\n1,yes\n", "x line 2", '"yes"'),
    "blank": ("start,success\n1,\n", "x line 2", "status with abandoned", "got a blank"),
    "status": ("success,status\n0,DONE\n0,lost\n", "x line 3", "abandoned, aborted", '"lost"'),
    "score": ("success,score\n1,high\n", "x line 2", "finite"),
    "no row": ("start,success\n", "x: ", "at least one episode"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_in_one_sentence(compare, name):
    text, *parts = BAD[name]
    refused(compare("a", "x", x=text, **PAIR), *parts)


def test_missing_file_is_refused(compare):
    refused(compare("a", "nowhere", **PAIR), "nowhere", "check the path")


def mutated(text, rng):
    """Return ``text`` cut, with bytes changed, a piece repeated, or a word replaced."""
    start = int(rng.integers(len(text)))
    end = min(len(text), start + int(rng.integers(1, 30)))
    middle = str(
        rng.choice(
            [
                "",
                text[start:end] * 2,
                "null",
                "NaN",
                "-1",
                "1e999",
                '"',
                "{",
                "]",
                ",",
                "\n",
                "\0",
                "é",
            ]
        )
    )
    return text[:start] + (middle + text[end:] if rng.random() < 0.8 else "")


def test_mutated_files_end_with_a_sentence_or_a_verdict(compare, tmp_path):
    rng = np.random.default_rng(11)
    arms = {"old": outcomes(4, 9), "new": outcomes(7, 9)}
    texts = [
        made.lerobot([outcomes(5, 9)], counts=True), made.lerobot_single(outcomes(5, 9)),
        made.robo_evals(outcomes(5, 9)), made.robostats_jsonl(outcomes(5, 9)),
        made.fieldtrial_csv({"new": arms["new"]}), made.orbit_csv({"new": arms["new"]}),
        "task,start,success,score\n" + "".join(f"t,{i},{i % 2},0.5\n" for i in range(9)),
    ]  # fmt: skip
    for number in range(size(100, 300)):
        whole = texts[number % len(texts)]
        result = compare("a", "x", a=whole, x=mutated(whole, rng))
        assert result.exit_code in CODES, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert (result.exit_code == 2) == ("error: " in result.stderr)
