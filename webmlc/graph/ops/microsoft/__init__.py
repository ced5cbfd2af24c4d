"""Operators of onnxruntime's own domain, which its optimiser writes into saved models.

Each row says what it stands for in operators of ai.onnx. `row` makes one: these operators never
reach the passes after inference.
"""
