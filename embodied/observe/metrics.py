"""Table of all metrics: name, meaning, unit. No other metric can be logged, so this table is the documentation."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from embodied.errors import did_you_mean


@dataclass(frozen=True)
class Metric:
    """A row of the metrics table that a user's loss term brings along: name, meaning, unit, direction.

    Args:
        name: ``train/…``.
        better: the direction in which it should go, if there is one.
    """

    name: str
    meaning: str
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""

    @property
    def text(self) -> str:
        """Meaning, unit and direction, as the metrics table shows them."""
        direction = f"; {self.better} is better" if self.better else ""
        return ", ".join(filter(None, [self.meaning, self.unit])) + direction


METRICS: dict[str, str] = {
    # Episodes of an iteration.
    "rollout/success_rate": "share of episodes that succeeded, 0..1",
    "rollout/success_low": "lower end of the Wilson 95 % interval of the success rate, 0..1",
    "rollout/success_high": "upper end of the Wilson 95 % interval of the success rate, 0..1",
    "rollout/return_mean": "mean over episodes of the sum of rewards, after reward_coef and use_rel_reward",
    "rollout/reward_model_mean": "mean score of the reward model (use_reward_model), before reward_model_weight",
    "rollout/return_std": "standard deviation over episodes of the sum of rewards",
    "rollout/progress_mean": "mean over episodes of how far they got by the env's own measure (what reward_mode dense "
    "pays), its largest value in the episode; 1 = solved; not of texts",
    "rollout/episode_length_mean": "mean length of an episode, control steps",
    "rollout/episodes": "episodes finished in the iteration, count",
    "rollout/intervention_share": "share of the records in which a human overrode an action, 0..1; only where the env "
    "declares interventions",
    "rollout/records": "chunk decisions recorded in the iteration, count",
    "rollout/env_steps": "control steps executed in the iteration, count",
    "rollout/env_steps_per_s": "control steps a second of rollout, over all env slots, 1/s",
    "rollout/chunks_per_s": "chunk decisions a second of rollout, over all env slots, 1/s",
    "rollout/batch_size_mean": "mean number of observations that one call of the policy answered, rows",
    "rollout/worker_restarts": "env workers that failed in the iteration and were replaced, count",
    "rollout/zero_advantage_share": "share of groups whose advantages are all 0, so that they give no gradient, 0..1",
    "rollout/sampling_rounds": "rollouts until enough groups had a gradient (dynamic_sampling), if more than 1, count",
    "rollout/dropped_groups": "groups that were run and replaced because they had no gradient, count",
    "rollout/greedy_episodes": "episodes without sampling, one a start (adv_type remax), count",
    "rollout/greedy_return_mean": "mean over those episodes of the sum of rewards",
    "rollout/weight_sync_bytes": "bytes of weights that went to the processes that only collect, count",
    "rollout/action_bin_usage": "share of a discrete policy's action bins that were sampled at least once, 0..1",
    "rollout/tokens": "tokens that a policy of texts wrote in the iteration, count",
    "rollout/tokens_per_s": "tokens a second of rollout, 1/s",
    "rollout/tokens_mean": "mean length of an answer, tokens",
    "rollout/full_length_share": "share of answers that are as long as an answer may be (max_new_tokens), 0..1",
    "rollout/verifier_failures": "answers of the iteration whose verifier raised, gave no number or did not end, count",
    "rollout/skipped_problems": "rows of the training data that are no problems, or too long, and are not asked, count",
    "rollout/engine_restarts": "inference engines that failed since the row before and were replaced, count",
    "rollout/engine_logprob_gap": "largest difference between an inference engine's log-prob and the policy's own, of "
    "the first texts after the weights had changed, nats",
    "rollout/engine_logprob_gap_mean": "mean absolute difference of the same, nats",
    # Updates of an iteration.
    "train/loss": "mean over the iteration's updates of what is minimised, the sum of all terms of the loss",
    "train/value_loss": "mean over the iteration's updates of the value head's loss",
    "train/explained_variance": "1 - Var(target - value)/Var(target) when they acted; 1 = perfect, 0 = a constant",
    "train/grad_norm": "mean over updates of the gradient's 2-norm before clipping",
    "train/noise_scale_episodes": "episodes that an iteration must have for a signal_to_noise of 1, as a mean over "
    "iterations of which an earlier one counts less; none while the gradient is not above its noise "
    "(calculate_noise_scale)",
    "train/signal_to_noise": "squared length of the true gradient over that of the noise in the sum of an iteration's "
    "gradients, the same mean; 0: not above the noise",
    "train/signal_to_noise_error": "its standard error, by the scatter of iterations; none before five are measured",
    "train/lr": "learning rate of the last update",
    "train/ratio_mean": "mean probability ratio between the present and the acting policy; 1 = no change",
    "train/ratio_max": "largest such ratio",
    "train/ratio_p01": "1 % quantile of these ratios, known to 0.05 % of itself between e^-4 and e^4",
    "train/ratio_p50": "their median, as exactly",
    "train/ratio_p99": "their 99 % quantile, as exactly",
    "train/clip_share": "share of ratios whose gradient the clip removed, 0..1",
    "train/clip_share_low": "that of ratios below 1, 0..1",
    "train/clip_share_high": "that of ratios above 1, 0..1",
    "train/approx_kl": "mean over the ratios r of r - 1 - log r, an estimate of KL(acting || present), nats",
    "train/kl_reference": "mean KL estimate of an element (logprob_type) towards the reference (kl_beta), nats",
    "train/kl_beta": "weight of that KL in the iteration (kl_ctrl)",
    "train/behaviour_weight_mean": "mean weight that corrects for the acting policy (loss_type tis); 1 = no difference",
    "train/entropy": "mean entropy of the actions of what was trained on, at algorithm.entropy_type, nats",
    "train/critic_loss": "mean over records and updates of half the squared error of the critics, summed over critics "
    "(learner sac)",
    "train/actor_loss": "mean of what the actor minimises: temperature times log-density minus value (learner sac)",
    "train/q_mean": "mean value that the critics give to what was done, of the records that were read (learner sac)",
    "train/q_target_mean": "mean of what they should have said (learner sac)",
    "train/policy_entropy": "mean of minus the log-density of a chunk that the actor draws, nats (learner sac)",
    "train/temperature": "weight of the entropy after the iteration (learner sac)",
    "train/demonstrations": "demonstrated chunks that updates draw from: those of files, and own records in which a "
    "human intervened, count",
    "train/demonstrations_clamped": "demonstrated chunks of files that lie beyond what the policy can do, so that the "
    "nearest that it can stand in their place, share",
    "train/replay_entries": "records and last observations in the replay buffers of all processes, count",
    "train/records": "records that went forward and backward, each once whatever update_epoch is, count",
    "train/skipped_records": "records left out of the forward pass because their advantage is 0, count",
    "train/optimizer_steps": "optimizer updates in the iteration, count",
    "train/bad_updates": "updates skipped in the iteration because loss or gradient was not finite, count",
    "train/bad_ratios": "most elements of a pass whose log-ratio was not finite; their update is skipped, count",
    "train/overflows": "updates skipped because the scaled gradient overflowed fp16; the scale was halved, count",
    "train/loss_scale": "factor on the loss before the backward pass (fp16)",
    "train/filtered_groups": "groups left out because their mean return is beyond the bounds (filter_rewards), count",
    "train/early_stops": "epochs that ended early because the mean ratio passed early_stop_imp_ratio, count",
    "train/weight_version": "optimizer updates since the run began, count",
    "train/logprob_gap": "largest difference of recorded log-probs from the trainer's before the first update, nats; "
    "none if older weights have acted",
    "train/logprob_gap_mean": "mean absolute difference of the same, nats",
    "train/value_grad_norm": "mean over updates of the 2-norm of the value head's gradient before clipping",
    "train/start_prior_episodes": "episodes that a task's value counts as much as in that of a start (start_value), "
    "count",
    "train/start_memory_share": "mean over episodes of the share of earlier iterations' episodes of the same start in "
    "what is taken off the return (start_value); 0..1, the rest is that of its task and of its group",
    "train/start_variance_share": "sum of (return - baseline)² over the sum with the task's value as baseline "
    "(start_value); 1 = starts tell nothing",
    "train/start_variance_to_group": "the same over that with the mean of the group's others, the baseline of rloo, "
    "where there are others; below 1 = less noise than with groups alone",
    "train/staleness_mean": "mean over records of the optimizer updates between acting and training, count",
    "train/staleness_max": "largest such number, count",
    "train/rank_imbalance": "most tokens (records of policies that count none) of a process in an optimizer step, "
    "relative to the mean over processes: mean over steps; 1 = all have equally many (enable_dp_load_balance)",
    "train/rank_imbalance_before": "the same if records had stayed in the processes that collected them",
    "train/own_successes/task/<n>": "successes of task n that are remembered (reward_mode own_successes), count",
    "train/tasks_without_success": "tasks of which no success was seen yet (reward_mode own_successes), count",
    "train/failure_potential_mean": "mean over failed episodes of how near they came to an earlier success of their "
    "task, the largest potential of their states (reward_mode own_successes), 0..1; none before there is a success",
    "train/samples_per_s": "records that went forward and backward, once an epoch (update_epoch), a second of the "
    "updates' wall time, 1/s",
    "train/tokens_per_s": "their action tokens a second, 1/s",
    "train/tflops_per_s": "floating-point operations of these passes by the policy's formula (flops), 10¹² a second",
    # An iteration of supervised training.
    "sft/loss": "mean over updates of -log p of demonstrated tokens, nats, or of the policy's own loss; augmented",
    "sft/clean_loss": "the same loss after the iteration, of some of the samples and without augmentation",
    "sft/token_accuracy": "share of the demonstrated tokens of these samples that are the likeliest, 0..1",
    "sft/val_loss": "the same loss of held-out demonstrations",
    "sft/val_token_accuracy": "share of the tokens of held-out demonstrations that are the likeliest, 0..1",
    "sft/grad_norm": "mean over updates of the gradient's 2-norm before clipping",
    "sft/lr": "learning rate of the last update",
    "sft/optimizer_steps": "optimizer updates in the iteration, count",
    "sft/bad_updates": "updates skipped in the iteration because loss or gradient was not finite, count",
    "sft/overflows": "updates skipped in the iteration because the loss was scaled too far for fp16, count; if any",
    "sft/epoch": "passes over the demonstrations since the run began",
    "sft/samples_per_s": "samples trained on, a second of the iteration's updates and validation, 1/s",
    # Evaluation.
    "eval/success_rate": "share of evaluation episodes that succeeded, 0..1",
    "eval/success_low": "lower end of the Wilson 95 % interval of the success rate, 0..1",
    "eval/success_high": "upper end of the Wilson 95 % interval of the success rate, 0..1",
    "eval/perturbed_success_rate": "mean over the conditions of env.eval.perturb of the share of their episodes that "
    "succeeded, 0..1",
    "eval/perturbed_success_lowest": "lowest such share of a condition, 0..1",
    "eval/return_mean": "mean over evaluation episodes of the sum of rewards",
    "eval/progress_mean": "mean over evaluation episodes of how far they got, as rollout/progress_mean",
    "eval/episodes": "evaluation episodes, count",
    "eval/episode_length_mean": "mean control steps of evaluation episodes; not of texts",
    "eval/time_to_success_mean": "mean control steps until the first success, of the evaluation episodes that have "
    "one; if any, and not of texts",
    "eval/time_to_success_min": "fewest control steps until the first success of an evaluation episode; as the mean",
    "eval/max_steps": "control steps at which evaluation episodes were cut off, count",
    "eval/env_max_steps": "control steps of the env's own limit; with another, success is not the benchmark's, count",
    "eval/worker_restarts": "env workers that failed in the evaluation and were replaced, count",
    "eval/verifier_failures": "answers of the evaluation whose verifier raised, gave no number or did not end, count",
    "eval/pass_at/<n>": "chance that of n episodes of a start one succeeds (val_group_size), without bias, 0..1",
    "eval/maj_at/<n>": "chance that what most of n answers to a problem say is right, equally many votes sharing it: "
    "mean over its sets of n answers, or over 4,096 that the seed draws if there are more than 16,384; if the "
    "verifier says what was answered, 0..1",
    "eval/task/<n>/success_rate": "share of the evaluation episodes of task n that succeeded; not of envs whose tasks "
    "have kinds, 0..1",
    "eval/kind/<name>/success_rate": "share of the evaluation episodes of tasks of a kind that succeeded, of envs "
    "whose tasks have kinds (LIBERO-Plus), 0..1",
    # Time.
    "time/rollout_s": "wall time of the iteration's rollout, s; with algorithm.max_staleness it ran beside the update "
    "of the iteration before",
    "time/train_s": "wall time of the iteration's updates, s",
    "time/save_s": "wall time that the checkpoint of the iteration before held up the run, s",
    "time/eval_s": "wall time of the evaluation, s",
    "time/rollout_share": "rollout_s as a share of iteration_s; with algorithm.max_staleness both shares add up to "
    "more than 1",
    "time/train_share": "train_s as a share of iteration_s, 0..1",
    "time/eval_share": "eval_s as a share of iteration_s, 0..1",
    "time/save_share": "save_s as a share of iteration_s, 0..1",
    "time/train_mfu": "tflops_per_s as a share of the device's peak (runner.peak_tflops; none without it), 0..1",
    "time/iteration_s": "wall time since the iteration before was logged, s",
    "time/run_s": "wall time of all launches of the run so far, evaluations and what interruptions lost included, each "
    "from the opening of the run's folder on; none of a run that an older version began, s",
    "time/run_cpu_s": "CPU time of the same: its processes and those that they start, such as env workers; without "
    "simulator hosts on other machines, s",
    "time/policy_share": "share of the rollout's wall time spent in the policy, 0..1",
    "time/env_wait_share": "share of the rollout's wall time spent waiting for env workers, 0..1",
    "time/slot_idle_share": "share of the slots' time without a command: waiting for the policy or an episode, 0..1",
    "time/rank_wait_share": "share of the rollout's wall time that processes waited for the slowest (torchrun), 0..1",
    "time/weight_sync_s": "wall time in which the first process that trains waited for weights that went to those that "
    "only collect, s",
    "time/weight_transfer_s": "wall time in which these weights were under way, also beside an update, s",
    "time/engine_load_s": "wall time in which the weights went to the inference engine, s",
    "time/worker_reset_s": "seconds in resets (building simulators included), summed over env workers, s",
    "time/worker_step_s": "seconds in control steps, summed over env workers, s",
    "time/worker_render_s": "seconds in observations, summed over env workers, s",
    "time/worker_video_s": "seconds in frames for videos, summed over env workers, s",
    "memory/device_peak_gb": "most memory that tensors took on a GPU since the last row, 10⁹ bytes",
    "memory/pss_gb": "memory of the training processes, their env workers and what forks these, shared pages counted "
    "once, 10⁹ bytes",
    "memory/pss_policy_gb": "part of pss_gb: the training processes, 10⁹ bytes",
    "memory/pss_template_gb": "part of pss_gb: the processes that fork env workers (env.start_method; none without "
    "them), 10⁹ bytes",
    "memory/pss_slots_gb": "part of pss_gb: env workers with their simulators, 10⁹ bytes",
}
"""Name → meaning and unit. ``<n>`` stands for a number, ``<name>`` for a word."""
SAMPLED = "eval_sampled"
"""Begins the names of a sampled evaluation beside a greedy one (``do_sample=both``), in place of ``eval``."""
STAGES: dict[str, str] = {
    "rollout": "training, once an iteration, of its rollout",
    "train": "training, once an iteration, of its updates",
    "sft": "supervised training, once an iteration, of its updates and its validation",
    "eval": "an evaluation: of eval, or of training and supervised training each runner.val_check_interval iterations",
    "time": "training and supervised training, once an iteration, from the sections that its stages are timed by",
    "memory": "training, once an iteration: after its rollout, and of a GPU after its updates",
}
"""Group of metrics → what writes it."""


def of_evaluation(name: str, sampled: bool) -> str:
    """Returns the trackers' name of an evaluation's metric, table or video: ``eval/success`` → ``eval_sampled/success``
    if ``sampled``.

    Args:
        sampled: of the sampled evaluation beside a greedy one.
    """
    return f"{SAMPLED}/{name.removeprefix('eval/')}" if sampled else name


def check(names: Iterable[str], others: Container[str] = ()) -> None:
    """Raises ValueError if one of ``names`` (or of the keys of a mapping) is neither in :data:`METRICS` nor
    in ``others``.

    Raises:
        ValueError: a name is undocumented. This is a bug of ours, so it is no ``EmbodiedError``.
    """
    for name in names:
        if name not in others and not is_documented(name):
            raise ValueError(
                f"undocumented metric '{name}'.{did_you_mean(name, METRICS)} "
                "Name and meaning belong in embodied/observe/metrics.py"
            )


@cache
def is_documented(name: str) -> bool:
    """Whether ``name`` is in the table, e.g. ``eval/task/7/success_rate``."""
    if name.startswith(f"{SAMPLED}/"):
        name = f"eval{name.removeprefix(SAMPLED)}"
    return any(pattern.fullmatch(name) for pattern in _patterns())


def markdown() -> str:
    """Formats the metrics table as markdown, one heading and table per group (the part of a name before the first
    slash)."""
    parts: list[str] = []
    both = (
        " With `algorithm.val_sampling_params.do_sample=both` these are the greedy evaluation's, and "
        f"`{SAMPLED}/…` has the same of the sampled one."
    )
    for group in dict.fromkeys(name.split("/")[0] for name in METRICS):
        rows = [f"| `{name}` | {_cell(text)} |" for name, text in METRICS.items() if name.startswith(f"{group}/")]
        parts.append(
            "\n".join(
                [
                    f"## {group}",
                    "",
                    f"Written by {STAGES[group]}.{both if group == 'eval' else ''}",
                    "",
                    "| name | meaning, unit |",
                    "|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(re.escape(name).replace("<n>", r"\d+").replace("<name>", r"\w+")) for name in METRICS)


def _cell(text: str) -> str:
    """Escape bars: a bar would end the cell of a markdown table."""
    return text.replace("|", "\\|")
