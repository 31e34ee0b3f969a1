"""The policy as the runtime sees it: decisions, agreement of act and evaluate, independence of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from embodied.errors import CheckpointError, SpecMismatchError
from embodied.testing import check_policy
from embodied.types import ArraySpec, ContinuousAction, Sampling, TextAction

VARIANTS = [
    {},
    {"use_proprio": True, "value_head": True, "value_type": "action_level"},
    {"num_images_in_input": 2, "stop_token": False, "center_crop": True},
    {"attention": "causal"},
    {"attn_implementation": "eager"},
    {"is_lora": True, "lora_rank": 4, "lora_init_weights": False},
    {"is_lora": True, "lora_rank": 4, "precision": "bf16"},
    {"is_lora": True, "lora_rank": 4, "precision": "fp16"},
    {"precision": "fp16", "attn_implementation": "eager", "attention": "causal", "use_proprio": True},
    {"num_action_chunks": 2, "vocab_size": 2048, "hidden_size": 64, "vision_num_layers": 2},
]


@pytest.mark.parametrize("keys", VARIANTS)
def test_every_variant_satisfies_the_protocol(make, env, keys) -> None:
    check_policy(make(**keys), env)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.6, top_k=20, top_p=0.9), Sampling(do_sample=False)]
)
def test_act_and_evaluate_agree(make, observe, noise, sampling) -> None:
    policy, obs = make(use_proprio=True, value_head=True), observe(6)
    fields = policy.act(obs, noise(6), sampling).fields
    result = policy.evaluate({**obs, **fields}, sampling)
    assert (result.logprobs - fields["logprobs"]).abs().max() <= 1e-5
    assert (result.value - fields["value"]).abs().max() <= 1e-5


def test_act_and_evaluate_compute_log_probs_in_the_same_format(make, observe, noise) -> None:
    """With equal logits, so the ratio is 1 to the bit."""
    policy, obs, sampling = make(), observe(6), Sampling(logprob_dtype="bfloat16")
    fields = policy.act(obs, noise(6), sampling).fields
    logprobs = policy.evaluate({**obs, **fields}, sampling).logprobs
    assert torch.equal(logprobs, fields["logprobs"])
    whole = policy.evaluate({**obs, **fields}, Sampling()).logprobs
    assert 0 < (logprobs - whole).abs().max() < 0.05


def test_to_call_it_is_to_evaluate(make, observe, noise) -> None:
    """Wrappers hook the call."""
    policy, obs = make(value_head=True), observe(2)
    records = {**obs, **policy.act(obs, noise(2), Sampling()).fields}
    called, evaluated = policy(records, Sampling(), distribution=True), policy.evaluate(records, Sampling(), True)
    for name in ("logprobs", "entropy", "value", "distribution"):
        assert torch.equal(getattr(called, name), getattr(evaluated, name)), name


def test_the_value_is_read_at_the_last_prompt_token(make, observe, noise) -> None:
    """That has seen the observation and no action token: the first read-out position."""
    policy, obs = make(value_head=True, use_proprio=True), observe(3)
    with torch.no_grad():
        hidden = policy.parts.read_out(policy.inputs(obs)).hidden
        first, last = policy.value_head(hidden[:, 0]), policy.value_head(hidden[:, -1])
    assert (first - last).abs().max() > 1e-2
    torch.testing.assert_close(policy.act(obs, noise(3), Sampling()).fields["value"], first, atol=1e-5, rtol=0)


def test_a_decision_has_exactly_the_declared_fields(make, observe, noise) -> None:
    policy = make(value_head=True, value_type="action_level")
    fields = policy.act(observe(2), noise(2), Sampling()).fields
    assert {n: (tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for n, t in fields.items()} == {
        n: (s.shape, s.dtype) for n, s in policy.spec.decision.items()
    }
    assert policy.spec.decision["value"] == ArraySpec((8,), "float32")
    assert fields["action_tokens"].min() >= 768
    assert fields["action_tokens"].max() < 1024


def test_unless_told_so_there_is_no_value(make, observe, noise) -> None:
    policy = make()
    assert policy.value_head is None
    assert "value" not in {*policy.spec.decision, *policy.act(observe(1), noise(1), Sampling()).fields}


def test_actions_are_the_tokens_decoded(make, observe, noise) -> None:
    """Token 1023 − i has the centre −1 + (2i + 1)/255, the env's range is [−1, 1]; 1e-8 comes with the statistics."""
    policy = make()
    fields = policy.act(observe(2), noise(2), Sampling()).fields
    index = (1023 - fields["action_tokens"]).clamp(max=254).view(2, 8, 7)
    torch.testing.assert_close(fields["actions"], -1 + (2 * index + 1) / 255)


def test_encode_actions_is_the_inverse_of_decode(make) -> None:
    policy = make(policy_setup="libero")
    actions = torch.rand(3, 8, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    actions[..., 6] = actions[..., 6].sign()
    again = policy.decode_actions(policy.encode_actions(actions)["action_tokens"])
    assert (again - actions)[..., :6].abs().max() <= 2 / 255
    assert torch.equal(again[..., 6], actions[..., 6])


def test_a_row_does_not_depend_on_the_rest_of_its_batch(make, observe, noise) -> None:
    policy, obs, uniform = make(use_proprio=True, value_head=True), observe(6), noise(6)
    together = policy.act(obs, uniform, Sampling()).fields
    for row in range(6):
        alone = policy.act({n: t[row : row + 1] for n, t in obs.items()}, uniform[row : row + 1], Sampling()).fields
        for name in ("logprobs", "value", "actions"):
            torch.testing.assert_close(alone[name][0], together[name][row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("keys", [{}, {"attention": "causal"}, {"attn_implementation": "eager"}])
def test_prompt_padding_is_exact(make, env, observe, noise, keys) -> None:
    """A task that is padded beside longer instructions answers as it does alone, without any padding."""
    obs = {**observe(2), "prompt": torch.zeros(2, dtype=torch.int32)}
    padded, alone = make(**keys), make(tasks=env.tasks[:1], **keys)
    assert padded.padded
    assert not alone.padded
    assert padded.prompts.shape[1] > alone.prompts.shape[1]
    one, two = (p.act(obs, noise(2), Sampling()).fields["logprobs"] for p in (padded, alone))
    torch.testing.assert_close(one, two, atol=2e-5, rtol=0)


def test_attention_is_what_was_asked_for(make, observe, noise) -> None:
    """Bidirectional: the first action token sees the stop token behind it; causal: it cannot."""
    for attention, sees in (("bidirectional", True), ("causal", False)):
        with_stop = make(attention=attention, stop_token=True).act(observe(2), noise(2), Sampling()).fields["logprobs"]
        without = make(attention=attention, stop_token=False).act(observe(2), noise(2), Sampling()).fields["logprobs"]
        assert ((with_stop - without).abs().max() > 1e-3) == sees


def test_instruction_image_and_state_matter(make, observe, noise) -> None:
    policy, obs = make(use_proprio=True), observe(3)
    base = policy.act(obs, noise(3), Sampling()).fields["logprobs"]
    for name, changed in (
        ("images", 255 - obs["images"]),
        ("state", -obs["state"]),
        ("prompt", obs["prompt"].flip(0)),
    ):
        other = policy.act({**obs, name: changed}, noise(3), Sampling()).fields["logprobs"]
        assert (other - base).abs().max() > 1e-3, name


def test_the_second_image_is_read_only_when_asked_for(make, observe, noise) -> None:
    obs = observe(2)
    changed = obs["images"].clone()
    changed[:, 1] = 0
    for images, reads in ((1, False), (2, True)):
        policy = make(num_images_in_input=images)
        one, two = (
            policy.act({**obs, "images": i}, noise(2), Sampling()).fields["logprobs"] for i in (obs["images"], changed)
        )
        assert ((one - two).abs().max() > 1e-3) == reads


def test_other_camera_sizes_are_resized(make, env, observe, noise) -> None:
    policy = make()
    policy.bind(replace(env, obs={**env.obs, "images": ArraySpec((2, 96, 128, 3), "uint8")}))
    images = torch.randint(0, 256, (2, 2, 96, 128, 3), dtype=torch.uint8)
    assert policy.act({**observe(2), "images": images}, noise(2), Sampling()).fields["actions"].isfinite().all()


def test_without_statistics_the_env_range_is_used(make, env, observe, noise) -> None:
    policy = make()
    policy.bind(replace(env, action=ContinuousAction((0.0,) * 7, (10.0,) * 7)))
    actions = policy.act(observe(4), noise(4), Sampling()).fields["actions"]
    assert actions.min() >= 0
    assert actions.max() <= 10
    assert actions.max() > 9


def test_grippers_of_libero_are_open_or_closed(make, observe, noise) -> None:
    actions = make(policy_setup="libero").act(observe(4), noise(4), Sampling()).fields["actions"]
    assert set(actions[..., 6].flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(("setup", "opens"), [("libero", -1.0), ("bridge", 1.0), ("none", None)])
def test_a_converted_gripper_has_the_range_0_to_1_without_statistics(make, env, setup, opens) -> None:
    """Half of its 255 bins open it. In the range of the env, −1 … 1, a quarter would."""
    policy = make(policy_setup=setup)
    tokens = torch.arange(769, 1024).unsqueeze(1).expand(-1, 56)
    gripper = policy.decode_actions(tokens)[:, 0, 6]
    if opens is None:
        assert gripper.tolist() == pytest.approx([1 - (2 * i + 1) / 255 for i in range(255)], abs=1e-6)
    else:
        assert (policy.parts.now.action_range.low[-1], policy.parts.now.action_range.high[-1]) == (0.0, 1.0)
        assert set(gripper.tolist()) == {-1.0, 1.0}
        assert gripper.eq(opens).sum() == 128
    assert policy.parts.now.action_range.low[:-1] == (-1.0,) * 6


def test_act_leaves_dropout_out_and_the_mode_alone(make, observe, noise) -> None:
    policy = make(is_lora=True, lora_rank=4, lora_dropout=0.5, lora_init_weights=False).train()
    one, two = (policy.act(observe(2), noise(2), Sampling()).fields["logprobs"] for _ in range(2))
    assert torch.equal(one, two)
    assert all(module.training for module in policy.modules())


def test_statistics_of_demonstrations_replace_the_env_range(make, env) -> None:
    policy = make(use_proprio=True)
    action = {"q01": [0.0] * 7, "q99": [2.0] * 7, "mask": [True] * 6 + [False]}
    policy.use_statistics("demos", {"action": action, "proprio": {"q01": [-2.0] * 8, "q99": [2.0] * 8}})
    policy.bind(env)
    top = policy.decode_actions(torch.full((1, 56), 769))[0, 0]
    assert top.tolist() == pytest.approx([2.0 - 1 / 255] * 6 + [1.0 - 1 / 255], abs=1e-6)
    assert policy._proprio({"state": torch.ones(1, 8)})[0].tolist() == pytest.approx([0.5] * 8)
    with pytest.raises(CheckpointError, match="6 action dimensions"):
        policy.use_statistics("demos", {"action": {"q01": [0.0] * 6, "q99": [1.0] * 6}})


def test_recomputing_layers_changes_no_number(make, observe, noise) -> None:
    obs = observe(3)
    plain, recomputed = make(), make(gradient_checkpointing=True)
    records = {**obs, **plain.act(obs, noise(3), Sampling()).fields}
    for policy in (plain, recomputed):
        policy.train().evaluate(records, Sampling()).logprobs.sum().backward()
    for (name, one), (_, two) in zip(plain.named_parameters(), recomputed.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=name)


MISFITS = [
    ({"action": ContinuousAction((-1.0,) * 6, (1.0,) * 6)}, {}, "action_dim=6"),
    ({"obs": {"images": ArraySpec((1, 64, 64, 3), "uint8")}}, {"num_images_in_input": 2}, "num_images_in_input=1"),
    ({"obs": {"images": ArraySpec((1, 64, 64, 3), "uint8")}}, {"use_proprio": True}, "use_proprio=false"),
    ({"obs": {"state": ArraySpec((8,), "float32")}}, {}, "an env with cameras"),
    ({"obs": {}, "action": TextAction(8)}, {}, "model=causal_lm"),
    ({"tasks": ()}, {}, "EnvSpec.tasks"),
]


@pytest.mark.parametrize(("changes", "keys", "fix"), MISFITS)
def test_misfits_are_refused_with_the_fix(make, env, changes, keys, fix) -> None:
    with pytest.raises(SpecMismatchError, match=fix):
        make(**keys).bind(replace(env, **changes))


def test_all_misfits_are_said_at_once(make, env) -> None:
    changes = {"action": MISFITS[0][0]["action"], "obs": MISFITS[1][0]["obs"]}
    with pytest.raises(SpecMismatchError) as caught:
        make(num_images_in_input=2, use_proprio=True).bind(replace(env, **changes))
    fixes = [one.remedy for one in (caught.value, *caught.value.others)]
    assert [fix.partition(",")[0] for fix in fixes] == [
        "set actor.model.num_images_in_input=1", "set actor.model.use_proprio=false", "set actor.model.action_dim=6",
    ]  # fmt: skip


def test_an_instruction_that_is_too_long_says_how_long(make, env) -> None:
    """128 tokens are allowed unless a key says otherwise."""
    long = "put the cube on the stove and " * 30
    policy = make()
    tokens = len(policy.tokenizer.encode(long))
    with pytest.raises(SpecMismatchError) as caught:
        policy.bind(replace(env, tasks=("lift the cube", long), num_init_states=(1, 1)))
    for part in (f"is {tokens} tokens", "the limit is 128", f"max_prompt_length={tokens}", "put the cube"):
        assert part in str(caught.value)
    make(tasks=(long,), max_prompt_length=tokens)


def test_describe_is_text(make) -> None:
    facts = make(is_lora=True).describe()
    assert all(isinstance(value, str) for value in facts.values())
    assert "LoRA" in facts["trained"]


@pytest.mark.parametrize("batch", [2, 3, 8])
@pytest.mark.parametrize("keys", [{}, {"is_lora": True, "lora_rank": 8, "lora_init_weights": False}])
def test_the_order_of_rows_changes_no_bit(make, observe, noise, batch, keys) -> None:
    """In batches of one size, so that the order in which simulators finish does not change a run."""
    policy, obs, uniform = make(use_proprio=True, value_head=True, **keys), observe(batch), noise(batch)
    order = torch.arange(batch).flip(0)
    straight = policy.act(obs, uniform, Sampling()).fields
    turned = policy.act({name: values[order] for name, values in obs.items()}, uniform[order], Sampling()).fields
    for name, values in straight.items():
        assert torch.equal(values[order], turned[name]), name


def test_a_sentence_of_no_task_is_answered_as_if_it_were_one(make, env, observe, noise) -> None:
    """Its prompt is added to the table; what is said of it is what a policy says that was bound to it."""
    told = "open the drawer"
    policy, bound = make(), make(tasks=(*env.tasks, told))
    policy.bind(env)
    row = policy.encode_instructions([told, env.tasks[1], told])["prompt"]
    assert row.tolist() == [len(env.tasks), 1, len(env.tasks)]
    obs = {**observe(3), "prompt": row}
    answers = [p.act(obs, noise(3), Sampling()).fields for p in (policy, bound)]
    assert torch.equal(answers[0]["action_tokens"], answers[1]["action_tokens"])
    assert torch.equal(answers[0]["logprobs"], answers[1]["logprobs"])


def test_the_table_of_prompts_does_not_grow_without_end(make, env, monkeypatch) -> None:
    from embodied.models.openvla_oft import policy as module

    monkeypatch.setattr(module, "MOST_PROMPTS", 5)
    policy = make()
    policy.bind(env)
    for number in range(20):
        row = policy.encode_instructions([f"sentence {number}", env.tasks[0]])["prompt"].tolist()
        assert row[1] == 0
        assert len(policy.prompts) <= 5
