"""Mutants with names: small faults, most of which once passed all tests, and the tests that must fail with each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One replacement of text in one file.

    Args:
        file: path from the repository's root.
        before: text that occurs exactly once in the file.
        tests: pytest arguments, the narrowest that fail; ``path::name``.
        why: what goes wrong for a user.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str

    def apply(self, root: Path) -> str:
        """Change the file below ``root``; its text until now. Raises ValueError if ``before`` is not there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.before)) != 1:
            raise ValueError(
                f"mutant {self.name}: {self.file} has the text {self.before!r} {count} times, expected once; "
                "fix: correct the mutant in tests/mutants/named.py"
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
        return text


MUTANTS = [
    Mutant(
        "final-rows-of-terminated",
        "embodied/run/training/collector.py",
        "value_truncated=bootstraps, value_terminated=bootstraps and always",
        "value_truncated=bootstraps and always, value_terminated=bootstraps",
        ("tests/run/test_run.py::test_ppo_observes_the_end_of_truncated_episodes_and_of_all_if_told_so",),
        "truncated episodes would be treated as if their future were worth nothing",
    ),
    Mutant(
        "value-after-the-actions",
        "models/openvla_oft/policy.py",
        "self.value_head(read.hidden[:, 0])",
        "self.value_head(read.hidden[:, -1])",
        (
            "tests/models/openvla_oft/test_oft_policy.py::test_the_value_is_read_at_the_last_prompt_token",
            "tests/models/openvla_oft/test_oft_autoregressive.py::test_the_value_is_that_of_the_observation_whatever_is_drawn",
        ),
        "the value would depend on the actions that were drawn, and so be no baseline",
    ),
    Mutant(
        "records-of-an-older-version",
        "embodied/run/training/collector.py",
        "self._job(iteration, weight_version), stop,",
        "self._job(iteration, weight_version - 1), stop,",
        ("tests/run/test_run.py::test_records_carry_the_version_of_the_weights_that_acted",),
        "fresh records would count as stale by one update",
    ),
    Mutant(
        "noise-of-the-first-chunk",
        "embodied/runtime/policy/policy_port.py",
        "one.episode_id, one.t, declared",
        "one.episode_id, 0, declared",
        ("tests/runtime/test_rollout.py::test_actions_executed_are_the_tokens_drawn_from_the_keyed_noise",),
        "all chunks of an episode would be drawn from the same noise",
    ),
    Mutant(
        "final-values-of-task-0",
        "embodied/runtime/rollout/episodes.py",
        "self._write_keys(row, result.episode, t)\n",
        "self._write_keys(row, result.episode, t)\n        self._slab.arrays['task_id'][row] = 0\n",
        ("tests/runtime/test_final_observations.py::test_final_rows_carry_a_value_and_no_record",),
        "final observations would be valued under the instruction of another task",
    ),
    Mutant(
        "padding-is-seen",
        "models/openvla_oft/network/language.py",
        "mask = present[:, None, None, :]",
        "mask = torch.ones_like(present)[:, None, None, :]",
        ("tests/models/openvla_oft/test_oft_original.py::test_a_recorded_case_may_hold_a_padded_batch_of_embeddings",),
        "an observation's logits would depend on the longest instruction of its batch",
    ),
    Mutant(
        "no-copy-of-an-iteration",
        "embodied/run/rl.py",
        "saves.keep(iteration)",
        "pass",
        ("tests/run/test_stop.py::test_a_long_update_ends_with_the_pass_in_progress_and_no_earlier_iteration_is_lost",),
        "a stop in the midst of an update would lose all iterations since the last save",
    ),
    Mutant(
        "half-an-update-is-saved",
        "embodied/run/folder/saves.py",
        "        if whole and not there:",
        "        if not there:",
        ("tests/run/test_stop.py::test_a_long_update_ends_with_the_pass_in_progress_and_no_earlier_iteration_is_lost",),
        "the run that goes on would collect with weights between two iterations",
    ),
    Mutant(
        "deaf-between-passes",
        "embodied/learn/step/passes.py",
        "        if not go_on:\n            break",
        "        pass",
        ("tests/run/test_watching.py::test_passes_end_where_they_are_told_to",),
        "a stop would wait for all passes of an optimizer step, and be forgotten if the last one was granted",
    ),
    Mutant(
        "half-an-iteration-is-forgotten",
        "embodied/learn/cloning.py",
        '"totals": asdict(self._totals)',
        '"totals": {}',
        ("tests/run/test_stop.py::test_a_stopped_iteration_of_cloning_goes_on_at_its_next_step",),
        "cloning that was stopped would take the steps before the stop twice",
    ),
    Mutant(
        "silent-in-a-long-call",
        "embodied/observe/terminal/console.py",
        "lines.show_if_due()",
        "pass",
        ("tests/observe/test_console.py::test_a_phase_in_which_nothing_changes_is_not_silent",),
        "a pass of ten minutes would print nothing",
    ),
    Mutant(
        "bootstrap-of-90-percent",
        "embodied/observe/statistics.py",
        "[2.5, 97.5]",
        "[5.0, 95.0]",
        ("tests/observe/test_statistics.py::test_the_bootstrap_over_many_tasks_is_of_95_percent",),
        "an interval that is called one of 95 % would hold the difference nine times of ten",
    ),
    Mutant(
        "luck-where-there-is-none",
        "embodied/observe/statistics.py",
        "max(0.0, share - delta * delta)",
        "share",
        ("tests/observe/test_statistics.py::test_pairs_that_are_needed_are_the_fewest_of_connors_formula",),
        "far more starts would be asked for than large differences need",
    ),
    Mutant(
        "episodes-for-starts",
        "embodied/evaluation/compare.py",
        "wilson(min(sum(means), len(means)), len(means))",
        "wilson(sum(map(sum, side.values())), sum(map(len, side.values())))",
        ("tests/tools/test_compare_files.py::test_a_rate_is_as_sure_as_its_starts_are_many",),
        "many episodes of few starts would look like many starts",
    ),
    Mutant(
        "k3-without-bounds",
        "embodied/algorithms/kl.py",
        "clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)\n    return ((-d)",
        "clamp(min=None, max=MAX_LOG_RATIO)\n    return ((-d)",
        ("tests/algorithms/test_kl.py::test_estimates_and_their_gradients_are_finite_at_extremes",),
        "a token that the reference is certain of would make the whole gradient NaN",
    ),
    Mutant(
        "rounding-of-small-returns",
        "embodied/algorithms/advantages/advantages.py",
        "ROUNDING * (1 + high.abs())",
        "ROUNDING",
        ("tests/algorithms/test_advantages.py::test_rounding_is_relative_to_the_returns",),
        "rounding of large returns would be trained on, divided by its own deviation",
    ),
    Mutant(
        "penalised-is-not-paid",
        "embodied/learn/score/batches.py",
        "positive=(task.returns > 0)",
        "positive=(experience.returns > 0)",
        ("tests/learn/test_reward_penalties.py::test_whether_an_episode_paid_is_asked_before_penalties",),
        "a long right answer would not be imitated, and a wrong one with a lucky KL would",
    ),
    Mutant(
        "one-turn-for-all",
        "embodied/learn/score/reward_penalties.py",
        "return max_steps * min(room, most or room)",
        "return min(room, most or room)",
        (
            "tests/learn/test_reward_penalties.py::test_the_longest_episode_of_texts_has_its_longest_answer_at_every_turn",
        ),
        "texts of several turns would be penalised from their second answer on",
    ),
    Mutant(
        "one-dropout-for-all-ranks",
        "embodied/learn/cloning.py",
        " + self.engine.parallel.world.rank)",
        ")",
        ("tests/learn/test_cloning_ranks.py::test_each_rank_and_each_step_has_a_dropout_of_its_own",),
        "all ranks would drop the same numbers",
    ),
    Mutant(
        "small-decays-are-none",
        "embodied/learn/step/reference.py",
        "if share < 1 else",
        "if share < 0.5 else",
        ("tests/learn/test_reference.py::test_kept_weights_move_by_their_share_of_the_way",),
        "an average with a decay below one half would be the present weights",
    ),
    Mutant(
        "requests-of-the-last-rollout",
        "embodied/runtime/policy/policy_port.py",
        "self._draw, self._queue = draw, deque()\n        self._act",
        "self._draw = draw\n        self._act",
        ("tests/runtime/test_policy_port.py::test_no_request_is_left_from_a_rollout_that_was_broken_off",),
        "after a rollout that was broken off, old decisions would be written into rows of new episodes",
    ),
    Mutant(
        "solved-at-the-last-success",
        "embodied/runtime/worker/slot.py",
        "if result.success and not self._solved_at:",
        "if result.success:",
        ("tests/runtime/test_slot.py::test_an_episode_is_solved_at_its_first_success_however_often_it_succeeds",),
        "steps to success would count on while the episode goes on",
    ),
    Mutant(
        "turned-pictures",
        "embodied/serving/wire/pictures.py",
        "picture.resize((size[1], size[0]),",
        "picture.resize(size,",
        ("tests/serving/test_requests.py::test_pictures_that_are_not_square_keep_their_height_and_their_width",),
        "a policy of wide pictures would be given high ones",
    ),
    Mutant(
        "floats-for-integers",
        "embodied/serving/wire/requests.py",
        '"u": "iu",',
        '"u": "iuf",',
        ("tests/serving/test_requests.py::test_numbers_of_one_kind_stand_for_another_only_if_they_say_as_much",),
        "a client's mistake would be found at the first number that is not whole",
    ),
]
