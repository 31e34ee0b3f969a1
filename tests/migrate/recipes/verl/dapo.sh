# verl, examples: DAPO; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=5 \
    data.gen_batch_size=24 \
    data.train_batch_size=8 \
    reward.reward_kwargs.overlong_buffer_cfg.enable=True \
    reward.reward_kwargs.overlong_buffer_cfg.len=64 \
    reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5 \
    reward.reward_manager.name=dapo \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    data.max_response_length=256
