# verl, examples: GSPO; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.actor.clip_ratio_low=0.0003 \
    actor_rollout_ref.actor.clip_ratio_high=0.0004 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    data.train_batch_size=16 \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.actor.clip_ratio_c=10.0
