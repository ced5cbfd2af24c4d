"""Sessions of onnxruntime have one thread in tests.

A session starts as many threads as the machine has cores. For models as small as those of tests,
that takes longer than all else, and idle threads of the pool wait actively beside other workers.
"""

from __future__ import annotations

from typing import Any

import onnxruntime


class OneThreadSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """`InferenceSession` with one thread, unless its options say a number."""

    def __init__(self, model: Any, sess_options: Any = None, *others: Any, **options: Any) -> None:
        chosen = sess_options or onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = chosen.intra_op_num_threads or 1
        super().__init__(model, chosen, *others, **options)


def use_one_thread() -> None:
    """Give one thread to all sessions that this process creates from now on."""
    onnxruntime.InferenceSession = OneThreadSession
