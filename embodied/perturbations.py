"""Perturbations of episodes: what happens to pictures, observations and actions on their way between env and policy.

Robots do this to a policy, and simulators do not. Imports nothing: it belongs to the vocabulary.
``embodied.runtime.worker.perturb`` carries a perturbation out, in the env worker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Perturbation:
    """Strengths of the perturbations of an episode: cameras, pictures, actions, time. Every default leaves the episode
    as it is.

    The direction of a camera's motion, the sign of brightness and contrast, noise and dropped frames are drawn for each
    start. They do not depend on the strength: a stronger perturbation goes further in the same direction.
    """

    # cameras
    camera_move: float = 0.0  # m: each camera is moved so far in a direction of its own
    camera_turn: float = 0.0  # degrees: each camera is turned so far about an axis of its own
    # pictures
    brightness: float = 0.0  # pixels are multiplied by 1 + or − this
    contrast: float = 0.0  # distances of pixels from the picture's mean are multiplied by 1 + or − this
    blur: float = 0.0  # standard deviation of a Gaussian, as a share of the picture's height
    noise: float = 0.0  # standard deviation of normal noise on each value of a pixel, as a share of 255
    # observations
    latency: int = 0  # control steps by which an observation is older than it should be
    dropped_frames: float = 0.0  # chance of a camera's picture to be its last one once more
    # actions
    action_delay: int = 0  # control steps by which actions are executed later
    action_noise: float = 0.0  # standard deviation of normal noise, as a share of half an action's range
    gripper_delay: int = 0  # control steps by which the gripper's action is executed later still
    gripper_dim: int | None = -1  # the number of an action that is the gripper's; it gets no noise. −1 = the last

    @property
    def of_cameras(self) -> bool:
        """Whether cameras are moved or turned, which the simulator must do."""
        return bool(self.camera_move or self.camera_turn)

    @property
    def of_pictures(self) -> bool:
        """Whether pictures are changed or dropped."""
        return bool(self.brightness or self.contrast or self.blur or self.noise or self.dropped_frames)

    @property
    def of_numbers(self) -> bool:
        """Whether numbers of an action are changed one by one, which an action of several numbers must have."""
        return bool(self.action_noise or self.gripper_delay)


@dataclass(frozen=True)
class Condition:
    """A perturbation with its names in results, e.g. ``Condition("blur", "mild", Perturbation(blur=0.004))``."""

    kind: str
    strength: str
    by: Perturbation

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.strength}"


@dataclass(frozen=True)
class Perturbed:
    """The condition under which an episode of a plan is perturbed, and the key of its random numbers."""

    condition: Condition
    place: int  # keys what is drawn: id of the unperturbed episode with the same start; in training that of the group


@dataclass(frozen=True)
class Draws:
    """Message to an env worker: the perturbation of an episode, and the key of its random numbers."""

    by: Perturbation
    seed: int
    stream: int  # number in embodied.random.Stream
    place: int
