"""The calculator's tools: what the model is told of them, and what they do."""

from __future__ import annotations

import operator
from collections.abc import Callable

from osmosis_ai.rollout import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)

OPERATIONS: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "add": ("Add b to a.", operator.add),
    "subtract": ("Subtract b from a.", operator.sub),
    "multiply": ("Multiply a by b.", operator.mul),
    "divide": ("Divide a by b.", operator.truediv),
}


def _schema(name: str, description: str) -> OpenAIFunctionToolSchema:
    number = OpenAIFunctionPropertySchema(type="number", description="a number")
    parameters = OpenAIFunctionParametersSchema(properties={"a": number, "b": number}, required=["a", "b"])
    function = OpenAIFunctionSchema(name=name, description=description, parameters=parameters)
    return OpenAIFunctionToolSchema(type="function", function=function)


TOOLS = [_schema(name, description) for name, (description, _) in OPERATIONS.items()]


async def calculate(name: str, arguments: dict[str, object]) -> float:
    """Return what the tool ``name`` makes of its arguments.

    Raises:
        ValueError: for an unknown tool, for arguments that are no numbers, and for a division by zero; the text is
            for the model.
    """
    if name not in OPERATIONS:
        raise ValueError(f"there is no tool {name!r}; there are {', '.join(OPERATIONS)}")
    try:
        a, b = float(str(arguments["a"])), float(str(arguments["b"]))
        result = OPERATIONS[name][1](a, b)
        # A model goes on with 84 more surely than with 84.0.
        return int(result) if result.is_integer() else result
    except KeyError as missing:
        raise ValueError(f"the argument {missing} is missing") from None
    except ZeroDivisionError:
        raise ValueError("a number cannot be divided by zero") from None
