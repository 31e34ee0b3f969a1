"""Texts with ``algorithm.max_staleness`` of 2 and more: each is decoded with the weights of its rollout alone, and
slots flow over the borders of iterations."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from lagged import Watched, before
from logged import rows_of
from test_fixed_lag_run import CONFIG, in_tmp_path, outcome  # noqa: F401 (a fixture)

from embodied import train
from embodied.run.build import simulators
from embodied.runtime.policy.decoder import Decoder
from embodied.runtime.rollout.flowing import Flowing
from embodied.testing import FakeTextPolicy
from embodied.testing.text_policy import FakeDecoding

HELPERS = Path(__file__).parents[2] / "helpers"
EPISODES, ITERATIONS, TURNS = 16, 6, 3
SIZES = (
    "tracker=jsonl", "runner.device=cpu", f"runner.max_epochs={ITERATIONS}", "runner.save_interval=-1",
    "runner.val_check_interval=2", "env.num_workers=1", "env.train.total_num_envs=4", "algorithm.rollout_epoch=4",
    "algorithm.group_size=4", "env.eval.video_cfg.save_video=false", "env.eval.episodes_per_task=4",
    "env.eval.total_num_envs=4", "env.train.reward_mode=dense", "runner.task_type=math", "env.start_method=forkserver",
)  # fmt: skip
FAKE = (
    *SIZES, "env=fake_text", "model=fake_text", f"+env.train.turns={TURNS}", f"+env.eval.turns={TURNS}",
    f"env.train.max_episode_steps={TURNS}", f"env.eval.max_episode_steps={TURNS}", "actor.optim.lr=0.05",
)  # fmt: skip
SHAPE = "[{name: integer_after, separator: ';'}, {name: format, pattern: '[0-4].*', weight: 1.0}]"
NETWORK = (
    *SIZES, "env=arithmetic", "model=causal_lm_tiny", "runner.num_threads=1", f"env.train.verifier={SHAPE}",
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "actor.model.max_prompt_tokens=12", "actor.model.max_new_tokens=8", "actor.optim.lr=0.003",
    "env.train.data_args={terms: [2, 2], count: 500}", "env.eval.data_args={terms: [2, 2], count: 500}",
)  # fmt: skip


def run(*keys: str, lag: int = 2, name: str = "run") -> int:
    options = (*keys, f"algorithm.max_staleness={lag}", f"runner.experiment_name={name}")
    return train.main([*options, "--config-dir", CONFIG])


def logprobs(policy: Any, records: Any, sampling: Any) -> torch.Tensor:
    """Log-probs of the tokens that count; behind the end of a text they are 0."""
    found = policy.evaluate(records, sampling).logprobs
    there = torch.arange(found.shape[-1]) < records["length"].reshape(-1, 1)
    return torch.where(there, found, 0.0)


@pytest.mark.parametrize(
    ("keys", "lag"),
    [
        pytest.param(FAKE, 3, id="several turns"),
        pytest.param((*NETWORK, "algorithm.loss_type=tis"), 2, id="network"),
        pytest.param((*NETWORK, "actor.model.is_lora=true"), 2, id="adapters", marks=pytest.mark.slow),
        pytest.param((*NETWORK, "actor.model.precision=bf16"), 3, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_a_text_has_the_weights_of_its_rollout_and_is_trained_on_once(monkeypatch, keys, lag):
    watched = Watched(monkeypatch, logprobs)
    assert run(*keys, lag=lag) == 0
    near = 1e-5 if "actor.model.precision=bf16" not in keys else 0.05
    acted = watched.check(lag, ITERATIONS, EPISODES * ITERATIONS, near)
    assert watched.present == [True] * 3
    rows = [row for row in rows_of("runs/run") if row["step"]]
    assert [row["train/staleness_max"] for row in rows] == [i - version for i, version in enumerate(acted)]
    assert [row["rollout/records"] for row in rows] == [EPISODES * (TURNS if keys is FAKE else 1)] * ITERATIONS


# -- nothing but the seed and the lag says a bit -----------------------------------------------------------------------

REFILLS = (
    "algorithm.dynamic_sampling=true",
    "algorithm.max_sampling_rounds=3",
    "algorithm.filter_reward_metric=success",
)
VALUES = ("algorithm=ppo", "algorithm.group_size=4", "algorithm.rollout_epoch=4")
CUT = ("env.train.max_episode_steps=2",)  # of three turns, so that the values of final observations are asked for
TOKENS = ("algorithm.reward_type=token_level", "actor.model.value_type=token_level", "actor.model.value_head=true")
JUDGED = ("reward.use_reward_model=true", "reward.model._target_=stub_reward_models.CountsB")
DRAWN = ("algorithm.sampling_params.repetition_penalty=1.3", "algorithm.sampling_params.stop=['12']")
LANES = ("rollout.policy_batch=3",)
ALONE = (*FAKE, "runner.val_check_interval=-1")  # an evaluation waits for the texts that are under way
SLOTS = ("env.train.total_num_envs=8", "algorithm.rollout_epoch=2", "env.num_workers=2", "env.max_worker_restarts=1000")


@contextmanager
def killing() -> Iterator[None]:
    """Context in which workers are killed now and then, while texts of several versions are decoded."""
    choose, calls, rollouts = random.Random(3), list[int](), list[Any]()

    def kill(*_: Any) -> None:
        calls.append(1)
        if len(calls) % 40 == 0 and rollouts:
            with suppress(ProcessLookupError, IndexError):  # it is being replaced
                os.kill(choose.choice(rollouts[-1]._envs.pids), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        before(patch, Flowing, "_turn", rollouts.append)
        before(patch, Decoder, "poll", kill)
        yield


@pytest.mark.parametrize(
    ("keys", "rough"),
    [
        pytest.param((*FAKE, *REFILLS), LANES, id="refills"),
        pytest.param((*FAKE, *VALUES, *CUT), (), id="values", marks=pytest.mark.slow),
        pytest.param((*FAKE, *VALUES, *TOKENS, *CUT), LANES, id="token values", marks=pytest.mark.slow),
        pytest.param((*FAKE, *JUDGED), LANES, id="judged", marks=pytest.mark.slow),
        pytest.param((*FAKE, "algorithm.loss_type=tis"), (), id="tis", marks=pytest.mark.slow),
        pytest.param((*NETWORK, *DRAWN), LANES, id="network", marks=pytest.mark.slow),
        pytest.param((*NETWORK, *VALUES, "actor.model.value_head=true"), LANES, id="ppo", marks=pytest.mark.slow),
    ],
)
def test_slots_lanes_timing_and_killed_workers_change_no_bit(keys, rough):
    assert run(*keys, name="calm") == 0
    uneven = ("env.train._target_=uneven_envs.ErraticText",) if keys[: len(FAKE)] == FAKE else ()
    with killing():
        assert run(*keys, *SLOTS, *uneven, *rough, name="rough") == 0
    assert sum(row["rollout/worker_restarts"] for row in rows_of("runs/rough")) > 0
    (calm, weights), (found, others) = outcome("calm"), outcome("rough")
    for row in (*calm, *found):
        for varies in ("rollout/worker_restarts", "eval/worker_restarts"):
            row.pop(varies, None)
    assert found == calm
    assert others == weights
    assert len({value for name, value in weights.items() if name.endswith(("table", "lm_head.weight"))}) > 2


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Outcome of a run without evaluations between, which nothing has disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("calm"))
        assert run(*ALONE) == 0
        return outcome()


@pytest.mark.slow
def test_a_tool_that_hangs_changes_no_bit(tmp_path, calm):
    hangs = ("env.train._target_=uneven_envs.ErraticText", f"+env.train.hangs={tmp_path / 'hung'}")
    assert run(*ALONE, *hangs, "env.step_timeout_s=5", "env.num_workers=2") == 0
    found, weights = outcome()
    assert sum(row["rollout/worker_restarts"] for row in found) == 1
    assert ([row | {"rollout/worker_restarts": 0} for row in found], weights) == calm


# -- slots do not wait for long texts ----------------------------------------------------------------------------------


class Straggling(Decoder):
    """Writes no letter of the first text of rollout 3 until one of rollout 5 is asked for: as if it were long."""

    polls = 0
    begun: frozenset[int] = frozenset()

    def submit(self, requests: Any) -> None:
        Straggling.begun |= {request.episode_id // EPISODES for request in requests}
        super().submit(requests)

    def poll(self) -> Any:
        Straggling.polls += 1
        assert Straggling.polls < 100_000, "it waits in vain"
        if 5 in Straggling.begun:
            return super().poll()
        self._admit()
        held = {lane for lane, request in self._busy.items() if request.episode_id == 3 * EPISODES}
        self._decoding._whole |= held
        try:
            return super().poll()
        finally:
            self._decoding._whole -= held


@pytest.mark.parametrize("more", [(), pytest.param(SLOTS, marks=pytest.mark.slow)])
def test_texts_of_later_rollouts_are_written_beside_a_long_one(monkeypatch, calm, more):
    """The weights of rollout 5 are there once update 2 has ended, before update 3, which waits for rollout 3."""
    monkeypatch.setattr(simulators, "Decoder", Straggling)
    monkeypatch.setattr(Straggling, "polls", 0)
    monkeypatch.setattr(Straggling, "begun", frozenset())
    assert run(*ALONE, *more) == 0
    assert 5 in Straggling.begun
    assert outcome() == calm


# -- goes on where it stopped, and with several processes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        (FakeDecoding, "step", 250),
        pytest.param(FakeDecoding, "admit", 60, marks=pytest.mark.slow),
        pytest.param(FakeTextPolicy, "evaluate", 4, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_amid_texts_ends_as_one_that_never_was(monkeypatch, calm, owner, method, call):
    calls: list[int] = []

    def stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        before(patch, owner, method, stop)
        assert run(*ALONE) == 143
    assert 0 < len([row for row in rows_of("runs/run") if row["step"]]) < ITERATIONS
    assert run(*ALONE) == 0
    assert outcome() == calm


def with_two(*keys: str, name: str = "run") -> tuple[int, str]:
    """Exit status and errors of a run of two processes."""
    ranks = ("actor.fsdp_config.strategy=replicate", "algorithm.max_staleness=2", f"runner.experiment_name={name}")
    launch = [HELPERS / "fork_ranks.py", "2", "embodied.train", *keys, *ranks, "--config-dir", CONFIG]
    done = warm.python(launch, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HELPERS}:{HELPERS.parents[1]}"})
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("keys", [FAKE, NETWORK], ids=["fake", "network"])
def test_two_processes_give_the_same_bits_with_other_slots_and_lanes(keys):
    assert with_two(*keys, name="calm")[0] == 0
    assert with_two(*keys, *SLOTS, "rollout.policy_batch=1", name="other")[0] == 0
    assert outcome("other") == outcome("calm")
    rows = [row for row in rows_of("runs/calm") if row["step"]]
    assert [row["train/staleness_max"] for row in rows] == [0, 1, 2, 2, 2, 2]
    assert min(row["train/grad_norm"] for row in rows) > 0


@pytest.mark.slow
def test_two_processes_of_which_one_is_stopped_amid_texts_go_on():
    keys = (*FAKE, *REFILLS, "actor.model._target_=slow_policies.StoppedOnce", "actor.micro_batch_size=8")
    status, said = with_two(*keys)
    assert (status, Path("stopped").exists()) == (1, True), said
    assert len(rows_of("runs/run")) < ITERATIONS
    assert with_two(*keys)[0] == 0
    assert with_two(*keys, name="calm")[0] == 0
    assert outcome() == outcome("calm")


@pytest.mark.slow
def test_a_dry_run_counts_the_sets_of_weights_and_the_rows(capsys):
    """Lanes of each version: ``tests/run/memory/test_memory.py``."""
    found = {}
    for lag in (0, 2):
        assert run(*NETWORK, "runner.dry_run=true", lag=lag) == 0
        said = capsys.readouterr().out
        kept = {
            name: re.search(rf"(?<!\w ){name} ([\d.]+) MiB", said) for name in ("trained weights", "weights that act")
        }
        trained, acting = (0.0 if one is None else float(one[1]) for one in kept.values())
        found[lag] = int(re.findall(r"slab +(\d+) records", said)[0]), acting / trained
    assert found[2][0] == 3 * found[0][0]
    assert (found[0][1], found[2][1]) == (0, pytest.approx(2, rel=0.3)), "it says tenths of a MiB"
