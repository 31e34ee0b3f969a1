"""Units of fsdp2: modules whose weights are gathered and freed together."""

from __future__ import annotations

from torch import nn

from embodied.errors import ConfigError
from embodied.schema.keys.sections.fsdp import WrapPolicyConfig


def units_of(policy: nn.Module, wrap: WrapPolicyConfig) -> list[nn.Module]:
    """Lists the FSDP units of a policy: modules whose weights are gathered together, outer ones before those in them.

    Raises:
        ConfigError: the policy has no module of a class that is named.
    """
    names = wrap.transformer_layer_cls_to_wrap
    if names is None:
        found = shard_modules(policy)
    else:
        found = [module for module in policy.modules() if type(module).__name__ in names]
        if absent := set(names) - {type(module).__name__ for module in found}:
            classes = sorted({type(module).__name__ for layers in lists_of(policy) for module in layers})
            raise ConfigError(
                f"actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap names {', '.join(sorted(absent))}, and "
                f"{type(policy).__name__} has no such module",
                f"name one of its layers' classes: {', '.join(classes) or 'it has no lists'}; or leave it out",
            )
    return [module for module in found if sum(p.numel() for p in module.parameters()) >= wrap.min_num_params]


def lists_of(module: nn.Module) -> list[nn.ModuleList]:
    """Lists all ``ModuleList``s within a module."""
    return [found for found in module.modules() if isinstance(found, nn.ModuleList)]


def shard_modules(policy: nn.Module) -> list[nn.Module]:
    """Returns the modules whose weights are gathered together: those that the policy's own ``shard_modules()`` names
    (:class:`embodied.protocols.Shardable`), else the elements of its outermost lists of modules."""
    own = getattr(policy, "shard_modules", None)
    if own is not None:
        return list(own())
    return _elements_of_lists(policy)


def _elements_of_lists(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [found for child in module.children() for found in _elements_of_lists(child)]
