"""Where a training may copy to or from the device, or wait for it: all of it, each place with its reason.

A place that is missing here fails ``on_gpu_runs.py``, and so does one that no run comes to any more.
"""

from __future__ import annotations

from device import FROM_HOST, TO_HOST, WAITS

LANES = "models/causal_lm/decoding/lane_decoding.py"

NAMED = {
    # once a run
    (FROM_HOST, "embodied/run/build/policy.py make_policy"): "the weights",
    **{
        (kind, f"embodied/algorithms/conformance/loss.py {function}"): "the loss is tried on made-up records"
        for kind, functions in (
            (FROM_HOST, ("_Check._call", "_Check._called.<genexpr>", "_Check._gradient", "_Check.importance")),
            (WAITS, ("_Check._called", "_Check._finite", "_Check.gradients", "_Check.records_alone", "_close")),
        )
        for function in functions
    },
    (FROM_HOST, "embodied/testing/policy.py FakePolicy.bind.<genexpr>"): "the fake policy's range of actions",
    (FROM_HOST, "models/openvla_oft/policy.py OpenVLAOFTPolicy._tokenise"): "the table of prompts, with each binding",
    (FROM_HOST, "models/shared/constants.py constant"): "constants, once each",
    (WAITS, "models/causal_lm/policy.py CausalLMPolicy._unknown"): "the first prompts, to say what they lack",
    # once a call of the policy in a rollout
    (FROM_HOST, "embodied/runtime/policy/policy_port.py PolicyRows.observations.<dictcomp>"): "rows of the slab",
    (FROM_HOST, "embodied/runtime/policy/policy_port.py OnePass._answer"): "the noise",
    (TO_HOST, "embodied/runtime/policy/policy_port.py PolicyRows._read"): "decisions, into the slab",
    # texts: once a rollout, or when lanes are filled
    (FROM_HOST, f"{LANES} LaneDecoding._allocate"): "the tokens that end a text",
    (FROM_HOST, "embodied/runtime/policy/decoder.py Decoder._admit"): "the noise",
    (TO_HOST, "models/causal_lm/decoding/prompts.py prompts_of"): "prompts, to see which are equal",
    (FROM_HOST, f"{LANES} LaneDecoding._there"): "prompts that are filled up, and numbers of lanes",
    (FROM_HOST, f"{LANES} LaneDecoding._start"): "numbers of lanes",
    # texts: once a token of all lanes
    (TO_HOST, f"{LANES} LaneDecoding._ended"): "the tokens, to see which texts have ended",
    # texts: when some have ended
    (FROM_HOST, f"{LANES} LaneDecoding._ended"): "numbers of lanes",
    (TO_HOST, f"{LANES} LaneDecoding.take"): "tokens, of which the answer is made",
    (FROM_HOST, f"{LANES} LaneDecoding.take"): "lengths",
    # texts: once a pass of an update
    (TO_HOST, "models/causal_lm/network/packing.py pack.<genexpr>"): "tokens and lengths, to lay texts end to end",
    (FROM_HOST, "models/causal_lm/network/packing.py to_device"): "where each token goes",
    (FROM_HOST, "models/causal_lm/evaluating.py _Pass._log_probs"): "the tokens that end a text",
    # once a pass of an update
    (FROM_HOST, "embodied/learn/batch.py gather.<dictcomp>"): "records of the slab",
    (FROM_HOST, "embodied/learn/step/passes.py RankRecords.gather.<dictcomp>"): "their instructions",
    (FROM_HOST, "embodied/learn/terms/term.py OptimizerBatch.part.of"): "weights, masks and advantages",
    (FROM_HOST, "embodied/algorithms/layout.py Counts.to"): "the executed steps",
    (WAITS, "embodied/learn/trainer.py Trainer._micro_batch"): "the loss, after backward",
    (WAITS, "embodied/learn/step/meters/update_metrics.py UpdateMetrics.add"): "what terms measured, after backward",
    (TO_HOST, "embodied/learn/step/meters/update_metrics.py UpdateMetrics._add_to_mean"): "the same",
    (FROM_HOST, "embodied/learn/step/meters/noise/sketch.py GradientSketch.records"): "which records are a group's",
    # once a pass without gradients
    (TO_HOST, "embodied/learn/score/score.py Scorer._with_proximal"): "log-probs of the proximal policy",
    (TO_HOST, "embodied/learn/score/drift.py with_drift"): "sums of log-ratios",
    (TO_HOST, "embodied/learn/score/reward_penalties.py RewardPenalties._kl_rewards"): "the KL in the rewards",
    # once an optimizer step
    (WAITS, "embodied/parallel/sharding.py Replicas.clip"): "the gradient's norm",
    (WAITS, "embodied/learn/step/engine.py value_grad_norm"): "that of the value head",
    # once an iteration
    (
        TO_HOST,
        "embodied/learn/step/meters/update_metrics.py on_cpu",
    ): "once a step: ratios, if early_stop_imp_ratio asks for them",
    (TO_HOST, "embodied/algorithms/metrics.py PolicyStats.metrics"): "the ratios' sums",
    (WAITS, "embodied/algorithms/metrics.py PolicyStats.metrics"): "the ratios' sums",
    (TO_HOST, "embodied/algorithms/metrics.py PolicyStats.quantile"): "their histogram",
    (TO_HOST, "embodied/learn/step/resting.py to_host"): "optimizer and reference (actor.enable_offload)",
    (FROM_HOST, "embodied/learn/step/resting.py to_device"): "the same, before the first use",
    (WAITS, "embodied/learn/step/meters/noise/sketch.py GradientSketch.check"): "once a run: whose a layer's rows are",
    (FROM_HOST, "embodied/learn/step/meters/noise/sketch.py GradientSketch._drawn.<genexpr>"): "projections",
    (FROM_HOST, "embodied/learn/step/meters/noise/meter.py NoiseMeter._take"): "layers that cannot be sketched",
    (TO_HOST, "embodied/learn/step/meters/noise/meter.py NoiseMeter._take"): "the sketches",
    # once a checkpoint
    (TO_HOST, "embodied/learn/checkpoint/snapshot.py Stager.__call__"): "everything that is saved",
    (WAITS, "embodied/learn/checkpoint/checkpoint.py Checkpoints._write"): "until it is on the host",
}

NAMED_SFT = {
    **{one: NAMED[one] for one in NAMED if one[1].startswith(("embodied/testing", "embodied/parallel", "models/"))},
    # once a run
    (FROM_HOST, "embodied/testing/policy.py FakePolicy.use_statistics.<genexpr>"): "the fake policy's range of actions",
    # once a pass
    (
        WAITS,
        "embodied/learn/step/loss_scale.py LossScale.backward",
    ): "backward of the index by a mask, which waits as the index does",
    (FROM_HOST, "embodied/learn/cloning.py Cloner._records.<dictcomp>"): "samples and their instructions",
    (FROM_HOST, "embodied/learn/terms/term.py OptimizerBatch.part.of"): "weights and masks",
    (FROM_HOST, "embodied/algorithms/layout.py Counts.to"): "the executed steps",
    (FROM_HOST, "embodied/learn/augment.py Augmentation.__call__"): "how the pictures are changed",
    (WAITS, "embodied/learn/cloning.py Cloner._step.backward"): "the loss, after backward",
    (
        WAITS,
        "embodied/learn/terms/nll.py NllTerm.losses",
    ): "losses of the tokens that count: the host waits for their number",
    # once a validation
    (WAITS, "embodied/learn/cloning.py Cloner._measured"): "which tokens count; the host waits for their number",
    (TO_HOST, "embodied/learn/cloning.py Cloner._measure"): "log-probs, and which tokens are the likeliest",
    (TO_HOST, "embodied/learn/cloning.py Cloner._measure.<listcomp>"): "the same",
}
"""The same for supervised training."""
