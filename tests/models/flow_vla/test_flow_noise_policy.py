"""A head that chooses the first noise of a frozen flow policy: untrained it changes nothing; what an update touches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.policy import FlowVLAPolicy
from test_flow_folders import tokenizer
from test_flow_policy import SMALL, flow, observed  # noqa: F401
from torch import Tensor

from embodied import train
from embodied.errors import CheckpointError, ConfigError
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.imitation import make_imitation
from embodied.learn.trainer import Trainer
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import check_policy
from embodied.types import EnvSpec, Episode, EpisodeResult, Sampling, Start

RUN = (
    "env=fake", "env.num_workers=1", "env.train.reward_mode=dense", "model=flow_vla_tiny", "algorithm=ppo",
    "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "algorithm.update_epoch=2",
    "actor.model.noise_method=noise_policy", "actor.model.noise_level=null", "actor.model.train_expert_only=true",
    "algorithm.logprob_type=chunk_level", "algorithm.entropy_type=chunk_level", "algorithm.kl_beta=0.1",
    "algorithm.kl_penalty_type=full", "rollout.recompute_logprobs=true", "runner.save_interval=1",
    "runner.val_check_interval=-1", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=8",
    "env.eval.video_cfg.save_video=false", "--config-dir", str(Path(__file__).parents[2] / "config"),
)  # fmt: skip
STEERED: Mapping[str, Any] = {"noise_method": "noise_policy"}
GREEDY = Sampling(do_sample=False)
Flow = Callable[..., FlowVLAPolicy]


def drawn(rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, 6 * 9, generator=torch.Generator().manual_seed(seed))


def moved(policy: FlowVLAPolicy) -> FlowVLAPolicy:
    """Moves the head away from N(0, 1), by a function of what it reads."""
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.noise_policy.fc3.parameters():  # type: ignore[union-attr]
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    return policy


@pytest.mark.parametrize(
    ("layout", "keys"),
    [
        ("smolvla", {"gradient_checkpointing": True}),
        ("pi0", {"value_head": True}),
        ("pi05", {"value_head": True, "value_type": "action_level", "noise_level": None, "precision": "bf16"}),
    ],
)
def test_it_keeps_what_a_policy_promises(made_up_env: EnvSpec, layout: str, keys: Mapping[str, Any]) -> None:
    check_policy(moved(build_policy(layout=layout, **{**SMALL, **STEERED, **keys})), made_up_env)


# -- what a decision is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["smolvla", "pi0", "pi05"])
def test_untrained_it_is_the_ode_from_the_drawn_noise_to_the_bit(flow: Flow, layout: str) -> None:  # noqa: F811
    steered, plain = flow(layout, **STEERED, eval_steps=7), flow(layout, eval_steps=7)
    obs, noise = observed(plain, 4), drawn(4)
    rest = torch.zeros(4, plain.spec.noise.shape[0] - 54)
    wanted = plain.act(obs, torch.cat([noise, rest], 1), GREEDY).fields["actions"]
    found = steered.act(obs, noise, GREEDY).fields
    assert torch.equal(found["actions"], wanted)
    assert torch.equal(found["noise"], noise.view(4, 6, 9)[:, :4, :7])
    sampled, few = steered.act(obs, noise, Sampling()).fields, flow(layout, num_steps=4)
    assert torch.equal(sampled["actions"], few.act(obs, torch.cat([noise, rest], 1), GREEDY).fields["actions"])
    assert steered.sampler(Sampling()) == {"sampler": "ode", "num_steps": 4, "noise_policy": True}
    assert steered.sampler(GREEDY)["num_steps"] == 7


def test_the_chain_begins_with_the_noise_that_was_chosen(flow: Flow) -> None:  # noqa: F811
    """In the executed actions and real dimensions; elsewhere with the drawn noise. So it does in real time."""
    steered, plain = moved(flow("pi0", **STEERED)), flow("pi0")
    obs, noise = observed(plain, 3), drawn(3)
    fields = steered.act(obs, noise, Sampling()).fields
    first = noise.view(3, 6, 9).clone()
    first[:, :4, :7] = fields["noise"]
    whole = torch.cat([first.flatten(1), torch.zeros(3, plain.spec.noise.shape[0] - 54)], 1)
    assert torch.equal(fields["actions"], plain.act(obs, whole, GREEDY).fields["actions"])
    assert not torch.equal(fields["actions"], steered.act(obs, drawn(3, seed=2), Sampling()).fields["actions"])
    rest, left, delay = torch.full((3, 4, 7), 0.5), torch.tensor([4, 1, 2]), torch.tensor([2, 0, 1])
    found = steered.act_after(obs, noise, GREEDY, rest, left, delay).fields
    assert torch.equal(found["noise"], fields["noise"])
    assert torch.equal(found["actions"], plain.act_after(obs, whole, GREEDY, rest, left, delay).fields["actions"])


def test_log_probs_and_entropies_are_those_of_the_gaussian(flow: Flow) -> None:  # noqa: F811
    policy = moved(flow("smolvla", **STEERED))
    fields = policy.act(observed(policy, 5), drawn(5), Sampling()).fields
    found = policy.evaluate(fields, Sampling(), distribution=True)
    head = policy.noise_policy
    assert head is not None
    mean, std = (each[..., :7] for each in head(fields["feature"]))
    by_torch = torch.distributions.Normal(mean.double(), std.double())
    assert torch.allclose(by_torch.log_prob(fields["noise"].double()).float(), found.logprobs, atol=1e-6)
    assert torch.allclose(fields["logprobs"], found.logprobs, atol=1e-6)
    assert found.entropy is not None
    assert torch.allclose(by_torch.entropy().float(), found.entropy, atol=1e-6)
    assert torch.allclose((fields["noise"] - mean) / std, drawn(5).view(5, 6, 9)[:, :4, :7], atol=1e-5)
    assert float(std.detach().max() - std.detach().min()) > 0.1
    assert isinstance(found.distribution, tuple)
    assert torch.equal(found.distribution[0], mean)


def test_the_feature_depends_on_picture_text_and_state_and_on_no_padding(flow: Flow) -> None:  # noqa: F811
    policy = flow("smolvla", **STEERED)
    obs = observed(policy, 3)

    def feature(**changed: Tensor) -> tuple[Tensor, ...]:
        found = policy.act({**obs, **changed}, drawn(3), Sampling()).fields["feature"]
        return found.split([32, 12, 4 * 9], 1)

    hidden, state, expected = feature()
    assert torch.allclose(hidden.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(hidden.var(1, correction=0), torch.ones(3), atol=1e-2)
    assert torch.equal(state, torch.nn.functional.pad(obs["state"], (0, 4)))
    velocity = policy.parts.velocity(policy.parts.read(obs))(torch.zeros(3, 6, 9), torch.ones(3))
    assert torch.allclose(expected.view(3, 4, 9)[..., :7], -velocity[:, :4, :7], atol=1e-5)
    assert not expected.view(3, 4, 9)[..., 7:].any()
    assert float(feature(state=1e3 * obs["state"])[1].abs().max()) == 3.0
    longer = {name: torch.nn.functional.pad(obs[name], (0, 9)) for name in ("prompt", "prompt_mask")}
    assert torch.allclose(torch.cat(feature(**longer), 1), torch.cat([hidden, state, expected], 1), atol=1e-5)
    for other in ({"images": 255 - obs["images"]}, {"prompt": obs["prompt"].flip(0)}):
        assert not torch.allclose(feature(**other)[0], hidden, atol=1e-3)
        assert not torch.allclose(feature(**other)[2], expected, atol=1e-3)


# -- what is trained -------------------------------------------------------------------------------------------------


def test_an_update_makes_no_pass_and_trains_the_heads_alone(flow: Flow) -> None:  # noqa: F811
    policy = flow("pi0", **STEERED, value_head=True)
    trained = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert {name.split(".")[0] for name in trained} == {"noise_policy", "value_head"}
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    calls: list[str] = []
    for name, module in policy.model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    obs = observed(policy, 3)
    fields = policy.act(obs, drawn(3), Sampling()).fields
    assert len(calls) > 50
    calls.clear()
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        found = policy.evaluate({**obs, **fields}, Sampling(), distribution=True)
        assert found.value is not None
        (found.logprobs.sum() + found.value.sum()).backward()
        optimizer.step()
    assert calls == []
    assert all(p.grad is None for p in policy.model.parameters())
    changed = [name for name, p in policy.named_parameters() if not torch.equal(p, before[name])]
    assert set(changed) == set(trained)


def test_saved_and_read_again_it_has_the_same_bits(
    flow: Flow,  # noqa: F811
    made_up_env: EnvSpec,
    tmp_path: Path,
) -> None:
    words = {"tokenizer_path": str(tokenizer(tmp_path))}
    policy = moved(flow("smolvla", **STEERED, **words, value_head=True))
    policy.save(tmp_path / "steered")
    keys = {"model_path": str(tmp_path / "steered"), "num_action_chunks": 4, **words}
    again = build_policy(**keys, **STEERED, value_head=True)
    again.bind(made_up_env)
    obs, noise = observed(policy, 3), drawn(3)
    one, other = (each.act(obs, noise, Sampling()).fields for each in (policy, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(CheckpointError, match=r"noise_policy.safetensors is of other sizes"):
        build_policy(**{**keys, "num_action_chunks": 3}, **STEERED)


class Bandit:
    """One decision an episode: the return is how near the first number of the first action is to a corner that the
    state names. Groups are of one start."""

    groups, size = 8, 8

    def __init__(self, policy: FlowVLAPolicy) -> None:
        self.policy = policy

    def play(self, iteration: int) -> tuple[dict[str, np.ndarray], list[EpisodeResult], float]:
        """Returns records, episodes, and the mean return."""
        count = self.groups * self.size
        starts = observed(self.policy, self.groups, seed=iteration)
        obs = {name: values.repeat_interleave(self.size, 0) for name, values in starts.items()}
        fields = self.policy.act(obs, drawn(count, seed=iteration), Sampling()).fields
        returns = 1 - (fields["actions"][:, 0, 0] - 0.8 * obs["state"][:, 0].sign()).abs()
        arrays = {name: values.numpy().copy() for name, values in {**obs, **fields}.items()}
        arrays["task_id"], arrays["version"] = np.zeros(count, np.int64), np.zeros(count, np.int64)
        arrays["num_steps"] = np.full(count, 1, np.int32)
        arrays["rewards"] = np.zeros((count, 4), np.float32)
        arrays["rewards"][:, 0] = returns.numpy()
        results = [
            EpisodeResult(
                Episode(row, row // self.size, Start(0, 0, row // self.size)), (row,), float(returns[row]), False, 1,
                True, False, rank=0,
            )
            for row in range(count)
        ]  # fmt: skip
        return arrays, results, float(returns.mean())


def test_grpo_learns_which_noise_to_begin_with(flow: Flow, made_up_env: EnvSpec) -> None:  # noqa: F811
    policy = flow("pi0", **STEERED, num_steps=2, vision_num_layers=1, num_hidden_layers=2, patch_size=32)
    frozen = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    model = ModelConfig(_target_="embodied.models.flow_vla.build_policy")
    actor = ActorConfig(global_batch_size=64, micro_batch_size=64, optim=OptimConfig(lr=3e-3), model=model)
    algorithm = AlgorithmConfig(group_size=8, logprob_type="chunk_level", entropy_type="chunk_level")
    trainer = Trainer(
        policy=policy, env=made_up_env, actor=actor, algorithm=algorithm, sampling=Sampling(),
        device=torch.device("cpu"), seed=0, max_steps=10, max_bad_updates=3,
    )  # fmt: skip
    bandit, means = Bandit(policy), []
    for iteration in range(40):
        arrays, results, mean = bandit.play(iteration)
        means.append(mean)
        trainer.update(arrays, results, iteration)
    assert np.mean(means[-8:]) > np.mean(means[:8]) + 0.3
    assert all(torch.equal(p, frozen[name]) for name, p in policy.model.named_parameters())


def test_a_run_is_resumed_exactly_and_saves_the_heads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """With values, old log-probs that are computed anew, and the KL of Gaussians."""
    monkeypatch.chdir(tmp_path)
    assert train.main([*RUN, "runner.experiment_name=whole"]) == 0
    for epochs in (1, 2):
        assert train.main([*RUN, "runner.experiment_name=parts", f"runner.max_epochs={epochs}"]) == 0
    metas = [read_meta(Path(f"runs/{name}/checkpoints/000002")) for name in ("whole", "parts")]
    whole, parts = ({name: sum_ for name, sum_ in meta.checksums.items() if name != ".metadata"} for meta in metas)
    assert whole == parts
    assert {name.split(".")[0] for name in metas[0].parameters} == {"noise_policy", "value_head"}
    rows = [json.loads(line) for line in Path("runs/whole/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["train/kl_reference"] > 0
    assert rows[-1]["train/logprob_gap"] < 1e-4
    assert rows[-1]["train/entropy"] > 0


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"train_expert_only": False}, r"train_expert_only = False: .* nothing is trained but its head"),
        ({"is_lora": True}, "is_lora = True"),
        ({"lora_modules_to_save": ["expert"]}, "lora_modules_to_save"),
        ({"trainable_map": {"expert": True}}, "trainable_map"),
        ({"noise_level": 0.7}, r"noise_level = 0.7: .* no step of a chain is random"),
        ({"noise_steps": "all"}, "noise_steps = 'all'"),
        ({"noise_range": [0.1, 0.3]}, "noise_range"),
        ({"freeze_pattern": "noise_policy"}, "no parameter is trained"),
    ],
)
def test_keys_that_mean_nothing_are_refused(keys: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_policy(**{**SMALL, **STEERED, **keys})


def test_a_level_of_noise_is_needed_elsewhere(flow: Flow) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="noise_level = None"):
        flow("pi0", noise_level=None)


def test_it_does_not_learn_from_demonstrations(flow: Flow) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="NoisePolicy cannot learn from demonstrations"):
        make_imitation(flow("pi0", **STEERED), seed=0)
    with pytest.raises(ConfigError, match="no table of choices"):
        flow("pi0", **STEERED).spec.check_sampling(Sampling(top_k=3), "algorithm.sampling_params.")
