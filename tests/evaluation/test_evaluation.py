"""Evaluations: protocols, starts that training never sees, what their file holds, interruptions."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from embodied import train
from embodied.errors import ConfigError, RunFolderError
from embodied.evaluation import results as evaluations
from embodied.run.evaluation import resume_evaluation
from embodied.run.evaluation.protocol import described, short_hash
from embodied.run.evaluation.resume_evaluation import Unfinished
from embodied.run.folder.folder import RunFolder
from embodied.runtime.plan import EVAL_SEEDS, eval_plan, states_of_training, train_plan
from embodied.schema import ProtocolConfig, defaults
from embodied.schema.compose.compose import compose
from embodied.testing import FakeEnv
from embodied.types import EpisodeResult, WorkerFacts

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.eval.max_episode_steps=8", "env.eval.success_distance=0.6", "env.train.success_distance=0.6",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluate(name: str, *overrides: str) -> int:
    return train.main([*FAKE, *overrides, f"runner.experiment_name={name}", "--config-dir", CONFIG], "eval")


def report(name: str) -> dict[str, Any]:
    return json.loads(Path("runs", name, "eval", "000000.json").read_text(encoding="utf-8"))


# -- protocols -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "wait", "crop", "preset", "sampled"),
    [
        ("openvla_oft", 280, 10, True, "oft_libero", (False, 1.0)),
        ("simplevla_rl", 512, 10, True, "oft_libero", (False, 1.0)),
        ("rlinf", 512, 15, False, "rlinf", (True, 1.6)),
    ],
)
def test_a_protocol_sets_the_conditions_of_others(name, steps, wait, crop, preset, sampled):
    config = compose(["env=libero_object", "model=openvla_oft_tiny", f"protocol={name}"], "eval").config
    side, model = config.env.eval, config.actor.model.model_extra
    assert (side.max_episode_steps or 280, side.model_extra["wait_steps"]) == (steps, wait)
    assert (model["center_crop"], model["image_preset"]) == (crop, preset)
    assert (side.episodes_per_task, side.use_fixed_reset_state_ids) == (50, True)
    drawn = config.algorithm.val_sampling_params
    assert (drawn.do_sample, drawn.temperature) == sampled
    assert config.runner.experiment_name.endswith(f"-eval-{name}"), "results of two protocols have two folders"
    assert config.env.train.model_extra["wait_steps"] == 10, "training stays as it is"


@pytest.mark.parametrize("name", ["openvla_oft", "simplevla_rl", "rlinf"])
def test_protocols_of_others_draw_the_meshes_as_they_are(name):
    """Whatever the env is set to: its own coarser meshes are another picture."""
    assert compose(["env=quickstart_libero"], "eval").config.env.eval.model_extra["init_params"]["mesh_cell"] == 0.01
    config = compose(["env=quickstart_libero", f"protocol={name}"], "eval").config
    drawn = [side.model_extra["init_params"] for side in (config.env.eval, config.env.train)]
    assert [(one["mesh_cell"], one["camera_heights"], one["camera_widths"]) for one in drawn] == [(0.0, 256, 256)] * 2


def test_a_key_of_the_command_line_comes_before_the_protocol():
    config = compose(["env=libero_object", "protocol=rlinf", "env.eval.wait_steps=3", "env.eval.seed=4"], "eval").config
    assert (config.env.eval.model_extra["wait_steps"], config.env.eval.max_episode_steps) == (3, 512)
    with pytest.raises(ConfigError, match="protocol=rlinf is for"):
        compose(["env=maniskill_pickcube", "protocol=rlinf"], "eval")


def test_training_never_starts_from_the_states_that_are_held_out():
    spec = FakeEnv(num_tasks=2, num_init_states=5).spec
    assert states_of_training(spec, 2) == [3, 3]
    trained = {(e.start.task_id, e.start.init_state_id) for i in range(9)
               for e in train_plan(spec, seed=1, iteration=i, episodes=4, group_size=2, held_out=2)}  # fmt: skip
    assert trained == {(task, state) for task in range(2) for state in range(3)}
    plans = [eval_plan(spec, episodes_per_task=20, fixed_states=fixed, held_out=2) for fixed in (True, False)]
    for plan in plans:
        assert {(e.start.task_id, e.start.init_state_id) for e in plan} == {(t, s) for t in range(2) for s in (3, 4)}
    single = FakeEnv(num_tasks=1, num_init_states=1).spec
    (episode,) = eval_plan(single, episodes_per_task=1, held_out=2)
    assert (episode.start.init_state_id, episode.start.seed) == (0, EVAL_SEEDS), "its seeds are other ones anyway"
    assert states_of_training(single, 2) == [1]


def test_states_that_are_not_there_are_not_held_out(capsys):
    assert evaluate("run", "protocol.held_out_states=4", "runner.dry_run=true") == 2
    assert "set protocol.held_out_states to 3 or less" in capsys.readouterr().err


def test_what_workers_found_is_said_once_and_hashed():
    facts = [WorkerFacts(number, "egl", "first", {}, "llvmpipe", {"mujoco": "3.3.7"}) for number in range(3)]
    assert described(facts) == {"renderer": "egl", "driver": "llvmpipe", "mujoco": "3.3.7"}
    other = WorkerFacts(4, "osmesa", "first", {}, "llvmpipe", {"mujoco": "3.3.7"})
    assert described([*facts, other])["renderer"] == "egl / osmesa"
    assert short_hash({"a": 1, "b": [2]}) == short_hash({"b": [2], "a": 1}) != short_hash({"a": 1, "b": [3]})
    assert len(short_hash({})) == 12


# -- results ---------------------------------------------------------------------------------------------------------


def test_an_interrupted_evaluation_goes_on_with_the_same_numbers(monkeypatch, capsys):
    """The file of the one that was not interrupted is looked at, too."""
    few = ("protocol=held_out", "protocol.held_out_states=2", "env.eval.episodes_per_task=3")
    sampled = "algorithm.val_sampling_params.do_sample=true"
    assert evaluate("whole", *few, sampled) == 0
    said, found = capsys.readouterr().out, report("whole")
    assert {episode["start"]["init_state_id"] for episode in found["episodes"]} == {2, 3}
    assert "from the last 2 of 4 initial states, which are held out" in said
    assert "whether training left out the initial states that are held out here is not known" in said
    held_to = found["protocol"]
    assert (held_to["name"], held_to["held_out_in_training"]) == ("held_out", None)
    assert held_to["changed"] == {
        "env.eval.max_episode_steps": 8, "env.eval.episodes_per_task": 3,
        "algorithm.val_sampling_params.do_sample": True, "protocol.held_out_states": 2,
    }  # fmt: skip
    assert held_to["hash"] == short_hash(held_to["keys"])
    assert held_to["keys"]["simulator"] == {"renderer": "none"}
    assert f"protocol held_out ({held_to['hash']}), but env.eval.max_episode_steps=8" in said
    solved = [one["steps_to_success"] for one in found["episodes"] if one["success"]]
    assert solved == [one["steps"] for one in found["episodes"] if one["success"]], "success ends an episode"
    assert solved, "else the medians are not looked at"
    assert found["tasks"][-1]["steps_to_success"] == sorted(solved)[len(solved) // 2] or len(solved) % 2 == 0
    assert found["tasks"][-1]["steps_mean"] == sum(one["steps"] for one in found["episodes"]) / 6
    progress = [one["progress"] for one in found["failures"]]
    assert progress == sorted(progress, reverse=True)
    assert len(progress) == 6 - len(solved)
    assert all(0 < one < 0.5 for one in progress), "the env's own reward, although reward_mode is sparse"

    class Killed(Exception):
        pass

    class Dying(Unfinished):
        def add(self, result: EpisodeResult, text: Any = None) -> None:
            super().add(result, text)
            if self.kept == 4:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("embodied.run.evaluation.evaluator.Unfinished", Dying)
        with pytest.raises(Killed):
            evaluate("killed", *few, sampled)
    part = Path("runs/killed/.unfinished/000000.jsonl")
    part.write_text(
        part.read_text(encoding="utf-8") + '{"episode": 5, "result', encoding="utf-8"
    )  # a line that was being written
    capsys.readouterr()
    assert evaluate("killed", *few, sampled) == 0
    assert "4 of 6 episodes were run before" in capsys.readouterr().out
    assert report("killed") == found
    assert not part.exists()
    with monkeypatch.context() as patched:
        patched.setattr("embodied.run.evaluation.evaluator.Unfinished", Dying)
        with pytest.raises(Killed):
            evaluate("other", *few, sampled)
    assert evaluate("other", *few) == 0, "no result binds the folder to the keys of what was killed"
    assert "were run before" not in capsys.readouterr().out


def test_greedy_and_sampled_in_one_command_are_the_two_evaluations(monkeypatch, capsys):
    """Each file is that of a command of its own, also when the second evaluation was interrupted."""
    few = (
        "env.eval.episodes_per_task=6", "env.eval.success_distance=0.9", "algorithm.val_sampling_params.temperature=2",
    )  # fmt: skip
    both, sampled = "algorithm.val_sampling_params.do_sample=both", "algorithm.val_sampling_params.do_sample=true"
    assert evaluate("greedy", *few) == 0
    assert evaluate("sampled", *few, sampled) == 0

    class Killed(Exception):
        pass

    class Dying(Unfinished):
        def add(self, result: EpisodeResult, text: Any = None) -> None:
            super().add(result, text)
            if "sampled" in str(self._path) and self.kept == 4:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("embodied.run.evaluation.evaluator.Unfinished", Dying)
        with pytest.raises(Killed):
            evaluate("both", *few, both)
    assert report("both") == report("greedy")
    assert not Path("runs/both/eval/000000-sampled.json").exists()
    capsys.readouterr()
    assert evaluate("both", *few, both, "runner.logger.report=true") == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.endswith(" actions")] == ["greedy actions", "sampled actions"]
    assert "12 of 12 episodes were run before" in said, "none of the greedy evaluation, which had ended, is run again"
    assert "4 of 12 episodes were run before" in said
    found = [
        json.loads(Path("runs/both/eval", name).read_text(encoding="utf-8"))
        for name in ("000000.json", "000000-sampled.json")
    ]
    assert found == [report("greedy"), report("sampled")]
    assert found[0]["protocol"]["hash"] != found[1]["protocol"]["hash"]
    assert not any(Path("runs/both/.unfinished").iterdir())
    first, second = (one["tasks"][-1] for one in found)
    assert first["successes"] != second["successes"], "else the table could show one of them twice"
    assert "two from the same starts: greedy, then sampled" in said
    table = said[said.index("greedy, and sampled at temperature 2, from the same starts") :]
    (row,) = [" ".join(line.split()) for line in table.splitlines() if line.strip().startswith("all tasks")]
    shown = [f"{one['successes']}/12 ({one['success_rate']:.0%}) {one['low']:.0%} to {one['high']:.0%}"
             for one in (first, second)]  # fmt: skip
    assert row.startswith(f"all tasks {shown[0]} {shown[1]} {second['success_rate'] - first['success_rate']:+.1%} ")
    outcomes = [[one["success"] for one in side["episodes"]] for side in found]
    gained, lost = (sum(pair == way for pair in zip(*outcomes, strict=True)) for way in ((False, True), (True, False)))
    assert f"sampled did better on {gained} starts and worse on {lost}; exact McNemar test: p = " in table
    assert "conditions above" not in table
    page = Path("runs/both/report.html").read_text(encoding="utf-8")
    assert ">B against A</h3>" in page
    assert f"B did better on {gained} starts and worse on {lost}; exact McNemar test: p = " in page
    assert "success, greedy" in page
    assert "<h3>One rollout</h3>" in page, "an evaluation alone has a timeline, too"


def test_greedy_once_and_sampled_several_times(capsys):
    drawn = ("algorithm.val_sampling_params.do_sample=both", "algorithm.val_group_size=3")
    assert evaluate("run", *drawn, "env.eval.episodes_per_task=2") == 0
    greedy, sampled = (json.loads(Path("runs/run/eval", name).read_text(encoding="utf-8"))
                       for name in ("000000.json", "000000-sampled.json"))  # fmt: skip
    assert (len(greedy["episodes"]), len(sampled["episodes"])) == (4, 12)
    assert greedy["conditions"]["group_size"] == 1
    said = capsys.readouterr().out
    assert "greedy, then sampled, 3 of each start" in said
    assert "sampled did better on" in said
    assert "under the conditions above" not in said, "that they are drawn otherwise, and how often, is what is asked"


@pytest.mark.parametrize("other", ["selftest=true", "runner.only_eval=false"])
def test_two_evaluations_are_refused_where_a_command_makes_none(other, capsys):
    assert evaluate("run", "algorithm.val_sampling_params.do_sample=both", other) == 2
    assert "do_sample=both asks for two evaluations" in capsys.readouterr().err


def test_episodes_of_another_evaluation_are_not_taken(tmp_path):
    plan = eval_plan(FakeEnv().spec, episodes_per_task=2)
    one = Unfinished(tmp_path / ".unfinished" / "000000.jsonl", "this")
    one.add(EpisodeResult(plan[1], (), 0.1 + 0.2, True, 7, True, False, info={"answer": 5}, progress=1.0, solved_at=7))
    one.close()
    for identity, known in (("this", [1]), ("that", [])):
        again = Unfinished(tmp_path / ".unfinished" / "000000.jsonl", identity)
        again.read(plan)
        assert [*again.results] == known
    again = Unfinished(tmp_path / ".unfinished" / "000000.jsonl", "this")
    again.read(plan)
    assert again.results[1] == EpisodeResult(
        plan[1], (), 0.1 + 0.2, True, 7, True, False, info={"answer": 5}, progress=1.0, solved_at=7
    )
    file = tmp_path / ".unfinished" / "000000.jsonl"
    for foreign in ("[]", '{"episode": 0, "result": {"surprise": 1}, "video": null, "info": {}, "text": null}'):
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{foreign}\n")
        again = Unfinished(file, "this")
        again.read(plan)
        assert [*again.results] == [1], "what another version wrote is left"
    again.add(EpisodeResult(plan[2], (), 0.0, False, 8, False, True))
    again.close()
    last = Unfinished(file, "this")
    last.read(plan)
    assert [*last.results] == [1, 2], "and what follows it is read again"


def test_another_configuration_weights_or_data_are_another_evaluation(tmp_path):
    (data := tmp_path / "problems.jsonl").write_text("{}", encoding="utf-8")
    config = {"env": {"eval": {"data": [str(data)], "reward_mode": "sparse"}}, "runner": {"logger": {"log_path": "a"}}}
    before = resume_evaluation.identity_of_config(config)
    data.write_text("{...}", encoding="utf-8")
    assert resume_evaluation.identity_of_config(config) != before
    before = resume_evaluation.identity_of_config(config)
    config["runner"]["logger"]["log_path"] = "b"
    assert resume_evaluation.identity_of_config(config) == before
    config["env"]["eval"]["reward_mode"] = "dense"
    assert resume_evaluation.identity_of_config(config) != before


@pytest.mark.parametrize(
    ("key", "name"),
    [("model_path", "w"), ("lora_path", "lora"), ("lora_path", "~/lora"), ("anything", "./w"), ("data_paths", ["w"])],
)
def test_a_folder_that_any_key_names_is_part_of_an_evaluation(tmp_path, monkeypatch, key, name):
    """Adapters that were replaced in place, for one, are other weights."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("w/deep", "lora/deep", "runs/run"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text("x", encoding="utf-8")
    model = {key: name, "root": str(tmp_path), "size": "w"}
    config = {"actor": {"model": model}, "runner": {"logger": {"log_path": "runs/run"}, "ckpt_path": None}}
    before = resume_evaluation.identity_of_config(config)
    (tmp_path / "runs/run/file").write_text("episodes", encoding="utf-8")
    assert resume_evaluation.identity_of_config(config) == before, "what the evaluation itself writes is no part of it"
    changed = tmp_path / "lora" if "lora" in name else tmp_path / "w"
    (changed / "deep" / "file").write_text("yy", encoding="utf-8")
    assert resume_evaluation.identity_of_config(config) != before


def test_starts_that_differ_by_their_seeds_alone_are_no_held_out_states(capsys):
    alone = ("env.train.num_init_states=1", "env.eval.num_init_states=1", "env.eval.episodes_per_task=1")
    assert evaluate("plain", *alone) == 0
    assert evaluate("held", *alone, "protocol.held_out_states=2") == 0
    assert "held out" not in capsys.readouterr().out
    assert report("held")["protocol"]["hash"] == report("plain")["protocol"]["hash"]


def test_an_episode_that_cannot_be_run_counts_as_that(capsys):
    """Every worker that gets one of task 0 dies."""
    dies = ("env.eval.fault=kill", "env.max_worker_restarts=1", "env.eval.episodes_per_task=1")
    assert evaluate("run", *dies) == 0
    found, said = report("run"), capsys.readouterr().out
    assert [one["success"] is None for one in found["episodes"]] == [True, False]
    assert "not_run" in found["episodes"][0]
    assert [(row["task_id"], row["episodes"], row["not_run"]) for row in found["tasks"]] == [(1, 1, 0), (-1, 1, 1)]
    assert "1 planned episodes could not be run, and count neither as success nor as failure" in said
    assert evaluations.read("runs/run").not_run == 1
    assert evaluate("none", *dies, "env.eval.num_tasks=1") == 2
    assert "none of 1 episodes could be run" in capsys.readouterr().err


def test_a_run_of_before_there_were_protocols_goes_on(tmp_path):
    resolved = {"runner": {"seed": 1}, "protocol": defaults(ProtocolConfig)}
    with closing(RunFolder.open(tmp_path / "run", {"runner": {"seed": 1}})):
        (tmp_path / "run" / "metrics.jsonl").touch()
    with closing(RunFolder.open(tmp_path / "run", resolved)):
        pass
    held_out = {**resolved, "protocol": {**resolved["protocol"], "held_out_states": 10}}
    with pytest.raises(RunFolderError, match=r"protocol.held_out_states: 0 there, 10 now"):
        RunFolder.open(tmp_path / "run", held_out)


def test_training_and_evaluation_share_workers_though_other_rewards_count():
    """Their simulators are the same; each episode says whose rewards count."""

    def trained(name: str, *overrides: str) -> list[dict[str, float]]:
        options = [
            *FAKE, "env.num_workers=1", "env.train.total_num_envs=4", "algorithm.rollout_epoch=2",
            "runner.max_epochs=2", "env.train.max_episode_steps=6", "runner.val_check_interval=1",
            "env.train.success_distance=1.5", "env.eval.success_distance=1.5", "env.eval.episodes_per_task=8",
            "env.train.reward_mode=dense", "env.eval.reward_mode=sparse", "env.eval.reward_coef=7",
            "runner.logger.report=false", f"runner.experiment_name={name}",
        ]  # fmt: skip
        assert train.main([*options, *overrides, "--config-dir", CONFIG], "train") == 0
        lines = Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        told = ("rollout/return_mean", "train/loss", "train/grad_norm", "eval/return_mean", "eval/success_rate")
        told += ("eval/episode_length_mean", "eval/time_to_success_mean")
        return [{key: row[key] for key in told if key in row} for row in map(json.loads, lines)]

    together, apart = trained("together"), trained("apart", "env.eval.step_s=0.0001")
    assert not Path("runs/together/logs/eval").exists()
    assert Path("runs/apart/logs/eval").exists()
    assert together == apart
    assert len(together) == 2
    assert all(row["eval/return_mean"] == 7 * row["eval/success_rate"] > 0 for row in together)
    assert together[0]["rollout/return_mean"] % 1
    episodes = json.loads(Path("runs/together/eval/000001.json").read_text(encoding="utf-8"))["episodes"]
    lengths, solved = ([one[key] for one in episodes if one[key]] for key in ("steps", "steps_to_success"))
    assert together[0]["eval/episode_length_mean"] == sum(lengths) / len(episodes)
    assert together[0]["eval/time_to_success_mean"] == sum(solved) / len(solved)
    assert 0 < len(solved) < len(episodes), "else the two could not differ"
