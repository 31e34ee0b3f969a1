"""``embodied explain`` finds what a user calls a key, and prints no object."""

from __future__ import annotations

import pytest

from embodied.tools import explain
from embodied.tools.library.sources import GROUPS, arguments


def test_no_explanation_shows_an_object_or_a_sentinel():
    texts = ["\n".join(entry.text) for entry in explain.entries()]
    for section in GROUPS:
        texts += ["\n".join(explain._of_argument(f"{section}.{one.name}", one).text) for one in arguments(section)]
    assert len(texts) > 500
    assert [text for text in texts if " at 0x" in text or "MISSING" in text] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("actor.model.num_action_chunks", "actor.model.num_action_chunks"),
        ("num_action_chunks", "actor.model.num_action_chunks"),
        ("lora_rank", "actor.model.lora_rank"),
        ("chunk", "actor.model.num_action_chunks"),
        ("num_images", "actor.model.num_images_in_input"),
        ("auto", "model=auto"),
        ("group_size", "algorithm.group_size"),
        ("update_epoch", "algorithm.update_epoch"),
        ("approx_kl", "train/approx_kl"),
        ("num_generations", "algorithm.group_size"),
        ("learning_rate", "actor.optim.lr"),
        ("max_completion_length", "algorithm.sampling_params.max_new_tokens"),
        ("ppo", "algorithm=ppo"),
        ("rloo", "algorithm=rloo"),
        ("wandb", "tracker=wandb"),
        ("simplevla_rl", "protocol=simplevla_rl"),
        ("ent", "algorithm.entropy_bonus"),
    ],
)
def test_a_short_name_finds_the_keys_that_end_so(name, found, capsys):
    assert explain.main([name]) == 0
    assert f"{found} (" in capsys.readouterr().out


def test_a_key_of_a_model_names_the_page_of_models(capsys):
    assert explain.main(["lora_rank"]) == 0
    out = capsys.readouterr().out
    assert out.count("; docs/models.md") == out.count("actor.model.lora_rank (") == 3


TRL = {
    "num_generations": ["algorithm.group_size"],
    "learning_rate": ["actor.optim.lr"],
    "max_completion_length": ["algorithm.sampling_params.max_new_tokens"],
    "num_train_epochs": ["runner.max_epochs"],
    "per_device_train_batch_size": ["actor.micro_batch_size", "actor.global_batch_size"],
    "gradient_accumulation_steps": ["actor.global_batch_size"],
    "num_iterations": ["algorithm.update_epoch"],
    "beta": ["algorithm.kl_beta"],
    "epsilon": ["algorithm.clip_ratio_low", "algorithm.clip_ratio_high"],
    "epsilon_high": ["algorithm.clip_ratio_high"],
    "delta": ["algorithm.clip_ratio_c"],
    "max_grad_norm": ["actor.optim.clip_grad"],
    "peft_config.lora_alpha": [],  # of the model that a run has
}


@pytest.mark.parametrize("word", TRL)
def test_words_of_trl_are_keys_here(word):
    first, *keys = explain.explain(word)
    assert (first.name, first.kind) == (word, "key of another system")
    assert "TRL's key is here" in first.lines[0]
    assert "null" not in first.lines[0], "nothing is said of a value that nobody gave"
    assert [entry.name for entry in keys] == TRL[word]


def test_a_key_of_trl_that_is_none_here_says_why(capsys):
    assert explain.main(["mask_truncated_completions"]) == 0
    assert "TRL's key is left out here: answers that reach the longest length" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "no_such_thing_at_all", "."])
def test_a_name_that_nothing_has_is_an_error(name, capsys):
    assert explain.main([name]) == 2
    assert "fix:" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "never"), [("ent", "runner.experiment_name"), ("tp", "runner.output_dir")])
def test_a_few_letters_begin_a_word(name, never, capsys):
    explain.main([name])
    assert never not in capsys.readouterr().out


def test_what_a_choice_is_for_is_said(capsys):
    assert explain.main(["grpo", "gym", "mlp"]) == 0
    out = capsys.readouterr().out
    assert out.count("(choice)") >= 3
    assert "# " not in out
    assert "@package" not in out


def test_commands_of_a_choice_can_be_copied(capsys):
    assert explain.main(["libero_suite_sft"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("python -m embodied.sft experiment=libero_suite_sft")
    assert lines[at - 1] == "episodes=600 noise_std=0.1 demos.mistakes=0.4"
    assert lines[at - 2].startswith("python -m embodied.tools.demos ")
    assert lines[at - 2].endswith("\\")
