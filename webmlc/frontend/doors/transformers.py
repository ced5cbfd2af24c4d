"""Hugging Face's transformers: let torch.export trace their models.

The models are modules of PyTorch, and go through its door. Some hold what torch.export refuses:
caches of keys and values, loops over data, state that an earlier call left. The exporter of
transformers knows how to replace all of it while a model is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from webmlc.frontend.doors.door import is_instance


@contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Prepare a model of transformers, or a module that contains one, for torch.export. Other
    modules, and models of versions without an exporter, stay as they are.
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
    """Multiply each token by the weights of its experts. Other implementations of experts group the
    tokens by operators that torch.onnx does not know, or loop over experts that data choose.
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
