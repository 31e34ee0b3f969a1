"""Sections of off-policy learning: ``algorithm.sac.*`` and ``algorithm.replay.*``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.keys.base import Section

USUAL_SHARE = 0.5  # symmetric sampling


class SacConfig(Section):
    updates_per_record: float = Field(
        1.0,
        gt=0,
        description="Optimizer steps for each record that is collected (update-to-data ratio). It is kept exactly, "
        "whatever the speed of simulators.",
    )
    learning_starts: int = Field(
        1000,
        ge=1,
        description="Records that are collected before anything is learnt; their chunks are uniform in the range of "
        "the actions.",
    )
    target_rate: float = Field(
        0.005, gt=0, le=1, description="Share of the way that the target critics move to the critics in an update."
    )
    target_critics: int | None = Field(
        2,
        ge=1,
        description="Critics of a random subset, the same for a batch, of whose target critics the least counts "
        "(REDQ); null = all of actor.model.critics.",
    )
    actor_critics: Literal["least", "mean"] = Field(
        "least", description="What the actor makes large: the least of all critics, or their mean (REDQ)."
    )
    actor_interval: int = Field(1, ge=1, description="Updates of the critics to one of actor and temperature.")
    target_interval: int = Field(1, ge=1, description="Updates to one move of the target critics.")
    n_step: int = Field(
        1, ge=1, description="Records whose rewards a target sums before it takes a value; 1 = those of one chunk."
    )
    target_entropy: float | None = Field(
        None, description="Entropy of a chunk that the temperature aims at, nats; null = −1 for each of its numbers."
    )
    reset_beside_update: bool | None = Field(
        None,
        description="The first resets of an iteration begin when the last episode before it has ended, beside the "
        "updates; the weights that act are those after the updates, as ever. null = of a robot "
        "(EnvSpec.retry_safe=False).",
    )
    learn_temperature: bool = Field(
        True, description="Learn the weight of the entropy; false = it stays actor.model.temperature."
    )


class ReplayConfig(Section):
    capacity: int = Field(
        1_000_000,
        ge=1,
        description="Most records that stay in a process; the oldest leave first. Files and memory are laid out for no "
        "more than the run can collect.",
    )
    max_gb: float | None = Field(
        None,
        gt=0,
        description="Most GB (10⁹ bytes) of records that stay in a process, in files; the smaller of this and "
        "capacity holds. null = as many as capacity takes.",
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="Folder under which the run's records lie, such as one on a fast disk of the machine; null = "
        "replay/ in the run's folder. A resumed run must find them.",
    )
    demonstrations: list[str] = Field(
        [],
        description="Demonstrations that updates learn from beside the run's own records (RLPD, arXiv 2302.02948): "
        "LeRobot folders, LIBERO .hdf5 files or folders of them, ManiSkill .h5 files, read by data.camera_keys, "
        "state_keys, action_key, rotate_images and instruction. Each ends with the success of its task.",
    )
    demonstrated_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of demonstrations in each update, also of the run's own records in which a human "
        "intervened; null = 0.5 where there are demonstrations or env.train tells interventions, else 0.",
    )

    def share(self, intervenes: bool) -> float:
        """Returns the share of demonstrations in each update.

        Args:
            intervenes: env.train tells which records a human intervened in.
        """
        if self.demonstrated_share is not None:
            return self.demonstrated_share
        return USUAL_SHARE if self.demonstrations or intervenes else 0.0
