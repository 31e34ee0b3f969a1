# verl, examples: GRPO with a KL in the loss; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=32 \
    data.max_prompt_length=200 \
    data.max_response_length=300 \
    actor_rollout_ref.actor.optim.lr=2e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.entropy_coeff=0.002 \
    actor_rollout_ref.rollout.n=6 \
    actor_rollout_ref.rollout.temperature=0.9 \
    actor_rollout_ref.rollout.top_p=0.95 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    data.seed=21
