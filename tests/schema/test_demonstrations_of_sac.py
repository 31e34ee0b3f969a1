"""Keys of demonstrations beside own records: what cannot work is refused, with the right fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied import schema
from embodied.errors import ConfigError, EmbodiedError
from embodied.parallel.group import Group
from embodied.run.build import preflight
from embodied.schema.compose.compose import compose

h5py = pytest.importorskip("h5py")
SIZES = (
    "env=fake", "experiment=null", "algorithm=sac", "runner.device=cpu", "tracker=jsonl",
    *(f"env.{side}.{key}" for side in ("train", "eval") for key in ("action_dim=2", "state_dim=2", "pictures=false")),
)  # fmt: skip
SHOWN = "algorithm.replay.demonstrations=[{}]"
NOISE = ("model=head_noise", "actor.model.base.url=ws://127.0.0.1:1")


def composed(*keys: str):
    return compose([*SIZES, *keys], "train", ["tests/config"])


@pytest.mark.parametrize(
    ("keys", "said", "fix"),
    [
        ((SHOWN.format("a"), "algorithm.replay.demonstrated_share=0"), "no update would read", "share out"),
        ((SHOWN.format("a"), "env.train.reward_mode=dense"), "have no rewards but", "reward_mode=sparse"),
        ((SHOWN.format("a"), "algorithm.replay.demonstrated_share=0.001"), "no demonstration", "global_batch_size"),
        ((SHOWN.format("a"), "algorithm.replay.demonstrated_share=0.999"), "no record of the run", "global_batch_size"),
        ((SHOWN.format("a"), *NOISE), "does not say with which noise", "actor.model.head=residual"),
        ((SHOWN.format("a"), "algorithm.learner=policy_gradient"), "nothing is replayed", "algorithm=sac"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_keys_that_cannot_work_are_refused(keys, said, fix):
    with pytest.raises(ConfigError, match=said) as found:
        schema.check(composed(*keys).config)
    assert fix in found.value.remedy


def written(path: Path, actions: np.ndarray | None, state: int = 2) -> Path:
    """Writes a file of robomimic's layout with one episode; None = with none."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if actions is not None:
            one = data.create_group("demo_0")
            one["actions"] = actions
            one["obs/state"] = np.zeros((len(actions), state), np.float32)
    return path


GOOD = np.zeros((6, 2), np.float32)


@pytest.mark.parametrize(
    ("actions", "state", "said"),
    [
        (GOOD, 3, "as 'state', and the env gives"),
        (np.zeros((6, 7), np.float32), 2, "7 numbers an action"),
        (np.full((6, 2), 30.0, np.float32), 2, "outside the env's range"),
        (None, 2, "made.hdf5"),
    ],
    ids=["state", "actions", "units", "none"],
)
def test_demonstrations_that_do_not_fit_are_refused_before_anything_runs(tmp_path, actions, state, said):
    path = written(tmp_path / "made.hdf5", actions, state)
    with pytest.raises(EmbodiedError, match=said):
        checked(tmp_path, SHOWN.format(path))


def checked(folder: Path, *keys: str):
    return preflight.check(
        composed(*keys, "data.state_keys=[state]", "data.instruction=go", f"runner.output_dir={folder}"), Group()
    )


def test_demonstrations_are_read_and_a_path_that_is_missing_is_named_by_its_key(tmp_path):
    path = written(tmp_path / "made.hdf5", GOOD)
    assert len(checked(tmp_path, SHOWN.format(path)).demonstrations.train) == 1
    with pytest.raises(EmbodiedError, match="no demonstrations at") as found:
        checked(tmp_path, SHOWN.format(tmp_path / "missing"))
    assert "algorithm.replay.demonstrations=[PATH]" in found.value.remedy
    with pytest.raises(ConfigError, match=r"algorithm\.replay\.demonstrations has demonstrations twice"):
        checked(tmp_path, SHOWN.format(f"{path},{path}"))


def test_a_share_without_demonstrations_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there are no demonstrations") as found:
        checked(tmp_path, "algorithm.replay.demonstrated_share=0.5")
    assert "algorithm.replay.demonstrations=[PATH]" in found.value.remedy


def test_groups_are_of_one_beside_an_experiment_that_has_groups():
    config = compose(["algorithm=sac"]).config
    assert (config.algorithm.learner, config.algorithm.group_size) == ("sac", 1)
    assert compose(["algorithm=sac", "algorithm.group_size=2"]).config.algorithm.group_size == 2
    assert compose(["algorithm=grpo"]).config.algorithm.group_size == 4
