"""torchrl: ParallelEnv over SerialEnv."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from _ways import Answers
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase, ParallelEnv, SerialEnv


class AnswersEnv(EnvBase):
    """The env with torchrl's interface; its tensors are the arrays that it draws into."""

    def __init__(self, env: dict[str, Any], chunk: int) -> None:
        super().__init__(device=None)
        self._answers = Answers(env, chunk)
        self._out = self._answers.arrays()
        self._tensors = {name: torch.from_numpy(array) for name, array in self._out.items()}
        self.observation_spec = Composite(
            {name: Unbounded(tensor.shape, dtype=tensor.dtype) for name, tensor in self._tensors.items()}
        )
        self.action_spec = Unbounded((self._answers.num_actions,), dtype=torch.float32)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)
        self._false, self._seed = torch.zeros(1, dtype=torch.bool), 0

    def _reset(self, tensordict: TensorDict | None = None, **options: Any) -> TensorDict:
        self._answers.reset(self._seed)
        self._answers.observe(self._out)
        return TensorDict({**self._tensors, "done": self._false, "terminated": self._false}, [])

    def _step(self, tensordict: TensorDict) -> TensorDict:
        reward = torch.tensor([self._answers.step(tensordict["action"].numpy())], dtype=torch.float32)
        self._answers.observe(self._out)
        return TensorDict(
            {**self._tensors, "reward": reward, "done": self._false, "terminated": self._false}, []
        )  # fmt: skip

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed or 0


class ParallelWay:
    rest_s = 0.0

    def __init__(self, env: dict[str, Any], envs: int, workers: int, steps: int, chunk: int) -> None:
        torch.set_num_threads(1)
        make = partial(SerialEnv, envs // workers, partial(AnswersEnv, env, chunk))
        self._vector = ParallelEnv(workers, make, mp_start_method="fork", num_threads=1, use_buffers=True)
        self._action = self._vector.reset().select()
        self._action["action"] = torch.zeros(self._vector.action_spec.shape)
        self._envs, self._steps = envs, steps

    def round(self) -> int:
        with torch.inference_mode():
            for _ in range(self._steps):
                self._vector.step(self._action.copy())
        return self._envs

    def pids(self) -> list[int]:
        return [process.pid for process in self._vector._workers]

    def close(self) -> None:
        self._vector.close()
