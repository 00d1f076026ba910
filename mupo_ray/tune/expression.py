"""Small expressions over named values: bounds and conditions of a search, and its objectives.

Python's own syntax with numbers, text, comparisons, `and`, `or`, `not`, `a if c else b` and a few
functions. Names are dotted config paths, as in `rollout.num_generations // method.min_group_size`,
or metric keys such as `eval/heldout/pass@4`. A slash without spaces belongs to a key and so does a
dash: a division or a difference has spaces around it.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import ConfigError
from mupo_ray.methods import make_method
from mupo_ray.observability.metrics import check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from mupo_ray.config import Config
    from mupo_ray.tune.spec import Objective

_KEY = re.compile(r"[A-Za-z_][\w.-]*(?:/[\w.@-]+)+")
_EVAL = re.compile(r"eval/(?P<set>[^/]+)/(?P<name>.+)")
_MAX_LENGTH = 300

# No powers, whose values have no bound, and nothing that reaches into an object.
_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.And, ast.Or, ast.Not),
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed expression."""

    text: str
    names: tuple[str, ...]
    """The values it needs, in order of appearance."""
    code: CodeType

    def value(self, values: Mapping[str, Any]) -> Any:
        """What it comes to.

        Args:
            values: of all its names.

        Raises:
            ConfigError: it cannot be worked out with these.
        """
        inputs = {name: values[name] for name in self.names}
        try:
            return eval(self.code, {"__builtins__": {}, **_FUNCTIONS}, inputs)
        except (ArithmeticError, TypeError, ValueError) as err:
            named = ", ".join(f"{name} = {value!r}" for name, value in inputs.items())
            raise ConfigError(f"{self.text!r} has no value with {named}: {err}") from None


def parse_expression(text: str) -> Expression:
    """Read an expression.

    Raises:
        ConfigError: it is none, or holds something that is not allowed.
    """
    if len(text) > _MAX_LENGTH:
        raise ConfigError(
            f"expression {text[:40]!r}... is {len(text)} characters long; should be at most "
            f"{_MAX_LENGTH}"
        )
    keys: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        name = f"__key{len(keys)}"
        keys[name] = match[0]
        return name

    try:
        tree = ast.parse(_KEY.sub(stand_in, text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as err:
        reason = getattr(err, "msg", None) or str(err)
        raise ConfigError(
            f"expression {text!r}: {reason}; should read like "
            "rollout.num_generations // method.min_group_size or eval/heldout/pass@4 - 0.1"
        ) from None
    gate = _Gate(text, keys)
    code = compile(gate.visit(tree), "<expression>", "eval")
    return Expression(text=text, names=tuple(dict.fromkeys(gate.names)), code=code)


def parse_objectives(objectives: Sequence[Objective], base: Config) -> tuple[Expression, ...]:
    """The objectives' expressions, checked against what a run of this configuration measures.

    Raises:
        ConfigError: an expression is wrong, or names a metric that no such run has.
    """
    parsed = []
    for number, objective in enumerate(objectives):
        try:
            expression = parse_expression(objective.metric)
            if not expression.names:
                raise ConfigError(f"{objective.metric!r} names no metric; should name one at least")
            for name in expression.names:
                _check_metric(name, base)
        except (ConfigError, ValueError) as err:
            raise ConfigError(f"objectives.{number}.metric: {err}") from None
        parsed.append(expression)
    return tuple(parsed)


def value_in(expression: Expression, row: Mapping[str, Any]) -> float | None:
    """Value of an objective in a line of `metrics.jsonl`; None where the line lacks a metric.

    NaN where a metric was not finite, or the expression has no value there.
    """
    if any(name not in row for name in expression.names):
        return None
    if any(row[name] is None for name in expression.names):
        return math.nan
    try:
        return float(expression.value(row))
    except ConfigError:
        return math.nan


def _check_metric(name: str, base: Config) -> None:
    check(name, make_method(base).metrics_declared)
    key = _EVAL.fullmatch(name)
    if key is None:
        return
    if base.eval.path is None:
        raise ConfigError(f"{name} needs evaluations, got eval.path = null")
    if key["set"] != base.eval.name:
        raise ConfigError(
            f"{name}: no such evaluation set; did you mean eval/{base.eval.name}/{key['name']}?"
        )
    k = key["name"].removeprefix("pass@")
    if k.isdigit() and int(k) not in base.eval.pass_k:
        raise ConfigError(f"{name}: eval.pass_k is {list(base.eval.pass_k)}; should hold {k}")


class _Gate(ast.NodeTransformer):
    """Lets through what is allowed, every dotted name or metric key as one name.

    Args:
        text: of the expression.
        keys: stand-in in the tree -> metric key.
    """

    def __init__(self, text: str, keys: Mapping[str, str]) -> None:
        self.names: list[str] = []
        self._text = text
        self._keys = keys

    def visit(self, node: ast.AST) -> Any:
        """Check a part and those below it."""
        name = self._dotted(node)
        if name is not None:
            self.names.append(name)
            # The compiler takes any text for a name.
            return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)
        match node:
            case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if (
                function in _FUNCTIONS and args
            ):
                node.args = [self.visit(arg) for arg in args]
                return node
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return node
        operators = [p for p in ast.iter_child_nodes(node) if not isinstance(p, ast.expr)]
        if not all(isinstance(piece, _ALLOWED) for piece in (node, *operators)):
            part = ast.unparse(node) if isinstance(node, ast.expr) else self._text
            raise ConfigError(
                f"expression {self._text!r}: {part!r} is not allowed; should be made of numbers, "
                "names, + - * / // %, comparisons, and, or, not, if, "
                f"{', '.join(_FUNCTIONS)}"
            )
        return self.generic_visit(node)

    def _dotted(self, node: ast.AST) -> str | None:
        """The name that a node spells."""
        if isinstance(node, ast.Name):
            return self._keys.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self._dotted(node.value)
            return None if head is None else f"{head}.{node.attr}"
        return None
