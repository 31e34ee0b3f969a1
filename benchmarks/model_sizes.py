"""Parameters and memory of each ``model=``, as ``runner.dry_run=true`` counts them. Nothing is downloaded.

    python benchmarks/model_sizes.py             # the small ones, half a minute of CPU time
    python benchmarks/model_sizes.py --large     # the larger ones too, 7 B parameters from sizes alone: 1 GB, minutes
    python benchmarks/model_sizes.py mlp         # these

Each is counted with one observation a call and one record a pass, for a GPU, without what CUDA takes. ``make docs``
makes docs/models.md from results/models.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.run.memory.counting import count
from embodied.run.memory.footprint import CONTEXT
from embodied.schema.compose.compose import compose

RESULTS = Path(__file__).parent / "results" / "models.json"
FAKES = Path(__file__).parents[1] / "tests" / "config"
COMMON = (
    "tracker=jsonl", "runner.device=cpu", "env.num_workers=1", "rollout.policy_batch=1", "actor.micro_batch_size=1",
    "algorithm.rollout_epoch=4", "runner.max_epochs=2", "runner.save_interval=1",
)  # fmt: skip
ROBOT = ("env=fake", "env.train.cameras=1", "env.train.size=64")
TWO = ("env=fake", "env.train.cameras=2", "env.train.size=64")
RANDOM = ("env.train.size=224", "actor.model.model_path=null", "actor.model.unnorm_key=null")
SMALL = {
    "mlp": ("env=fake", "env.train.pictures=false"),
    "openvla_oft_tiny": ROBOT,
    "openvla_oft_quickstart": ROBOT,
    "openvla_oft_quickstart_libero": TWO,
    "openvla_oft_mid": ROBOT,
    "flow_vla_tiny": ROBOT,
    "causal_lm_tiny": ("env=arithmetic",),
}
LARGE = {"openvla_oft": (*ROBOT, *RANDOM), "openvla": (*ROBOT, *RANDOM), "smollm2": ("env=arithmetic",)}


def counted(model: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Counts a model.

    Returns:
        parameters, trained ones, and bytes: ``act`` of the policy that acts, ``train`` of a training at its fullest
        moment, ``record`` of the pass of a record, a part of ``train``.
    """
    checked = check(compose([*overrides, *COMMON, f"model={model}"], "train", [str(FAKES)]), Group())
    found = count(checked.config, checked.sides, Group(), checked.demonstrations)
    assert found.passes.update is not None, found.why_not
    runner = checked.config.runner.model_copy(update={"only_eval": True})
    acting = checked.config.model_copy(update={"runner": runner})
    act, train = (
        found.footprint(config, checked.sides, Group(), on_gpu=True).on_device - CONTEXT
        for config in (acting, checked.config)
    )
    sizes = [(one.numel(), one.requires_grad) for _, one in found.policy.named_parameters()]
    return {
        "overrides": list(overrides),
        "parameters": sum(size for size, _ in sizes),
        "trained": sum(size for size, trained in sizes if trained),
        "act": act, "train": train, "record": found.passes.update.most,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Count parameters and memory of each model=.")
    parser.add_argument("names", nargs="*", help="models; none = the small ones")
    parser.add_argument("--large", action="store_true", help="the larger ones too")
    given = parser.parse_args()
    every = SMALL | LARGE
    for name in given.names or [*(every if given.large else SMALL)]:
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        results[name] = counted(name, every[name])
        ordered = {name: results[name] for name in every if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
        print(name, json.dumps(results[name]), flush=True)


if __name__ == "__main__":
    main()
