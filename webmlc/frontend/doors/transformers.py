"""Hugging Face's transformers: let torch.export trace their models.

The models are modules of PyTorch, and go through its door. Some hold what torch.export refuses:
caches of keys and values, loops over data, state that an earlier call left. The exporter of
transformers knows how to replace all of it while a model is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    for model in models:
        register_cache_pytrees_for_model(model)
    with apply_patches("dynamo"), reset_model_state(models[0]):
        yield
