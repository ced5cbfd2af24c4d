"""Hugging Face's transformers: let torch.export trace their models.

The models are modules of PyTorch, and go through PyTorch's door. Some models contain parts that
torch.export refuses: caches of keys and values, loops over data, state that an earlier call left.
The exporter of transformers replaces all these parts while a model is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from webmlc.frontend.doors.door import is_instance


@contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Prepare a module that is or contains a model of transformers for torch.export. Other modules
    stay as they are, and so do models if the version of transformers has no exporter.
    """
    models = [m for m in module.modules() if is_instance(m, "transformers", "PreTrainedModel")]
    if not models:
        yield
        return
    try:
        from transformers.exporters.exporter_dynamo import (
            register_cache_pytrees_for_model,
            reset_model_state,
        )
        from transformers.exporters.utils import apply_patches
    except ImportError:
        yield
        return
    with ExitStack() as stack:
        for model in models:
            register_cache_pytrees_for_model(model)
            stack.enter_context(_batched_experts(model))
        stack.enter_context(apply_patches("dynamo"))
        stack.enter_context(reset_model_state(models[0]))
        yield


@contextmanager
def _batched_experts(model: Any) -> Iterator[None]:
    """Let a model multiply each token by the weights of its experts. Other implementations group
    the tokens by operators that torch.onnx does not know, or loop over experts that data choose.
    """
    if not hasattr(model, "get_experts_implementation") or not _has_experts(model):
        yield
        return
    implementation = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(implementation)


def _has_experts(model: Any) -> bool:
    """True for a model whose experts have implementations to choose from."""
    can_choose = getattr(model, "_can_set_experts_implementation", None)
    return bool(can_choose and can_choose())
