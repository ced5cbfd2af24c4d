"""Operators of onnxruntime's own domain, which its optimiser writes into saved models.

Each row expands to operators of ai.onnx, so that these operators never reach the passes after
inference. `rows.row` makes such a row.
"""
