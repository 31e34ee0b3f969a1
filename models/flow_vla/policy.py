"""The policy that the runtime drives: :class:`embodied.protocols.Policy` on top of the network.

Shapes: B rows, D stochastic steps, H actions of a chunk, W padded dimensions, K executed actions, A dimensions, V
values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import ConfigError
from embodied.protocols import Examples, Exported
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Gaussian, Noise, PolicySpec, Sampling

from ..shared.prompts import padded_behind
from ..shared.quantized import numbers_of
from ..shared.trained import not_training, training_modules
from .export import formats as exporting
from .fit import camera_order, check_fit, statistics_scales
from .inputs.normalization import padded
from .inputs.texts import as_bytes, check_length, plain_prompt, state_prompt
from .network.flops import record_flops
from .network.model import Context
from .parts import Parts
from .sampling.chains import Chain, Velocity, sample_all, sample_one, solve
from .sampling.guidance import guided, prefix_weights
from .sampling.steps import entropy, log_prob, mean_of, rows_of
from .sampling.times import beta_times

Integrate = Callable[[Velocity, Tensor], Tensor]
"""A velocity and the noise that a chain begins with, [B, H, W] → its end."""


class FlowVLAPolicy(nn.Module):
    """A flow policy, made by :func:`~embodied.models.flow_vla.build_policy`. Call ``bind`` first."""

    _no_split_modules = ("JointLayer", "TowerLayer")  # units of sharding and recomputation
    export_formats = exporting.KINDS  # see embodied.protocols.Exports

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        # modules of this module, so that their weights are its own
        self.model, self.value_head, self.noise_head = parts.model, parts.value_head, parts.noise_head
        self.noise_policy = parts.noise_policy
        self._training_modules = training_modules(self)

    @property
    def spec(self) -> PolicySpec:
        settings, sizes, env = self.parts.settings, self.model.sizes, self.parts.now.env
        if env is None:
            raise ConfigError("the policy has no action dimensions yet", "call bind(env.spec) first")
        chunk = (settings.num_action_chunks, env.action_dim)
        drawn = len(self.parts.steps) if settings.noise_steps == "all" else 1
        elements = (drawn, *chunk) if drawn > 1 else chunk
        decision = {
            "actions": ArraySpec(chunk, "float32"),
            "before": ArraySpec((drawn, sizes.horizon, sizes.action_width), "float32"),
            "after": ArraySpec((drawn, *chunk), "float32"),
            "step": ArraySpec((drawn,), "int32"),
            "logprobs": ArraySpec(elements, "float32"),
        }
        if self.value_head is not None:
            decision["value"] = ArraySpec((settings.values,), "float32")
        whole = sizes.horizon * sizes.action_width
        return PolicySpec(
            chunk[0], decision,
            Elements(elements, action_axis=len(elements) - 2, levels=("action_level", "chunk_level")),
            Noise(((1 + drawn) * whole + 1,), "normal", uniform=1, greedy=whole),
            entropy=self.noise_head is not None, sampling=(),
            random_weights=self.parts.source is None and settings.lora_path is None, horizon=sizes.horizon,
            demonstration_noise=Noise((whole + 1,), "normal", uniform=1),
        )  # fmt: skip

    # -- what the env has --------------------------------------------------------------------------------------------

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`. Raises SpecMismatchError: the env has other cameras, a state or
        actions that are too wide or of other statistics, or a longer instruction."""
        check_fit(self.parts, env)
        now = self.parts.now
        now.env, now.order, now.least = env, camera_order(self.parts, env), 0
        now.state, now.action = statistics_scales(self.parts, env)
        now.least = max((len(ids) for ids in self._longest(env.tasks)), default=0)

    def _longest(self, tasks: Sequence[str]) -> Sequence[Sequence[int]]:
        env, tokenizer = self.parts.now.env, self.parts.tokenizer
        assert env is not None and tokenizer is not None  # noqa: PT018
        prompts = [plain_prompt(task) for task in tasks]
        if self.parts.state_in_text:
            widest = torch.full(env.obs["state"].shape, 2.0).numpy()
            prompts = [state_prompt(task, widest) for task in tasks]
        found = [tokenizer.encode(prompt) for prompt in prompts]
        for ids, prompt in zip(found, prompts, strict=True):
            check_length(ids, self.parts.prompt_tokens, prompt)
        return found

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """Encodes instructions: token ids, or for π0.5, whose prompt has the state in it, the texts."""
        if self.parts.state_in_text:
            return {"prompt_text": as_bytes(texts, 128)}
        ids, mask = padded_behind(self._longest(texts), least=self.parts.now.least)
        return {"prompt": ids, "prompt_mask": mask}

    @torch.no_grad()
    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Says if π0.5 cannot see the first states: beyond their statistics all bins are one."""
        if not self.parts.state_in_text:
            return ()
        state = self.parts.now.state.normalize(obs["state"].float())
        share = float((state.abs() > 1).float().mean())
        return (f"{share:.0%} of the first states' numbers lie outside of the statistics",) if share > 0.1 else ()

    # -- acting ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`. Greedy decisions are the ODE's from drawn noise."""
        with not_training(self._training_modules), self.parts.acting():
            return Decision(self.decide(self.parts.read(obs), noise, sampling))

    def decide(self, context: Context, noise: Tensor, sampling: Sampling) -> dict[str, Tensor]:
        """Computes the fields of a decision from what the trunk made of B observations."""
        if not sampling.do_sample:
            return self._solved(context, noise, partial(solve, count=self.eval_steps))
        chain = self._sampled(self.parts.field(context), *self._noise(noise))
        return self._recorded(chain) | self._valued(context)

    @torch.no_grad()
    def act_after(
        self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling, left_over: Tensor, left: Tensor,
        delay: Tensor,
    ) -> Decision:  # fmt: skip
        """Goes on from the rest of the chunk before, by guidance of the ODE. See
        :class:`embodied.protocols.ContinuesChunks`."""
        settings, sizes = self.parts.settings, self.model.sizes
        pairs = zip(delay.tolist(), left.tolist(), strict=True)
        weights = [prefix_weights(settings.rtc_schedule, late, known, sizes.horizon) for late, known in pairs]
        there = torch.arange(left_over.shape[1], device=left.device) < left[:, None]
        rest = torch.where(there[..., None], self.parts.now.action.normalize(left_over.float()), 0.0)
        goal = padded(rest, sizes.action_width)
        # the derivative that rtc_jacobian asks for is taken of tensors that remember how they were made
        modes = torch.inference_mode(False), torch.no_grad(), self.parts.acting()
        with not_training(self._training_modules), modes[0], modes[1], modes[2]:
            integrate = partial(
                guided, left_over=goal, weights=torch.stack(weights), count=self.eval_steps,
                most=settings.rtc_max_weight, jacobian=settings.rtc_jacobian,
            )  # fmt: skip
            return Decision(self._solved(self.parts.read(obs), noise, integrate))

    def _sampled(self, field: Any, first: Tensor, draws: Tensor, uniform: Tensor) -> Chain:
        steps = self.parts.steps
        if self.parts.settings.noise_steps == "all":
            return sample_all(field, first, draws, steps)
        chosen = (uniform * len(steps)).long().clamp(max=len(steps) - 1)
        return sample_one(field, first, draws[:, 0], chosen, steps)

    def _solved(self, context: Context, noise: Tensor, integrate: Integrate) -> dict[str, Tensor]:
        """Fields of a decision in which no step is random."""
        first = self._noise(noise)[0]
        chain = self._begun(first, integrate(self.parts.velocity(context), first))
        return self._recorded(chain) | self._valued(context)

    def _valued(self, context: Context) -> dict[str, Tensor]:
        value = self.parts.value(context)
        return {} if value is None else {"value": value}

    def _begun(self, first: Tensor, chunk: Tensor) -> Chain:
        """A chain in which nothing was drawn: the record has the noise that it began with in place of links."""
        count = self.spec.decision["step"].shape[0]
        links = first[:, None].expand(-1, count, -1, -1)
        steps = torch.zeros(first.shape[0], count, dtype=torch.int64, device=first.device)
        return Chain(chunk, links, links, links.double(), torch.ones_like(links).double(), steps)

    def _recorded(self, chain: Chain) -> dict[str, Tensor]:
        k, a = self.spec.decision["after"].shape[1:]
        after, mean, std = (t[:, :, :k, :a].contiguous() for t in (chain.after, chain.mean, chain.std))
        return {
            "actions": self.parts.actions(chain.chunk), "before": chain.before.contiguous(), "after": after,
            "step": chain.steps.int(), "logprobs": self._elements(log_prob(after, mean, std)),
        }  # fmt: skip

    def _noise(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Noise that chains begin with [B, H, W], draws of their steps [B, D, H, W], a uniform number [B]."""
        shape = (self.model.sizes.horizon, self.model.sizes.action_width)
        links = noise[:, :-1].unflatten(1, (-1, *shape))
        return links[:, 0], links[:, 1:], noise[:, -1]

    @property
    def eval_steps(self) -> int:
        """Denoising steps of a greedy decision."""
        return self.parts.settings.eval_steps or self.parts.settings.num_steps

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """Returns sampler and steps. See :class:`embodied.protocols.NamesSampler`."""
        settings = self.parts.settings
        if not sampling.do_sample:
            return {"sampler": "ode", "num_steps": self.eval_steps}
        found = {"sampler": settings.noise_method, "num_steps": settings.num_steps, "noise_steps": settings.noise_steps}
        level = settings.noise_level if self.noise_head is None else list(settings.noise_range)
        return {**found, "noise_level": level}

    # -- learning ----------------------------------------------------------------------------------------------------

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """See :meth:`embodied.protocols.Policy.evaluate`. One trunk pass serves all steps of a record."""
        context = self.parts.read(records)
        mean, std = self._gaussians(self.parts.field(context), records["before"], records["step"].long())
        logprobs = self._elements(log_prob(records["after"], mean, std))
        wide = std.expand_as(mean)
        spread = self._elements(entropy(wide)) if self.noise_head is not None else None
        gaussian = Gaussian(self._elements(mean), self._elements(wide)) if distribution else None
        return Evaluation(logprobs, spread, self.parts.value(context), gaussian)

    def forward(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Calls :meth:`evaluate`, for wrappers that hook ``forward``."""
        return self.evaluate(records, sampling, distribution)

    def demonstration_loss(self, records: Mapping[str, Tensor], actions: Tensor, noise: Tensor) -> Tensor:
        """Flow matching: the squared error of the velocity at a drawn time, float32 [B, H], its mean over the real
        dimensions. See :class:`embodied.protocols.HasDemonstrationLoss`."""
        sizes, real = self.model.sizes, actions.shape[-1]
        first = noise[:, :-1].unflatten(1, (sizes.horizon, sizes.action_width))
        time = beta_times(noise[:, -1])
        goal = padded(self.parts.now.action.normalize(actions.float()), sizes.action_width)
        share = time[:, None, None]
        velocity, _ = self.parts.field(self.parts.read(records))(share * first + (1 - share) * goal, time)
        return (velocity - (first - goal))[..., :real].square().mean(-1)

    def _gaussians(self, field: Any, before: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Means float64 [B, D, K, A] of what the steps drew, and standard deviations that broadcast to them."""
        numbers = rows_of(self.parts.steps, steps, before.ndim)
        velocity, std = field(before, numbers[0][..., 0, 0].float())
        k, a = self.spec.decision["after"].shape[1:]
        mean = mean_of(numbers, before, velocity)[..., :k, :a]
        return mean, numbers[3] if std is None else std[..., :k, :a].double()

    def _elements(self, values: Tensor) -> Tensor:
        """Float32 [B, *elements.shape] of [B, D, K, A]."""
        return values.float() if len(self.spec.elements.shape) == 3 else values[:, 0].float()

    # -- statistics --------------------------------------------------------------------------------------------------

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Normalises by these statistics from now on. See :class:`embodied.protocols.UsesStatistics`."""
        now = self.parts.now
        now.name = name
        now.state, now.action = statistics_scales(self.parts, now.env, values)

    def extra_state(self) -> Mapping[str, str]:
        """Returns the statistics. See :class:`embodied.protocols.HasExtraState`."""
        now = self.parts.now
        blocks = {"action": now.action.note, "proprio": now.state.note}
        found = {feature: {k: list(v) for k, v in note.items()} for feature, note in blocks.items() if note}
        return {"statistics": json.dumps({"name": now.name, **found})} if found else {}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Loads what :meth:`extra_state` returned."""
        if "statistics" in found:
            values = json.loads(found["statistics"])
            self.use_statistics(values.pop("name"), values)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        sizes, settings = self.model.sizes, self.parts.settings
        total = numbers_of(self)
        trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return {
            "model": f"{sizes.layout} {self.parts.source or f'built at random (seed {settings.seed})'}",
            "parameters": f"{total:,}",
            "trained": f"{trained:,} ({100 * trained / total:.1f} %{', LoRA' if settings.is_lora else ''})",
            "precision": settings.precision
            + (f", trunk in {settings.quantization_bit} bits" if settings.quantization_bit else ""),
            "output": f"{settings.num_action_chunks} of {sizes.horizon} actions",
            "sampler": ", ".join(
                str(value) if name == "sampler" else f"{name} {value}"
                for name, value in self.sampler(Sampling()).items()
            ),
        }

    def pictures(self) -> Mapping[str, Any]:
        """Describes how pictures are prepared. See :class:`embodied.protocols.PreparesPictures`."""
        sizes = self.model.sizes
        return {
            "image_size": [sizes.image_size] * 2, "num_images_in_input": len(self.parts.now.order),
            "image_preset": sizes.layout, "center_crop": False,
        }  # fmt: skip

    def value_parts(self) -> Sequence[str]:
        """Names what a value head makes of the trunk's last layer. See :class:`embodied.protocols.HasValueParts`."""
        last = f"model.layers.{self.model.sizes.layers - 1}.trunk."
        parts = ("self_attn.q_proj.", "self_attn.o_proj.", "post_attention_layernorm.", "mlp.")
        return ("model.trunk_norm.", *(last + part for part in parts))

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Counts the FLOPs of records, which are equal for all. See :class:`embodied.protocols.CountsFlops`."""
        now = self.parts.now
        prompt = records["prompt"].shape[1] if "prompt" in records else now.least
        one = record_flops(self.model, len(now.order), prompt, self.spec.decision["step"].shape[0], training)
        return np.full(len(records["actions"]), float(one))

    def shard_modules(self) -> Sequence[nn.Module]:
        """Returns the layers of trunk and expert, and those of the tower."""
        return [*self.model.layers, *self.model.vision.encoder.layers]

    def save(self, folder: Path) -> None:
        """Writes a folder in LeRobot's layout, which ``model_path`` takes."""
        from .files.save import save_folder

        save_folder(self.parts, folder)

    def export(
        self, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
    ) -> Exported:  # fmt: skip
        """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`."""
        return exporting.export(self, kind, folder, dtype, examples, options)
