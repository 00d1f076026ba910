"""Small expressions over named values, as in `rollout.num_generations // method.min_group_size`.

Python's own syntax with numbers, text, comparisons, `and`, `or`, `not`, `a if c else b` and a few
functions. Names are dotted config paths, or metric keys such as `eval/heldout/pass@4`. A slash
without spaces belongs to a key and so does a dash: a division or a difference has spaces around it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEY = re.compile(r"[A-Za-z_][\w.-]*(?:/[\w.@-]+)+")
_MAX_LENGTH = 300

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
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
    tree: ast.expr
    keys: Mapping[str, str]
    """Stand-in in the tree -> metric key."""

    def value(self, values: Mapping[str, Any]) -> Any:
        """What it comes to.

        Args:
            values: of all its names.

        Raises:
            ConfigError: it cannot be worked out with these.
        """
        try:
            return _value(self.tree, {name: values[name] for name in self.names}, self.keys)
        except (ArithmeticError, TypeError, ValueError) as err:
            given = ", ".join(f"{name} = {values[name]!r}" for name in self.names)
            raise ConfigError(f"{self.text!r} has no value with {given}: {err}") from None


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
        tree = ast.parse(_KEY.sub(stand_in, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as err:
        reason = getattr(err, "msg", None) or str(err)
        raise ConfigError(
            f"expression {text!r}: {reason}; should read like "
            "rollout.num_generations // method.min_group_size or eval/heldout/pass@4 - 0.1"
        ) from None
    names: dict[str, None] = {}
    _check(tree, text, keys, names)
    return Expression(text=text, names=tuple(names), tree=tree, keys=keys)


def _check(node: ast.AST, text: str, keys: Mapping[str, str], names: dict[str, None]) -> None:
    name = _dotted(node, keys)
    if name is not None:
        names[name] = None
        return
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            parts: list[ast.AST] = []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=unary, operand=operand) if type(unary) in _UNARY:
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = [*values]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(o) in _COMPARE for o in ops
        ):
            parts = [left, *others]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = [test, body, orelse]
        case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if (
            function in _FUNCTIONS and args
        ):
            parts = [*args]
        case _:
            shown = ast.unparse(node) if isinstance(node, ast.expr) else text
            raise ConfigError(
                f"expression {text!r}: {shown!r} is not allowed; should be made of numbers, names, "
                f"+ - * / // %, comparisons, and, or, not, if, {', '.join(_FUNCTIONS)}"
            )
    for part in parts:
        _check(part, text, keys, names)


def _dotted(node: ast.AST, keys: Mapping[str, str]) -> str | None:
    """The name that a node spells."""
    if isinstance(node, ast.Name):
        return keys.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value, keys)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _value(node: ast.AST, values: Mapping[str, Any], keys: Mapping[str, str]) -> Any:
    def of(part: ast.AST) -> Any:
        return _value(part, values, keys)

    name = _dotted(node, keys)
    if name is not None:
        return values[name]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](of(left), of(right))
        case ast.UnaryOp(op=unary, operand=operand):
            return _UNARY[type(unary)](of(operand))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(of(part) for part in parts)
        case ast.BoolOp(values=parts):
            return any(of(part) for part in parts)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body) if of(test) else of(orelse)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [of(left), *map(of, others)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(_COMPARE[type(o)](a, b) for o, a, b in pairs)
        case ast.Call(func=ast.Name(id=function), args=args):
            return _FUNCTIONS[function](*map(of, args))
    raise AssertionError(f"{ast.dump(node)} passed the check")
