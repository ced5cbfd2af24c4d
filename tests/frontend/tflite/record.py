"""Run every case of `operator_cases.py` in LiteRT, and write its results to `recorded.npz`.

    pip install ai-edge-litert; python -m tests.frontend.tflite.record

LiteRT runs its own kernels without XNNPACK, which approximates some functions.
"""

from pathlib import Path

import numpy as np

from tests.frontend.tflite.operator_cases import CASES, OperatorCase

RECORDED = Path(__file__).with_name("recorded.npz")


def results(case: OperatorCase) -> list[np.ndarray]:
    """The outputs of a case in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    content = case.content(tuple(() for _ in case.outputs))
    interpreter = Interpreter(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    arrays = case.arrays()
    for port in interpreter.get_input_details():
        interpreter.set_tensor(port["index"], arrays[port["name"]])
    interpreter.invoke()
    return [interpreter.get_tensor(port["index"]) for port in interpreter.get_output_details()]


def main() -> None:
    recorded = {}
    for name, case in CASES.items():
        for number, array in enumerate(results(case)):
            recorded[f"{name}/{number}"] = array
    np.savez_compressed(RECORDED, **recorded)


if __name__ == "__main__":
    main()
