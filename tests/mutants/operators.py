"""All small faults of a module, by its syntax tree: each is one piece of text in place of another.

Left alone: docstrings, annotations, decorators, f-strings, assertions, what a ``raise`` says, calls that only tell the
user something, and what is under ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Div), ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.LShift: (ast.RShift,), ast.MatMult: (),
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin", "sum": "mean",
    "mean": "sum", "floor": "ceil", "ceil": "floor", "cumsum": "clone", "clamp": "clone", "exp": "log",
}  # fmt: skip
TELLS = {"say", "print", "warn", "info", "warning", "debug", "Field"}


@dataclass(frozen=True)
class Fault:
    """In the file at ``start`` … ``end`` (bytes) stands ``before``; the mutant has ``after`` there."""

    first_line: int  # the lines whose tests may see it
    last_line: int
    start: int
    end: int
    kind: str
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """The mutant's source. Raises ValueError if the file is another than the one that was read."""
        if (found := source[self.start : self.end]) != self.before.encode():
            raise ValueError(f"expected {self.before!r} at byte {self.start}, got {found!r}; fix: draw the sample anew")
        return source[: self.start] + self.after.encode() + source[self.end :]


def faults_of(source: bytes) -> dict[int, list[Fault]]:
    """For each statement that can be mutated, by the number of its first byte: its faults."""
    offsets = [0]
    for text in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))
    found: dict[int, list[Fault]] = {}
    for statement in _statements(ast.parse(source)):
        start, faults = offsets[statement.lineno - 1] + statement.col_offset, []
        for node, kind, after in _mutations(statement):
            first = offsets[node.lineno - 1] + node.col_offset
            last = offsets[node.end_lineno - 1] + node.end_col_offset
            before = source[first:last].decode()
            if before != after:
                faults.append(Fault(*_lines(statement, node), first, last, kind, before, after))
        if valid := [fault for fault in faults if _parses(fault.apply(source))]:
            found[start] = valid
    return found


def _lines(statement: ast.stmt, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """From the statement to the node; of a default value, the function's body."""
    if isinstance(statement, ast.FunctionDef):
        return statement.body[0].lineno, statement.body[-1].end_lineno or 0
    return statement.lineno, node.end_lineno or 0


def _parses(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.stmt) and not _is_text(node):
            yield node
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _statements(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _tells(node.value))


def _tells(node: ast.AST) -> bool:
    """Whether it is a call that only tells the user something."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in TELLS


def _mutations(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    """(node, kind, text that takes its place) of a statement, without the statements inside it."""
    yield from _of_statement(statement)
    for expression in _expressions(statement):
        for node in _walk(expression):
            for kind, mutated in _of_expression(node):
                text = ast.unparse(mutated)
                yield node, kind, f"({text})" if isinstance(mutated, ast.expr) else text


def _of_statement(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    match statement:
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield statement, "return None", "return None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield statement, "statement deleted", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield statement, "statement deleted", "pass"
        case ast.Continue():
            yield statement, "continue → break", "break"
        case ast.Break():
            yield statement, "break → continue", "continue"
        case ast.If(test=test) | ast.While(test=test):
            yield test, "condition negated", f"(not ({ast.unparse(test)}))"
    if isinstance(statement, ast.AugAssign):
        for new in ARITHMETIC.get(type(statement.op), ()):
            mutated = copy.copy(statement)
            mutated.op = new()
            yield statement, "operator", ast.unparse(mutated)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement computes itself."""
    match statement:
        case ast.Raise():
            return
        case ast.FunctionDef(args=arguments):
            yield from (default for default in [*arguments.defaults, *arguments.kw_defaults] if default is not None)
        case ast.ClassDef():
            return
        case ast.AnnAssign(value=value):
            if value is not None:
                yield value
        case _:
            for node in ast.iter_child_nodes(statement):
                if isinstance(node, ast.expr):
                    yield node
                elif isinstance(node, ast.withitem):
                    yield node.context_expr


def _walk(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr) or _tells(node):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[op]):
            yield from (
                (f"{type(op).__name__} → {new.__name__}", _with(node, ops=[new()])) for new in COMPARE[type(op)]
            )
        case ast.BinOp(op=op, left=left, right=right) if not (_is_string(left) or _is_string(right)):
            yield from (
                (f"{type(op).__name__} → {new.__name__}", _with(node, op=new())) for new in ARITHMETIC.get(type(op), ())
            )
        case ast.BoolOp(op=op, values=values):
            yield "and ↔ or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            yield "operand dropped", values[0] if len(values) == 2 else _with(node, values=values[:-1])
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "sign or not removed", operand
        case ast.IfExp(test=test):
            yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield from (("constant", ast.Constant(value + step)) for step in (1, -1) if value + step >= 0)
        case ast.Name(id=name) if name in ("min", "max", "any", "all") and isinstance(node.ctx, ast.Load):
            yield "function", ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(attr=name) if name in NAMES and isinstance(node.ctx, ast.Load):
            yield "method", _with(node, attr=NAMES[name])
        case ast.Call(keywords=[_, *_] as keywords):
            for index, keyword in enumerate(keywords):
                if keyword.arg is not None:
                    yield "argument left out", _with(node, keywords=keywords[:index] + keywords[index + 1 :])
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper, step=step)):
            for name, bound in (("lower", lower), ("upper", upper)):
                if bound is not None and not isinstance(bound, ast.Constant):
                    bounds = {
                        "lower": lower,
                        "upper": upper,
                        "step": step,
                        name: ast.BinOp(bound, ast.Add(), ast.Constant(1)),
                    }
                    yield "slice", _with(node, slice=ast.Slice(**bounds))


def _with(node: ast.expr, **changes: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
