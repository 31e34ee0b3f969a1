"""``python -m embodied.tools.compare`` on evaluations as ``embodied.eval`` writes them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from comparisons import Found, as_json, below, changed, read, refused

from embodied.observe import statistics
from embodied.tools import compare


def test_real_evaluations_are_paired_by_start(at, capsys):
    (found,) = as_json(capsys, "runs/greedy", "runs/sampled")
    episodes = [read(name)["episodes"] for name in ("greedy", "sampled")]
    outcomes = [[one["success"] for one in side] for side in episodes]
    assert [one["start"] for one in episodes[0]] == [one["start"] for one in episodes[1]]
    both = statistics.paired(*outcomes)
    row = found["over_all"]
    assert (row["first"]["successes"], row["second"]["successes"], row["first"]["starts"]) == both[:3]
    assert [row["difference"], row["low"], row["high"]] == pytest.approx(both[3:])
    pairs = [*zip(*outcomes, strict=True)]
    assert (found["gained"], found["lost"]) == (pairs.count((False, True)), pairs.count((True, False)))
    assert found["p_value"] == found["p_value_holm"] == statistics.mcnemar(found["gained"], found["lost"])
    assert (found["paired"], found["shared_starts"], found["first"]["starts"]) == (True, 16, 16)
    assert [one["key"] for one in found["conditions_that_differ"]] == ["sampling.do_sample"]
    assert found["same_protocol"] is False
    assert found["first"]["protocol"] == {"name": None, "hash": read("greedy")["protocol"]["hash"]}
    assert found["notes"] == [], "each file says on which env it was made"
    assert len(found["tasks"]) == 2
    assert found["over_tasks"]["low"] <= row["difference"] <= found["over_tasks"]["high"]


def test_what_a_person_is_told(at, capsys):
    assert compare.main(["runs/greedy", "runs/sampled"]) == 0
    said = capsys.readouterr().out
    assert "CONDITIONS DIFFER" in said
    first, second = (read(name)["protocol"]["hash"] for name in ("greedy", "sampled"))
    assert f"DIFFERENT PROTOCOLS: no name ({first}) of A, no name ({second}) of B" in said
    assert "16 of A's 16 starts and of B's 16 have a partner" in said
    assert "exact McNemar test: p" in said
    assert "which are few for it" in said
    assert compare.main(["runs/greedy", "runs/greedy@0"]) == 0
    said = capsys.readouterr().out
    assert "the same conditions" in said
    assert f"one protocol: no name ({first})" in said
    assert "Both succeeded equally often: more episodes narrow the interval" in said


def test_the_env_in_an_evaluation_is_that_of_its_configuration(at, capsys):
    found = read("greedy")
    del found["env"]
    Path("runs/greedy/eval/000001.json").write_text(json.dumps(found), encoding="utf-8")
    try:
        (one,) = as_json(capsys, "runs/greedy@0", "runs/greedy")
    finally:
        Path("runs/greedy/eval/000001.json").unlink()
    assert one["conditions_that_differ"] == []
    assert "config.yaml, which may be newer" in one["notes"][0]


def test_other_protocols_and_simulators_are_never_compared_without_saying_so(write, capsys):
    def change(found):
        found["protocol"] |= {"name": "rlinf", "hash": "0"}
        found["protocol"]["keys"]["simulator"] = {"renderer": "egl", "mujoco": "3.3.7"}

    one, other, old = write("one", below(1)), write("other", below(1), change=change), write("old", change=_of_before)
    (found,) = as_json(capsys, one, other)
    assert {row["key"]: (row["first"], row["second"]) for row in found["conditions_that_differ"]} == {
        "protocol": (None, "rlinf"), "simulator.renderer": ("none", "egl"),
        "simulator.mujoco": ("not recorded", "3.3.7"),
    }  # fmt: skip
    (found,) = as_json(capsys, one, old)
    assert (found["same_protocol"], found["conditions_that_differ"]) == (None, [])
    assert found["notes"] == [f"which simulator and renderer made {old} is not recorded"]


def test_how_pictures_were_asked_for_moves_no_start(write, capsys):
    """The workers have said which renderer it was, so ``auto`` and ``egl`` are one protocol, and starts are paired."""
    one = write("one", below(20), change=changed("env", "renderer", "auto"))
    other = write("other", below(30), change=changed("env", "renderer", "egl"))
    (found,) = as_json(capsys, one, other)
    assert (found["paired"], found["same_protocol"], found["conditions_that_differ"]) == (True, True, [])

    def old(renderer: str):
        return lambda found: (_of_before(found), found["env"].update(renderer=renderer, max_cached_simulators=2))

    (found,) = as_json(capsys, write("older", change=old("egl")), write("oldest", change=old("osmesa")))
    assert found["paired"]
    assert [(row["key"], row["remark"]) for row in found["conditions_that_differ"]] == [
        ("env.renderer", "moves no start")
    ], "nothing else says what drew"


def test_a_hash_that_differs_is_never_under_the_same_conditions(write, capsys):
    def keys(**change):
        def of(found):
            found["protocol"]["hash"] = "0"
            found["protocol"]["keys"] |= change

        return of

    assert compare.main([write("one"), write("two", change=keys(tasks=["another"], pictures={"crop": True}))]) == 0
    said = capsys.readouterr().out
    assert "DIFFERENT PROTOCOLS" in said
    assert "the same conditions" not in said
    rows = {line.split()[0]: line for line in said.splitlines() if line.startswith(("  tasks ", "  pictures.crop "))}
    assert rows["tasks"].endswith("['another']")
    assert rows["pictures.crop"].split()[1:] == ["not", "recorded", "True"]
    assert compare.main([write("one"), write("three", change=keys())]) == 0
    said = capsys.readouterr().out
    assert "the same conditions" not in said
    assert "the protocols' hashes differ although every key in the files is the same" in said


def _of_before(found):
    del found["protocol"], found["conditions"]["held_out_states"]


# -- made-up outcomes in real files ----------------------------------------------------------------------------------


def test_a_clear_difference_and_too_few_episodes_for_it(write, capsys):
    worse, better = write("worse", below(20)), write("better", below(30))
    assert compare.main([worse, better]) == 0
    said = capsys.readouterr().out
    assert "B succeeds more often than A: +25.0%" in said
    assert compare.main([better, worse]) == 0
    assert "B succeeds less often than A: -25.0%" in capsys.readouterr().out
    few = [write(f"few{share}", below(share), count=4) for share in (2, 3)]
    assert compare.main(few) == 0
    said = capsys.readouterr().out
    assert "B did better on 2 starts and worse on 0; exact McNemar test: p = 0.5000" in said
    needed = statistics.needed_pairs(2, 0, 8)
    assert f"{needed.just - 8} more episodes of each would do" in said
    assert f"with {needed.likely - 8} more" in said
    assert f"env.eval.episodes_per_task={-(-needed.just // 2)}; a task has 4 initial states" in said


def test_of_greedy_texts_more_problems_are_asked_for(write, capsys):
    """Another episode of a problem would say the same again."""
    same = "a greedy answer to one does not change: more problems are needed"
    for drawn, own, asked in ((False, {}, same), (True, {}, "repeat"), (False, {"greedy_noise": True}, "repeat")):
        texts = changed("conditions", "sampling", {"do_sample": drawn, "max_new_tokens": 8, **own})
        names = [write(f"{share}-{drawn}-{len(own)}", below(share), 4, texts) for share in (2, 3)]
        assert compare.main(names) == 0
        assert asked in capsys.readouterr().out


def test_an_interval_without_zero_needs_the_exact_test_as_well(write, capsys):
    (found,) = as_json(capsys, write("a", below(2), count=4), write("b", below(4), count=4))
    assert found["over_all"]["low"] > 0
    assert found["p_value"] == 0.125
    assert not found["differ"]
    assert found["more_starts"]["just"] > 0


def test_starts_without_partners_are_left_out_and_counted(write, capsys):
    long, short = write("long", below(20)), write("short", below(10), count=15)
    (found,) = as_json(capsys, long, short)
    assert (found["shared_starts"], found["first"]["starts"], found["second"]["starts"]) == (30, 80, 30)
    assert (found["over_all"]["first"]["successes"], found["lost"]) == (30, 10)
    assert compare.main([long, short]) == 0
    assert "30 of A's 80 starts and of B's 30 have a partner; 50 of A's are left out" in capsys.readouterr().out


def test_no_common_start_is_refused_unless_unpaired(write, capsys):
    one, other = write("one", below(10)), write("other", below(30), seed=1000)
    said = refused(capsys, one, other)
    assert "no episode of runs/other has a partner in runs/one" in said
    assert "env.eval.seed" in said
    assert "--unpaired" in said
    assert refused(capsys, one, other, "--same-starts") == said
    (found,) = as_json(capsys, one, other, "--unpaired")
    assert (found["paired"], found["shared_starts"], found["test"]) == (False, 0, "fisher")
    assert found["p_value"] == statistics.fisher(20, 80, 60, 80)
    row = found["over_all"]
    assert (row["low"], row["high"]) == pytest.approx(statistics.unpaired(20, 80, 60, 80))
    assert compare.main([one, other, "--unpaired"]) == 0
    assert "UNPAIRED, as asked for" in capsys.readouterr().out


def test_no_common_task_is_refused(write, capsys):
    other = write("other", change=lambda found: [row.update(instruction=f"x{row}") for row in found["tasks"]])
    said = refused(capsys, write("one"), other, "--unpaired")
    assert "have no task in common" in said
    assert "the same env=" in said


def test_tasks_are_told_apart_by_their_instructions(write, capsys):
    def turned(found: Found) -> None:
        first, second = found["tasks"][:2]
        first["instruction"], second["instruction"] = second["instruction"], first["instruction"]

    one, other = write("one", lambda task, k: task == 0), write("other", lambda task, k: task == 1, change=turned)
    (found,) = as_json(capsys, one, other)
    assert (found["gained"], found["lost"], found["shared_starts"]) == (0, 0, 80)

    def equal(found: Found) -> None:
        found["tasks"][1]["instruction"] = found["tasks"][0]["instruction"]

    (found,) = as_json(capsys, write("three", change=equal), write("four", change=equal))
    assert [row["task"][-8:] for row in found["tasks"]] == ["(task 0)", "(task 1)"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("conditions", key, value) for key, value in (
        ("max_steps", 5), ("env_max_steps", 7), ("use_fixed_reset_state_ids", False), ("ignore_terminations", True),
        ("reward_mode", "dense"), ("reward_coef", 5.0), ("use_rel_reward", True), ("env_seed", 9), ("seed", 9),
        ("init_states_per_task", [4, 5]), ("a_later_one", 1),
    )] + [("env", key, value) for key, value in (("_target_", "x.Y"), ("success_distance", 0.1), ("wait_steps", 3))],
)  # fmt: skip
def test_each_condition_that_differs_is_named(write, capsys, section, key, value):
    one, other = write("one", below(20)), write("other", below(30), change=changed(section, key, value))
    (found,) = as_json(capsys, one, other)
    (differing,) = found["conditions_that_differ"]
    assert differing["key"] == (f"env.{key}" if section == "env" else key)
    assert differing["second"] == value
    assert found["paired"] == (section != "env"), "starts of another env are other starts"
    assert compare.main([one, other]) == 0
    said = capsys.readouterr().out
    assert "CONDITIONS DIFFER" in said
    assert differing["key"] in said
    if section == "env":
        assert "--same-starts pairs them" in said
        assert as_json(capsys, one, other, "--same-starts")[0]["paired"]


def test_other_weights_are_no_condition(write, capsys):
    other = write("other", change=changed("conditions", "weights", "others"))
    (found,) = as_json(capsys, write("one"), other)
    assert found["conditions_that_differ"] == []
    assert found["second"]["weights"] == "others"


def test_episodes_that_could_not_be_run_are_no_failures(write, capsys):
    def without_last(found: Found) -> None:
        found["episodes"] = found["episodes"][:-3]

    broken = write("broken", lambda task, k: None if k < 5 else True, change=without_last)
    (found,) = as_json(capsys, write("whole"), broken)
    assert found["second"]["not_run"] == 13
    assert (found["shared_starts"], found["lost"], found["over_all"]["second"]["rate"]) == (67, 0, 1.0)
    assert compare.main(["runs/whole", broken]) == 0
    assert "13 planned episodes were not run, and count neither way" in capsys.readouterr().out


def test_several_episodes_of_a_start_count_as_one(write, capsys):
    drawn = random.Random(0)
    one = write("one", lambda task, k: drawn.random() < 0.4, times=4)
    other = write("other", lambda task, k: drawn.random() < 0.7, times=4)
    (found,) = as_json(capsys, one, other)
    row = found["over_all"]
    assert (row["first"]["episodes"], row["first"]["starts"]) == (320, 80)
    means = []
    for name in ("one", "other"):
        own = [one["success"] for one in read(name)["episodes"]]
        means.append([sum(own[4 * k : 4 * k + 4]) / 4 for k in range(80)])
    changes = [after - before for before, after in zip(*means, strict=True)]
    assert row["difference"] == pytest.approx(sum(changes) / 80)
    assert (found["gained"], found["lost"]) == (sum(c > 0 for c in changes), sum(c < 0 for c in changes))
    assert found["p_value"] == statistics.mcnemar(found["gained"], found["lost"])
    assert row["low"] > 0
    (found,) = as_json(capsys, one, other, "--unpaired")
    assert found["p_value"] is None
    assert found["differ"] == (found["over_all"]["low"] > 0)
    assert compare.main([one, other, "--unpaired"]) == 0
    assert "no p-value: there are several episodes of a start" in capsys.readouterr().out


def test_problems_in_text_are_starts_without_their_seed(write, capsys):
    def text(found: Found) -> None:
        found["conditions"]["sampling"]["max_new_tokens"] = None
        for number, one in enumerate(found["episodes"]):
            one["start"]["init_state_id"] = number % 40

    (found,) = as_json(capsys, write("one", change=text), write("other", change=text, seed=1000))
    assert found["shared_starts"] == 80


def test_more_than_two_are_compared_in_all_pairs(write, capsys):
    names = [write(f"run{share}", below(share)) for share in (20, 21, 24)]
    found = as_json(capsys, *names)
    pairs = [(one["first"]["name"], one["second"]["name"]) for one in found]
    assert pairs == [(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]
    assert [(one["gained"], one["lost"]) for one in found] == [(2, 0), (8, 0), (6, 0)]
    p_values = [statistics.mcnemar(gained, 0) for gained in (2, 8, 6)]
    assert [one["p_value"] for one in found] == p_values
    by_holm = [max(p_values[0], 2 * p_values[2]), 3 * p_values[1], 2 * p_values[2]]
    assert [one["p_value_holm"] for one in found] == pytest.approx(by_holm), "the smallest three times, the next twice"
    assert [one["differ"] for one in found] == [False, True, False]
    assert p_values[2] < 0.05, "as the only pair they would differ"
    (alone,) = as_json(capsys, *names[1:])
    assert (alone["p_value_holm"], alone["differ"]) == (p_values[2], True)
    assert compare.main(names) == 0
    said = capsys.readouterr().out
    blocks = [line for line in said.splitlines() if line in ("B against A", "C against A", "C against B")]
    assert blocks == ["B against A", "C against A", "C against B"]
    assert "80 of B's 80 starts and of C's 80 have a partner" in said
    assert "C did better on 6 starts and worse on 0; exact McNemar test: p = 0.0312, p = 0.0625 by Holm" in said
    assert "C succeeds more often than A: +10.0%" in said
    assert "not enough episodes to tell B and C apart" in said
    (row,) = [" ".join(line.split()) for line in said.splitlines() if line.startswith("  C against B ")]
    low, high = (found[2]["over_all"][end] for end in ("low", "high"))
    assert row == f"C against B +7.5% {low:+.1%} to {high:+.1%} p = 0.0312 p = 0.0625 not told apart"
    assert "3 pairs were tested. Each test alone calls one in twenty" in said
    assert "some differences are found by chance" in said


def test_a_pair_without_a_common_start_leaves_the_others(write, capsys):
    """B and C each have starts of A's, and none in common."""
    whole = write("whole", below(20))

    def later(found: Found) -> None:
        found["episodes"] = [one for one in found["episodes"] if one["start"]["seed"] >= 20]

    halves = [write("low", below(9), count=20), write("high", below(25), change=later)]
    assert compare.main([whole, *halves, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["shared_starts"] for one in found["comparisons"]] == [40, 40]
    (refused_pair,) = found["not_compared"]
    assert (refused_pair["first"], refused_pair["second"]) == ("B", "C")
    assert compare.main([whole, *halves]) == 0
    said = capsys.readouterr().out
    assert "C was not compared with B: no episode of runs/high has a partner in runs/low" in said
    assert "2 pairs" in said
    assert "no episode of runs/high has a partner in runs/low" in refused(capsys, halves[0], halves[1], whole)


def test_the_bootstrap_depends_on_its_seed_alone(write, capsys):
    drawn = random.Random(1)
    names = [write(name, lambda task, k: drawn.random() < 0.3 + 0.4 * task, count=9) for name in "ab"]
    ends = [as_json(capsys, *names, "--seed", seed)[0]["over_tasks"] for seed in "001"]
    assert ends[0] == ends[1]
