# Keys of SimpleVLA-RL's examples/run_openvla_oft_rl_libero.sh (PRIME-RL/SimpleVLA-RL), with smaller numbers.
export SUITE="libero_10"
LR=5e-6
CHECKPOINTS=/tmp/$SUITE
python -u -m verl.trainer.main_ppo \
    data.task_suite_name=$SUITE \
    data.train_batch_size=8 \
    data.n_samples=8 \
    actor_rollout_ref.model.vla=openvla-oft \
    actor_rollout_ref.model.action_chunks_len=8 \
    actor_rollout_ref.actor.optim.lr=${LR} \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.grad_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.rollout.temperature=1.6 \
    trainer.experiment_name=$NOBODY_SAYS \
    trainer.default_local_dir=$CHECKPOINTS/$NAME \
    trainer.total_epochs=100
