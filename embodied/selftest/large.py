"""A policy of 7B parameters with random weights, which are drawn on the device: no download, and no host memory."""

from __future__ import annotations

import torch

from embodied.parallel.group import Group
from embodied.run.build.policy import device_of, make_policy, sampling
from embodied.selftest.place import Place
from embodied.selftest.policies import BuiltPolicy, configured, exact_arithmetic, use

LARGE = (
    "env=selftest_large", "env.train.max_episode_steps=8", "env.eval.max_episode_steps=8", "model=openvla_oft",
    "actor.model.model_path=null", "actor.model.unnorm_key=null", "actor.model.image_preset=rlinf",
    "actor.model.lora_init_weights=false",
)  # fmt: skip
LEAST = 20 * 2**30  # bytes that are free of the smallest GPU that experiment=libero_24gb is for


def lacks_room(place: Place) -> str:
    """Says why the device has too little memory for training the 7B policy; empty if it has enough."""
    if not place.on_gpu:
        return "a network of 7B parameters is for a GPU, and the device is cpu"
    torch.cuda.empty_cache()  # gives freed memory back to the device
    free, total = torch.cuda.mem_get_info(torch.device(place.device))
    if free < LEAST:
        return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free, and it takes {LEAST / 2**30:.0f}"
    return ""


def built(place: Place, keys: tuple[str, ...]) -> BuiltPolicy:
    """Builds the 7B policy, whose random weights are drawn on the device."""
    exact_arithmetic()
    use(place.device)
    config, sides = configured(place.device, *keys)
    device, env = device_of(config.runner, Group()), sides.train.spec
    with torch.device(device):
        policy = make_policy(config, device)
    policy.bind(env)
    algorithm = config.algorithm
    return BuiltPolicy(config, env, policy, device, sampling(algorithm.sampling_params, algorithm.logprob_dtype))
