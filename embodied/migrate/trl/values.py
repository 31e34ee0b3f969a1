"""Values that a Python script gives to a call, as far as they can be known without running it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied.schema.others.translation import Unresolved

SUMS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
}  # fmt: skip
LARGEST = 1e12
"""A number beyond it is not computed."""
MANY = (ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Binding:
    """An assignment of a name: its lines, and its value; None where nobody knows whether it is made."""

    first: int
    last: int
    value: ast.expr | None


@dataclass
class Names:
    """The names of a script: where each is bound, and in which function a node stands."""

    bound: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    around: dict[ast.AST, ast.AST] = field(default_factory=dict)  # node → its scope
    imported: dict[str, str] = field(default_factory=dict)  # name → dotted path
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)  # of the module

    @classmethod
    def of(cls, tree: ast.Module) -> Names:
        """Collects the names of a parsed script."""
        names = cls()
        names.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        names._read(tree, tree, certain=True)
        return names

    def _read(self, node: ast.AST, scope: ast.AST, certain: bool) -> None:
        self.around[node] = scope
        self._bind(node, scope, certain)
        inner = node if isinstance(node, SCOPES) else scope
        sure = certain and not isinstance(node, MANY)
        if isinstance(node, ast.If) and not _is_main(node):
            sure = False
        if isinstance(node, SCOPES):
            sure = True
        for child in ast.iter_child_nodes(node):
            self._read(child, inner, sure)

    def _bind(self, node: ast.AST, scope: ast.AST, certain: bool) -> None:
        known = self.bound.setdefault(scope, {})
        line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    value = node.value if certain else None
                    known.setdefault(target.id, []).append(Binding(line, last, value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
            for one in node.names:
                self.imported[one.asname or one.name] = f"{start}{one.name}".lstrip(".")
        elif isinstance(node, ast.arg):
            known.setdefault(node.arg, []).append(Binding(0, 0, None))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not self._assigned(node, known):
            known.setdefault(node.id, []).append(Binding(line, last, None))

    def _assigned(self, node: ast.Name, known: Mapping[str, list[Binding]]) -> bool:
        """Whether an assignment of one name has just bound this one."""
        return any(one.first <= node.lineno <= one.last for one in known.get(node.id, ()))

    def value(self, node: ast.expr) -> ast.expr:
        """Returns the expression that a name stands for at this place; the node itself where that cannot be known."""
        while isinstance(node, ast.Name):
            scope: ast.AST | None = self.around.get(node)
            while scope is not None and node.id not in self.bound.get(scope, {}):
                scope = self.around.get(scope) if self.around.get(scope) is not scope else None
            before = self._before(node, scope)
            if before is None:
                return node
            node = before
        return node

    def _before(self, node: ast.Name, scope: ast.AST | None) -> ast.expr | None:
        if scope is None:
            return None
        found = self.bound[scope][node.id]
        if any(one.value is None for one in found):
            return None
        if scope is self.around.get(node):
            found = [one for one in found if one.last < node.lineno]
        elif len(found) > 1:
            return None
        return found[-1].value if found else None

    def known(self, node: ast.expr) -> Any:
        """Returns the value of an expression of literals, of names assigned to literals, and of sums of these; an
        :class:`Unresolved` with its text for any other."""
        try:
            return self._known(node)
        except (TypeError, ValueError, ArithmeticError):
            return Unresolved(ast.unparse(node))

    def _known(self, node: ast.expr) -> Any:
        node = self.value(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self._known(one) for one in node.elts]
        if isinstance(node, ast.Dict):
            return {str(self._known(key)): self._known(value) for key, value in self._pairs(node)}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
            return self._sum(node)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part) for part in node.values)
        raise ValueError(ast.unparse(node))

    def _pairs(self, node: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise ValueError("a dict within a dict")
            yield key, value

    def _sum(self, node: ast.BinOp) -> Any:
        left, right = self._known(node.left), self._known(node.right)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right
        if not all(isinstance(one, int | float) and abs(one) < LARGEST for one in (left, right)):
            raise ValueError(ast.unparse(node))
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ValueError(ast.unparse(node))
        return SUMS[type(node.op)](left, right)

    def _number(self, node: ast.expr) -> float:
        value = self._known(node)
        if isinstance(value, int | float):
            return value
        raise ValueError(ast.unparse(node))

    def _text(self, part: ast.expr) -> str:
        if isinstance(part, ast.FormattedValue) and part.format_spec is None and part.conversion == -1:
            return str(self._known(part.value))
        if isinstance(part, ast.Constant):
            return str(part.value)
        raise ValueError(ast.unparse(part))

    def dotted(self, node: ast.expr) -> str:
        """Returns the dotted path of a function or class as its imports say it: ``trl.GRPOConfig``."""
        first, _, rest = ast.unparse(node).partition(".")
        whole = self.imported.get(first, first)
        return f"{whole}.{rest}" if rest else whole


def _is_main(node: ast.If) -> bool:
    """Whether this is ``if __name__ == "__main__":``."""
    return "__name__" in ast.unparse(node.test)


def called(names: Names, node: ast.AST, name: str) -> bool:
    """Whether a node is a call of a function or class with this last name."""
    return isinstance(node, ast.Call) and names.dotted(node.func).rpartition(".")[2] == name
