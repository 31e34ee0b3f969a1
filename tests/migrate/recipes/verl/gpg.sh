# verl, examples: an estimator and a loss that are not here; values of our own.
python3 -m verl.trainer.main_ppo data.train_files=train.jsonl data.val_files=test.jsonl actor_rollout_ref.model.path=models/text \
    algorithm.adv_estimator=gpg \
    actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean \
    actor_rollout_ref.rollout.n=4 \
    data.train_batch_size=8 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8
