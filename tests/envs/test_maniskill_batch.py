"""Many copies in one ManiSkill simulator, as on a GPU: with ManiSkill's own ``BaseEnv.reset`` and no physics.

What needs a GPU is replaced: the scene, the controller, the sensors. Seeds, generators, masks and the order of what
happens in a reset are those of the package.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from embodied.envs.maniskill import ManiSkillEnv, cuda, simulator
from embodied.envs.maniskill import env as env_module
from embodied.envs.maniskill.cuda import check_cuda, wants_gpu
from embodied.envs.maniskill.rendering import VulkanChoice

from embodied.errors import AssetsMissingError, ConfigError, UnknownNameError
from embodied.protocols import Batched
from embodied.testing import check_batch_env
from embodied.types import Start

pytestmark = pytest.mark.sim
STATE = ("qpos", "goal_pos")


class Controller:
    """Keeps a target between control steps, as those with ``use_target`` do."""

    def __init__(self, env):
        self._env, self.target = env, torch.zeros(env.num_envs, 3)

    def reset(self):
        mask = self._env.scene._reset_mask
        self.target[mask] = self._env.qpos[mask]

    def get_state(self):
        return {"target": self.target}


class Sensor:
    def __init__(self, env):
        self._env = env

    def capture(self):
        self._env.renders += 1

    def get_obs(self, **textures):
        seen = (self._env.goal[:, :1] * 255).to(torch.uint8)
        return {"rgb": seen[:, None, None].repeat(1, 16, 16, 3)}


def make_copies(copies, settles=False):
    """A task of which ``env.reset`` is ManiSkill's."""
    from mani_skill.envs.sapien_env import BaseEnv

    class Copies(BaseEnv):
        def __init__(self):
            self.num_envs, self.device, self._reward_mode = copies, torch.device("cpu"), "normalized_dense"
            self.reconfiguration_freq = self._reconfig_counter = self.renders = 0
            self.qpos, self.goal = torch.zeros(copies, 3), torch.zeros(copies, 3)
            self._elapsed_steps = torch.zeros(copies, dtype=torch.int32)
            self._hidden_objects = []
            self.scene = SimpleNamespace(
                _reset_mask=torch.ones(copies, dtype=torch.bool), gpu_sim_enabled=False, update_render=lambda **_: None,
                sensors={"base_camera": Sensor(self)}, actors={}, actor_views={}, articulations={},
            )  # fmt: skip
            controller = Controller(self)
            self.agent = SimpleNamespace(
                controller=controller,
                reset=lambda: None,
                get_proprioception=lambda: {"qpos": self.qpos},
                robot=SimpleNamespace(get_qpos=lambda: self.qpos),
            )
            self.single_action_space = SimpleNamespace(shape=(4,))

        def _clear_sim_state(self):
            pass

        def get_obs(self, info=None, unflattened=False):
            return {}

        def _get_obs_extra(self, info):
            return {"goal_pos": self.goal}

        def get_state(self):
            return torch.cat([self.qpos, self.goal, self.agent.controller.target], dim=1)

        def evaluate(self):
            return {"success": (self.qpos - self.goal).norm(dim=1) < 0.1}

        def compute_normalized_dense_reward(self, obs, action, info):
            return 1 - torch.tanh((self.qpos - self.goal).norm(dim=1))

        def _initialize_episode(self, env_idx, options):
            """As PickCube's: torch's and numpy's generators, one row for each copy that is reset."""
            mask, copies = self.scene._reset_mask, len(env_idx)
            assert int(mask.sum()) == copies
            self.goal[mask] = torch.rand((copies, 3)) + options.get("episode_id", torch.zeros(copies))[:, None]
            self.qpos[mask] = torch.as_tensor(self._episode_rng.normal(0, 1, (copies, 3)), dtype=torch.float32)
            if settles:
                self.qpos += 0.01

        def _step_action(self, action):
            self.agent.controller.target = self.agent.controller.target + 0.1 * action[:, :3]
            self.qpos = self.qpos + 0.5 * (self.agent.controller.target - self.qpos)
            return action

    return Copies()


@pytest.fixture
def simulated(monkeypatch):
    """In the place of a GPU. The copies that were made."""
    made = []

    def make_env(params, render_backend, sensors, sim_backend, copies):
        assert (sim_backend, render_backend) == ("physx_cuda:0", "sapien_cuda:0")
        made.append(make_copies(copies, settles=params.task_kwargs.get("settles", False)))
        return made[-1]

    monkeypatch.setattr(simulator, "make_env", make_env)
    monkeypatch.setattr(simulator, "_keep_renderer", lambda render_backend: None)
    monkeypatch.setattr(env_module, "check_cuda", lambda: "a GPU")
    monkeypatch.setattr(env_module, "check_vulkan", lambda wanted: VulkanChoice(wanted, "made up"))
    monkeypatch.setattr(env_module, "ask", env_module.facts_of)
    monkeypatch.setattr(env_module, "prepare_process", lambda: {})
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    env_module._prepare_once.cache_clear()
    yield made
    env_module._prepare_once.cache_clear()


def make(**given) -> ManiSkillEnv:
    params = {
        "id": "PickCube-v1", "control_mode": "pd_ee_delta_pos", "camera_heights": 16, "camera_widths": 16,
        **given.pop("init_params", {}),
    }  # fmt: skip
    return ManiSkillEnv(params, state=("goal_pos",), sim_backend="gpu", **given)


def look(batch, slots):
    outs = [{"images": np.zeros((1, 16, 16, 3), np.uint8), "state": np.zeros(3, np.float32)} for _ in slots]
    batch.observe(slots, outs)
    return outs


def test_a_batch_keeps_the_protocol(simulated):
    env = make()
    assert isinstance(env, Batched)
    assert not hasattr(env, "expert")
    check_batch_env(env, num_slots=4)
    assert simulated[0].num_envs == 4


def test_a_start_does_not_depend_on_slot_or_company(simulated):
    """ManiSkill itself draws the rows of all copies from the generator of the first one's seed."""
    batch, env = make().batch(4), make()
    batch.reset([0, 1, 2, 3], [Start(0, 0, seed) for seed in (5, 6, 5, 7)])
    together = [out["state"] for out in look(batch, range(4))]
    assert np.array_equal(together[0], together[2])
    assert not np.array_equal(together[0], together[1])
    batch.reset([3, 1], [Start(0, 0, 6), Start(0, 0, 5)])
    part = [out["state"] for out in look(batch, range(4))]
    assert np.array_equal(part, [together[i] for i in (0, 0, 2, 1)])
    out = {"images": np.zeros((1, 16, 16, 3), np.uint8), "state": np.zeros(3, np.float32)}
    env.reset(Start(0, 0, 6))
    env.observe(out)
    assert np.array_equal(out["state"], together[1]), "one slot, as on the CPU"


def test_targets_of_controllers_are_forgotten_by_those_that_are_reset(simulated):
    batch = make().batch(3)
    batch.reset([0, 1, 2], [Start(0, 0, seed) for seed in range(3)])
    batch.step(np.ones((3, 4), np.float32), np.ones(3, bool))
    copies, target = simulated[-1], simulated[-1].agent.controller.target
    before = target.clone()
    assert not torch.equal(before, copies.qpos)
    batch.reset([1], [Start(0, 0, 9)])
    assert torch.equal(copies.agent.controller.target[[0, 2]], before[[0, 2]])
    assert torch.equal(copies.agent.controller.target[1], copies.qpos[1])
    assert copies._elapsed_steps.tolist() == [1, 0, 1]
    assert bool(copies.scene._reset_mask.all())


def test_numbered_starts_go_to_their_slots(simulated):
    env = make(num_init_states=50, init_state_option="episode_id")
    batch = env.batch(3)
    batch.reset([2, 0], [Start(0, 40, 1), Start(0, 7, 1)])
    goals = simulated[-1].goal[:, 0]
    assert 40 <= goals[2] < 41
    assert 7 <= goals[0] < 8


def test_one_render_a_state_and_only_what_was_asked_for(simulated):
    batch = make().batch(3)
    batch.reset([0, 1, 2], [Start(0, 0, seed) for seed in range(3)])
    look(batch, [1])
    look(batch, [0, 2])
    assert batch.frame(1).shape == (16, 16, 3)
    assert simulated[-1].renders == 1
    batch.step(np.zeros((3, 4), np.float32), np.ones(3, bool))
    (seen,) = look(batch, [2])
    assert simulated[-1].renders == 2
    assert (seen["images"] == int(simulated[-1].goal[2, 0] * 255)).all()


def test_a_task_that_moves_the_others_is_refused(simulated, monkeypatch):
    known = make().facts
    monkeypatch.setattr(env_module, "facts_of", lambda params: known)  # arguments of a task's class are asked about
    batch = make(init_params={"task_kwargs": {"settles": True}}).batch(2)
    batch.reset([0, 1], [Start(0, 0, 1), Start(0, 0, 2)])
    with pytest.raises(ConfigError, match=r"moved others by 0\.01") as refused:
        batch.reset([1], [Start(0, 0, 3)])
    assert "sim_backend=cpu" in refused.value.remedy


def test_states_cannot_be_saved(simulated):
    env = make()
    env.reset(Start(0, 0, 1))
    with pytest.raises(ConfigError, match="cannot save a state"):
        env.get_state()


# -- where it cannot work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"init_params": {"id": "PegInsertionSide-v1"}}, "PegInsertionSide-v1 builds another scene for each start"),
        ({"renderer": "cpu"}, "pictures of a GPU simulation are rendered on the GPU"),
    ],
)
def test_what_cannot_be_simulated_on_a_gpu_is_refused(given, says):
    with pytest.raises(ConfigError, match=says) as refused:
        ManiSkillEnv({"id": "PickCube-v1", **given.pop("init_params", {})}, sim_backend="gpu", **given)
    assert "sim_backend=cpu" in refused.value.remedy


def test_an_unknown_backend():
    with pytest.raises(UnknownNameError, match=r"unknown sim_backend 'gpus'\. Did you mean 'gpu'"):
        ManiSkillEnv({"id": "PickCube-v1"}, sim_backend="gpus")


def test_on_the_cpu_there_is_no_batch():
    assert not isinstance(ManiSkillEnv({"id": "PickCube-v1"}), Batched)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_fix_is_the_cpu():
    with pytest.raises(ConfigError, match=r"cannot simulate on a GPU here: .*finds no CUDA GPU") as refused:
        ManiSkillEnv({"id": "PickCube-v1"}, sim_backend="gpu").preflight()
    assert "env.train.sim_backend=cpu" in refused.value.remedy


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        (
            "FileNotFoundError: there is no /root/.sapien/physx/105/libPhysXGpu_64.so", AssetsMissingError,
            r"PhysX's library: there is no /root/.*\.so",
        ),
        ("RuntimeError: sapien 2.2 has no GPU simulation", ConfigError, "sapien 2.2 has no GPU simulation"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(monkeypatch, said, error, says):
    monkeypatch.setattr(cuda, "try_in_process", lambda *_: (False, said))
    with pytest.raises(error, match=says):
        check_cuda()


def test_pictures_are_drawn_on_the_gpu_of_the_worker(monkeypatch):
    """Also of a task that a CPU simulates."""
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(env_module, "TaskSimulator", lambda *given: made.append((given[1], given[5])))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8a")
    for gpu, renderer in (("GPU-8a", "gpu"), ("3", "gpu"), ("3", "cpu")):
        monkeypatch.setenv("EMBODIED_RENDER_GPU", gpu)
        ManiSkillEnv({"id": "PickCube-v1"}, sim_backend="cpu", renderer=renderer).make_simulator(1)
    monkeypatch.delenv("EMBODIED_RENDER_GPU")
    ManiSkillEnv({"id": "PickCube-v1"}, sim_backend="cpu", renderer="gpu").make_simulator(1)
    assert made == [("sapien_cuda:1", "cpu"), ("sapien_cuda:0", "cpu"), ("cpu", "cpu"), ("gpu", "cpu")]


@pytest.mark.parametrize(("gpu", "backends", "waits"), [("2", ["sapien_cuda:2"], ["cuda:2"]), ("", ["gpu"], [])])
def test_a_worker_waits_for_the_gpu_that_draws(gpu, backends, waits, monkeypatch):
    """ManiSkill says only "cuda" where it waits, also while a CPU simulates."""
    calls: list[str] = []

    def make_env(params, render_backend, *others):
        assert render_backend in backends
        assert calls == waits, "before anything is made"
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(simulator, "_keep_renderer", lambda render_backend: None)
    monkeypatch.setattr(simulator, "make_env", make_env)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("EMBODIED_RENDER_GPU", gpu)
    with pytest.raises(InterruptedError):
        ManiSkillEnv({"id": "PickCube-v1"}, sim_backend="cpu", renderer="gpu").make_simulator(1)
    assert calls == waits


@pytest.mark.parametrize(
    ("shown", "gpu", "fix"),
    [
        ("2,3", "1", "name one of 2, 3"),
        ("2,-1,1", "1", "name one of 2"),
        ("GPU-8a", "0", "nvidia-smi's numbers"),
        ("", "1", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_cuda_does_not_show_is_no_place_in_the_list(shown, gpu, fix):
    variables = {"EMBODIED_RENDER_GPU": gpu, "CUDA_VISIBLE_DEVICES": shown}
    for ask in (cuda.device_of, lambda given: cuda.renderer_of("gpu", given)):
        with pytest.raises(ConfigError, match=f"names GPU {gpu}, and CUDA_VISIBLE_DEVICES={shown} hides it") as refused:
            ask(variables)
        assert fix in refused.value.remedy


def test_auto_is_the_gpu_where_there_is_one_and_the_task_can(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_DRIVER", tmp_path)
    monkeypatch.setattr(cuda, "_torch_has_cuda", lambda: True)
    assert not wants_gpu("auto", rebuilds=False, environ={})
    (tmp_path / "0000:01:00.0").mkdir()
    assert wants_gpu("auto", rebuilds=False, environ={})
    assert not wants_gpu("auto", rebuilds=True, environ={})
    assert not wants_gpu("auto", rebuilds=False, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert wants_gpu("gpu", rebuilds=False, environ={"CUDA_VISIBLE_DEVICES": ""})
    monkeypatch.setattr(cuda, "_torch_has_cuda", lambda: False)
    assert not wants_gpu("auto", rebuilds=False, environ={})
