"""Which episodes a training and an evaluation ask for, and how they are run, from the keys of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodied.parallel.group import Group
from embodied.random import Stream
from embodied.run.build.given import Checked, ConfiguredEnv
from embodied.run.build.preflight import check
from embodied.run.build.results import in_order
from embodied.run.evaluation.evaluator import job_of, planned
from embodied.run.training.collector import Collector
from embodied.runtime.plan import EVAL_SEEDS
from embodied.schema import Config
from embodied.schema.compose.compose import compose
from embodied.types import Episode, EpisodeResult, Start

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "algorithm.rollout_epoch=4")
ALONE = ("algorithm.adv_type=raw", "algorithm.group_size=1")


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Checked]:
    def make(*keys: str, entry: str = "train", processes: Group | None = None) -> Checked:
        asked = [*FAKE, f"runner.output_dir={tmp_path}", *keys]
        return check(compose(asked, entry, [CONFIG]), processes or Group())

    return make


def collector(one: Checked, episodes: int = 8) -> Collector:
    """One that has no workers."""
    sizes = SimpleNamespace(episodes=episodes, groups=episodes // one.config.algorithm.group_size)
    simulators: Any = SimpleNamespace(processes=one.processes, collecting=one.processes)
    reporter: Any = None
    return Collector(one.config, one.train, simulators, sizes, reporter)  # type: ignore[arg-type]


def evaluated(one: Checked) -> tuple[Config, ConfiguredEnv]:
    return one.config, one.eval


def starts(plan: list[Episode]) -> list[tuple[int, int]]:
    return [(one.start.task_id, one.start.init_state_id) for one in plan]


def test_a_plan_is_that_of_its_iteration_and_round(checked):
    made = collector(checked("algorithm.group_size=2"))
    plans = [made.plan(0), made.plan(1), made.plan(0, 1)]
    assert [len(plan) for plan in plans] == [8, 8, 8]
    assert len({one.episode_id for plan in plans for one in plan}) == 24
    assert len({one.start.seed for plan in plans for one in plan}) == 12, "the two of a group share one"
    assert made.plan(1) == collector(checked("algorithm.group_size=2")).plan(1)
    apart = collector(
        checked("algorithm.adv_type=raw", "algorithm.group_size=2", "env.train.use_fixed_reset_state_ids=false")
    ).plan(0)
    assert len({one.start.seed for one in apart}) == 8


def test_keys_of_the_starts(checked):
    usual = collector(checked(*ALONE), 16).plan(0)
    assert {one.start.seed for one in usual} == set(range(16))
    moved = collector(checked(*ALONE, "env.train.seed=500"), 16).plan(0)
    assert {one.start.seed for one in moved} == set(range(500, 516))
    assert starts(moved) == starts(usual), "which states come is not the business of the scenes' seed"
    drawn = collector(checked(*ALONE, "runner.seed=5"), 16).plan(0)
    assert starts(drawn) != starts(usual)
    in_turn = collector(checked(*ALONE, "data.shuffle=false"), 8).plan(0)
    assert starts(in_turn) == [(task, state) for task in range(2) for state in range(4)]
    held = collector(checked(*ALONE, "protocol.held_out_states=2"), 16)
    assert {state for k in range(4) for _, state in starts(held.plan(k))} == {0, 1}


def test_whole_passes_are_left_at_their_end(checked):
    """Of 8 starts 3 come in each of two iterations; the last two are left out."""
    keys = (*ALONE, "data.shuffle=false", "data.drop_last=true")
    made = collector(checked(*keys), 3)
    first, second, third = (starts(made.plan(k)) for k in range(3))
    assert first == third == [(0, 0), (0, 1), (0, 2)]
    assert second == [(0, 3), (1, 0), (1, 1)]


def test_videos_are_made_every_so_many_iterations_and_never_of_refills(checked):
    made = collector(checked(
        "algorithm.group_size=2", "env.train.video_cfg.save_video=true", "env.train.video_cfg.video_interval=3",
        "env.train.video_cfg.max_videos=2",
    ))  # fmt: skip
    recorded = [[one.video for one in made.plan(k) if one.video] for k in range(6)]
    assert [len(files) for files in recorded] == [0, 0, 2, 0, 0, 2]
    assert {Path(file).parent.name for file in recorded[2]} == {"000003"}
    assert not any(one.video for one in made.plan(2, 1))
    without = collector(checked("algorithm.group_size=2", "env.train.video_cfg.save_video=false"))
    assert not any(one.video for k in range(6) for one in without.plan(k))


def test_conditions_of_a_training_are_drawn_for_groups_by_the_run_s_seed(checked):
    keys = ("algorithm.group_size=2", "+perturb@env.train.perturb=robot", "env.train.perturb.unperturbed=0.25")

    def drawn(*more: str) -> list[Any]:
        return [one.perturbed for one in collector(checked(*keys, *more), 200).plan(0)]

    usual = drawn()
    assert usual[::2] == usual[1::2], "a group has one condition"
    assert 10 <= sum(one is None for one in usual[::2]) <= 40
    assert len({one.condition for one in usual if one is not None}) > 5
    assert drawn() == usual != drawn("runner.seed=7")


@pytest.mark.parametrize(
    ("keys", "truncated", "terminated"),
    [
        ((), False, False),
        (("algorithm.adv_type=gae", "actor.model.value_head=true"), True, False),
        (("algorithm.adv_type=gae", "actor.model.value_head=true", "algorithm.bootstrap_type=always"), True, True),
    ],
)
def test_the_job_of_a_training(checked, keys, truncated, terminated):
    sampled = ("algorithm.sampling_params.temperature=0.5", "env.train.max_episode_steps=13", "runner.seed=9")
    one = checked(*keys, *sampled, "env.train.total_num_envs=6", processes=Group(0, 2, 0, 2))
    job = collector(one)._job(4, 17)
    assert (job.value_truncated, job.value_terminated) == (truncated, terminated)
    assert (job.sampling.temperature, job.sampling.do_sample) == (0.5, True)
    assert (job.seed, job.stream, job.version, job.iteration) == (9, Stream.TRAIN_NOISE, 17, 4)
    assert (job.max_steps, job.keep_records) == (13, True)
    assert job.num_slots == 3, "its own share of the slots of all processes"


def test_the_job_of_an_evaluation_has_its_own_keys(checked):
    one = checked(
        "algorithm.sampling_params.temperature=0.5", "algorithm.val_sampling_params.do_sample=true",
        "algorithm.val_sampling_params.temperature=0.75", "env.train.max_episode_steps=13",
        "env.eval.max_episode_steps=11", "env.max_worker_restarts=0", "env.eval.ignore_terminations=true",
    )  # fmt: skip
    job = job_of(one.config, one.eval, 3, 2)
    assert (job.sampling.temperature, job.sampling.do_sample) == (0.75, True)
    assert (job.stream, job.version, job.num_slots) == (Stream.EVAL_NOISE, 3, 2)
    assert (job.max_steps, job.keep_records, job.ignore_terminations) == (11, False, True)
    assert (job.value_truncated, job.value_terminated) == (False, False)
    assert job.gives_up_after == 1, "an episode is tried once, also where no worker is replaced"
    more = checked("env.max_worker_restarts=4")
    assert job_of(more.config, more.eval, 0, 1).gives_up_after == 4


def test_the_plan_of_an_evaluation_has_its_own_keys(checked):
    plan = planned(*evaluated(checked("env.eval.episodes_per_task=3", "env.eval.seed=50", "env.train.seed=7")))
    assert starts(plan) == [(task, state) for task in range(2) for state in range(3)]
    assert [one.start.seed - EVAL_SEEDS for one in plan] == [50, 51, 52] * 2
    several = planned(*evaluated(checked(
        "env.eval.episodes_per_task=2", "algorithm.val_group_size=2", "algorithm.val_sampling_params.do_sample=true"
    )))  # fmt: skip
    assert starts(several) == [(task, state) for task in range(2) for state in (0, 0, 1, 1)]
    held = planned(*evaluated(checked("env.eval.episodes_per_task=4", "protocol.held_out_states=2")))
    assert {state for _, state in starts(held)} == {2, 3}
    drawn = [
        starts(planned(*evaluated(checked(
            "env.eval.episodes_per_task=8", "env.eval.use_fixed_reset_state_ids=false", f"runner.seed={seed}"
        ))))
        for seed in (0, 1)
    ]  # fmt: skip
    assert drawn[0] != drawn[1]


def test_results_of_all_processes_come_in_the_plan_s_order_with_their_ranks():
    plan = [Episode(number, number, Start(0, number, 0)) for number in (4, 1, 3, 2)]
    results = [EpisodeResult(one, (place,), 0.0, False, 1, True, False) for place, one in enumerate(plan)]
    found = in_order(plan, [[results[3], results[0]], [results[2], results[1]]])
    assert [(one.episode.episode_id, one.rank, one.rows) for one in found] == [
        (4, 0, (0,)), (1, 1, (1,)), (3, 1, (2,)), (2, 0, (3,))
    ]  # fmt: skip
