"""Run every case of `operator_cases.py` in LiteRT, and write its results to `recorded.npz`.

    pip install ai-edge-litert; python -m tests.frontend.tflite.record

LiteRT runs its own kernels for floats: XNNPACK approximates some functions. XNNPACK computes the
quantised operators.
"""

from pathlib import Path

import numpy as np

from tests.frontend.tflite.operator_cases import (
    CASES,
    HYBRID,
    QUANTISED,
    hybrid_inputs,
    quantised_inputs,
)
from tests.frontend.tflite.tflite_file import tflite_file

RECORDED = Path(__file__).with_name("recorded.npz")


def results(content: bytes, arrays: dict[str, np.ndarray], resolver: str) -> list[np.ndarray]:
    """The outputs of a file in LiteRT with these kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=content,
        experimental_op_resolver_type=getattr(OpResolverType, resolver),
    )
    interpreter.allocate_tensors()
    for port in interpreter.get_input_details():
        interpreter.set_tensor(port["index"], arrays[port["name"]])
    interpreter.invoke()
    return [interpreter.get_tensor(port["index"]) for port in interpreter.get_output_details()]


def main() -> None:
    recorded: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        content = case.content(tuple(() for _ in case.outputs))
        arrays = results(content, case.arrays(), "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
        recorded |= {f"{name}/{number}": array for number, array in enumerate(arrays)}
    for name, graph in QUANTISED.items():
        arrays = quantised_inputs(graph)
        (recorded[f"quantised {name}"],) = results(tflite_file([graph]), arrays, "BUILTIN")
    for name, graph in HYBRID.items():
        arrays = hybrid_inputs(graph)
        (recorded[f"hybrid {name}"],) = results(tflite_file([graph]), arrays, "BUILTIN")
    np.savez_compressed(RECORDED, **recorded)


if __name__ == "__main__":
    main()
