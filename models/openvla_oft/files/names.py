"""Translates other spellings of tensor names to those of the released checkpoints. What other programs put around
modules is left out as well (:mod:`embodied.weights.naming`).

==========================================================  ============================================
found in                                                    name there → name here
==========================================================  ============================================
prismatic training checkpoints (before conversion)          ``dino_featurizer.`` → ``vision_backbone.featurizer.``
                                                            ``siglip_featurizer.`` → ``….fused_featurizer.``
                                                            ``projector.{0,2,4}.`` → ``projector.fc{1,2,3}.``
                                                            ``llm.model.`` → ``language_model.model.``
timm                                                        ``ls1.gamma`` → ``ls1.scale_factor``
FiLM towers, in their own file or inside the model          ``blocks.N.block.`` → ``blocks.N.``
==========================================================  ============================================
"""

from __future__ import annotations

import re

from embodied.weights.naming import plain_name

# The order matters: each rule sees the result of the rules before it.
RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^vision_backbone\.vision_backbone\.", "vision_backbone."),
        (r"^(vision_backbone\.)?dino_featurizer\.", "vision_backbone.featurizer."),
        (r"^(vision_backbone\.)?siglip_featurizer\.", "vision_backbone.fused_featurizer."),
        (r"^(llm_backbone\.)?llm\.", "language_model."),
        (r"^projector\.(projector\.)?0\.", "projector.fc1."),
        (r"^projector\.(projector\.)?2\.", "projector.fc2."),
        (r"^projector\.(projector\.)?4\.", "projector.fc3."),
        (r"(\.blocks\.\d+)\.block\.", r"\1."),
        (r"(\.ls[12])\.gamma$", r"\1.scale_factor"),
    )
)


def released_name(name: str) -> str:
    """A tensor's name in the released checkpoints. Names that need no change are returned as they are."""
    name = plain_name(name)
    for pattern, replacement in RULES:
        name = pattern.sub(replacement, name)
    return name
