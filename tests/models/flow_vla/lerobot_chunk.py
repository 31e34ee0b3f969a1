"""Run in an environment with LeRobot: reads a folder with its own code and answers what lies in ``case.safetensors``.

python lerobot_chunk.py BENCHMARKS FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

sys.path.insert(0, sys.argv[1])


def main(folder: Path) -> None:
    from peers import lerobot_smolvla as peer

    policy = peer.open_policy(folder)
    # LeRobot's, behind the peer: it brings stand-ins for what is not installed
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

    case = load_file(folder / "case.safetensors")
    batch = peer.batch_of(policy, {**case, "prompt_mask": case["prompt_mask"].bool()})
    chunk = peer.chunk_of(policy, batch, case["noise"])
    back = PolicyProcessorPipeline.from_pretrained(
        folder, config_filename="policy_postprocessor.json", to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )  # fmt: skip
    save_file({"chunk": chunk.contiguous(), "actions": back(chunk.clone()).contiguous()}, folder / "answer.safetensors")


main(Path(sys.argv[2]))
