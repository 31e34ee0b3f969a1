"""Gives what a task has built a new PhysX scene, so that nothing of an earlier episode stays. Only for the worker."""

from __future__ import annotations

from typing import Any


def renew(env: Any) -> None:
    """Moves all bodies, cameras and lights of a CPU env of ManiSkill into a scene with a new physics system.

    ``BaseEnv.reset`` writes poses and velocities, but the PhysX scene keeps more: from the first contact on, the same
    start and the same actions lead to numbers that differ by 1e-8 to 1e-3, by what ran before. Removing the bodies
    and adding them to the same scene again does not help, nor does ``enable_enhanced_determinism``. In a new scene the
    numbers are those of an env that was just built (mani_skill 3.0.1, sapien 3.0.3). It costs 1 ms; ``reconfigure``,
    ManiSkill's own way, builds everything again in 230 ms. The renderer, and what it has loaded, stays.
    """
    import sapien

    scene = env.scene
    (old,) = scene.sub_scenes
    entities = list(old.entities)
    for entity in entities:
        entity.remove_from_scene()
    env._set_scene_config()  # settings of the process, which another env may have changed
    physics = sapien.physx.PhysxCpuSystem()
    physics.timestep = scene.px.timestep
    new = sapien.Scene([physics, old.render_system])
    for entity in entities:
        entity.add_to_scene(new)
    for body in physics.rigid_dynamic_components:
        if not body.kinematic:
            body.wake_up()  # resets its time at rest, which is kept with the body
    for link in physics.articulation_link_components:
        if link.is_root:
            link.wake_up()
    scene.sub_scenes, scene.px = [new], physics
