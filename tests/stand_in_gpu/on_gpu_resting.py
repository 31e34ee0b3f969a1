"""What only updates need rests in host memory: which device it is on and when, and the bits of a run without that."""

from __future__ import annotations

from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from causal_lm_texts import answered
from causal_lm_texts import make as make_text_policy
from device import FROM_HOST, TO_HOST
from rig import open_rig
from test_cloning_steps import CONFIG, demonstrations
from test_engine_run import FOLDERS, TRAIN, engine, without_gaps

from embodied import train
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import resume
from embodied.learn.cloning import Cloner
from embodied.learn.step.resting import RestingWeights
from embodied.learn.trainer import Trainer
from embodied.runtime.engine.process import EngineProcess
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig, bind
from embodied.testing import FakeEnv, FakePolicy, FakeTextPolicy
from embodied.types import Sampling

KEYS = {"kl_beta": 0.1, "reference_reset_interval": 2, "group_size": 2}


@pytest.fixture(scope="module")
def collected():
    with TemporaryDirectory() as folder, open_rig(Path(folder), slots=4, workers=1, success_distance=0.6) as rig:
        plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
        results, _ = rig.rollout().collect(plan, rig.job())
        yield rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def make(env: Any, optimizer: bool, reference: bool, impl: str) -> Trainer:
    policy = FakePolicy().to("cuda")
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=8, micro_batch_size=4, optim=OptimConfig(lr=0.01, impl=impl), offload_optimizer=optimizer,
        offload_reference=reference, model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(**KEYS), sampling=Sampling(),
        device=torch.device("cuda"), seed=0, max_steps=10, max_bad_updates=3,
    )  # fmt: skip


def places(learner: Any) -> set[str]:
    """Devices of the optimizer's state; Adam's count of steps is always on the host."""
    return {
        value.device.type
        for state in learner.optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    }


def place_of_reference(trainer: Trainer) -> set[str]:
    assert trainer._reference is not None
    return {kept.device.type for kept in trainer._reference.state_dict().values()}


def look(trainer: Trainer, seen: list[set[str]], *step: Any) -> None:
    seen.append(places(trainer))


def learned(collected: Any, optimizer: bool, reference: bool, impl: str, folder: Path | None = None) -> Any:
    """Metrics of four updates and the weights after them; with a folder, from a checkpoint of the second on."""
    env, arrays, results = collected
    trainer, metrics = make(env, optimizer, reference, impl), []
    where = "cpu" if optimizer else "cuda"
    for iteration in range(4):
        if iteration == 2 and folder is not None:
            checkpoints = Checkpoints(folder, 3)
            checkpoints.save(trainer, iteration)
            checkpoints.wait()
            trainer = make(env, optimizer, reference, impl)
            resume(folder / f"{iteration:06d}", trainer)
        assert places(trainer) <= {where}
        assert place_of_reference(trainer) == {"cpu" if reference else "cuda"}
        seen: list[set[str]] = []
        hook = trainer.optimizer.register_step_pre_hook(partial(look, trainer, seen))
        metrics.append(trainer.update(arrays, results, iteration)[0])
        hook.remove()
        assert set().union(*seen) <= {"cuda"}
        assert places(trainer) == {where}
    return metrics, {name: p.detach().cpu() for name, p in trainer.policy.named_parameters()}


def assert_equal(found, wanted):
    assert found[0] == wanted[0]
    assert all(torch.equal(found[1][name], wanted[1][name]) for name in wanted[1])


@pytest.mark.parametrize("impl", ["auto", "for-loop"])
def test_they_are_on_the_host_between_updates_and_the_numbers_are_the_same(collected, gpu, impl, tmp_path):
    wanted = learned(collected, False, False, impl)
    assert not [place for _, place in gpu.seen if "resting.py" in place]
    for optimizer, reference in ((True, False), (False, True), (True, True)):
        assert_equal(learned(collected, optimizer, reference, impl), wanted)
    assert_equal(learned(collected, True, True, impl, tmp_path), wanted)
    copies = {one for one in gpu.seen if "resting.py" in one[1]}
    assert copies == {
        (TO_HOST, "embodied/learn/step/resting.py to_host"),
        (FROM_HOST, "embodied/learn/step/resting.py to_device"),
    }


def test_the_memory_is_given_back_to_the_gpu(collected, gpu, monkeypatch):
    given: list[set[str]] = []
    trainer = make(collected[0], True, False, "auto")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(places(trainer)))
    trainer.update(*collected[1:], 0)
    assert given == [{"cpu"}]


def test_supervised_training(gpu):
    def cloned(optimizer: bool) -> Any:
        policy, (train, held_out) = FakePolicy().to("cuda"), demonstrations()
        config = bind({**CONFIG, "actor": {**CONFIG["actor"], "offload_optimizer": optimizer}})
        cloner = Cloner(policy, FakeEnv().spec, config, train, held_out, torch.device("cuda"))
        for iteration in range(2):
            cloner.iterate(iteration)
            assert places(cloner) == {"cpu" if optimizer else "cuda"}
        metrics = {**cloner.close_iteration(1), **cloner.validate()}
        return metrics, {name: p.detach().cpu() for name, p in policy.named_parameters()}

    assert_equal(cloned(True), cloned(False))


@pytest.mark.parametrize("keys", [{"is_lora": True, "lora_rank": 4}, {}])
def test_a_language_model_learns_with_weights_that_have_rested(gpu, keys):
    """Tied weights and adapters: all move, and gradients and steps are the same to the bit."""
    found: list[dict[str, torch.Tensor]] = []
    for wanted in (False, True):
        policy = make_text_policy("gemma", **keys)
        records = {name: field.to("cuda") for name, field in answered(policy).items()}
        policy = policy.to("cuda")
        weights, optimizer = RestingWeights(policy, wanted), torch.optim.AdamW(policy.parameters(), lr=0.01)
        for _ in range(2):
            sent = {f"sent.{name}": tensor.cpu() for name, tensor in policy.engine_weights()}
            weights.rest()
            assert {one.device.type for one in policy.parameters()} == {("cuda", "cpu")[wanted]}
            weights.wake()
            policy.evaluate(records, Sampling()).logprobs.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        after = policy.evaluate(records, Sampling()).logprobs.detach().cpu()
        found.append({**sent, "after": after, **{name: p.detach().cpu() for name, p in policy.named_parameters()}})
        assert {one.device.type for one in policy.parameters()} == {"cuda"}
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(values, found[1][name]) for name, values in found[0].items())


BESIDE_AN_ENGINE = (
    *TRAIN, "runner.device=cuda", "env.num_workers=1", "runner.max_epochs=3", "runner.val_check_interval=2",
    "runner.weight_sync_interval=2", "runner.save_interval=1", "algorithm.kl_beta=0.1", "actor.optim.ema_decay=0.5",
)  # fmt: skip


def test_weights_beside_an_engine(gpu, tmp_path, monkeypatch):
    """Where they are at each message to the engine, and in each pass of the policy; the last engine dies once."""
    seen: dict[str, set[str]] = {}
    policies: list[FakeTextPolicy] = []
    init, evaluate, send = FakeTextPolicy.__init__, FakeTextPolicy.evaluate, EngineProcess.send
    monkeypatch.chdir(tmp_path)

    @wraps(init)
    def made(self: FakeTextPolicy, *given: Any, **keys: Any) -> None:
        init(self, *given, **keys)
        policies.append(self)

    def note(what: str) -> None:
        seen.setdefault(what, set()).add(policies[-1].table.device.type)

    def noted(process: EngineProcess, kind: str, *given: Any, **fields: Any) -> None:
        note(kind)
        send(process, kind, *given, **fields)

    monkeypatch.setattr(FakeTextPolicy, "__init__", made)
    monkeypatch.setattr(EngineProcess, "send", noted)
    monkeypatch.setattr(FakeTextPolicy, "evaluate", lambda *a, **k: (note("evaluate"), evaluate(*a, **k))[1])
    common = ("setup", "load", "begin", "ask", "sleep", "wake")
    for name, keys, faults, place in (
        ("stay", (), (), "cuda"),
        ("rest", ("actor.offload_weight=true", "actor.enable_offload=true"), (f"dies={tmp_path / 'once'}",), "cpu"),
    ):
        seen.clear()
        run = [*BESIDE_AN_ENGINE, *engine(tmp_path, *faults), *keys, f"runner.experiment_name={name}", *FOLDERS]
        assert train.main(run) == 0
        assert seen == {**{kind: {place} for kind in common}, "evaluate": {"cuda"}}
        assert policies[-1].table.device.type == "cuda"
    stay, rest = without_gaps("runs/stay"), without_gaps("runs/rest")
    assert sum(row.pop("rollout/engine_restarts") for row in rest) == 1
    assert sum(row.pop("rollout/engine_restarts") for row in stay) == 0
    assert stay == rest
    copies = {one for one in gpu.seen if "resting.py" in one[1]}
    assert {kind for kind, _ in copies} == {TO_HOST, FROM_HOST}
