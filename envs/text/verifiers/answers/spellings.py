r"""Phrases with one meaning, in the spelling that the tokeniser reads: ``{n \choose k}``, ``\mu\text{m}``, ``US$``."""

from __future__ import annotations

import re

_STYLE = r"\\(?:text|mathrm|rm|operatorname)"
_HAN = "\u4e00-\u9fff"
_REPLACED = tuple((re.compile(pattern), new) for pattern, new in (
    (r"(?<=[0-9])\s+(m/s|km/s|g/L|g/mL)(?![a-zA-Z])", r"\\text{ \1}"),
    (r"per cent(?![a-z])", "percent"),
    (r"(?<=[0-9}])(\s*(?:\\text\{)?\s*years?)[ -]old(?![a-z])", r"\1"),
    (r"(?<![a-zA-Z])(?:US|CA|AU)\s?\\?\$", r"\\$"),
    (r"(?<![a-zA-Z\\])Rs\.?\s*(?=[0-9])", "\u20b9"),
    (r"\\pounds(?![a-zA-Z])\s*", "\u00a3"),
    (r"\\not\s*=", r"\\ne "),
    (r"\\not\s*\\in(?![a-zA-Z])", r"\\notin "),
    (r"\{\s*([^{}\\]{1,20}?)\s*\\choose\s*([^{}\\]{1,20}?)\s*\}", r"\\binom{\1}{\2}"),
    (rf"\(\s*(?:{_STYLE}\s*\{{\s*mod\s*\}}|\\?b?mod(?![a-zA-Z]))(?:\s|\\[ ,;])*([0-9]+|[a-z])\s*\)", r"\\pmod{\1}"),
    (rf"{_STYLE}\s*\{{\s*([kM]?)\s*\\Omega\s*\}}", r"\\text{ \1ohm}"),
    (rf"{_STYLE}\s*\{{\s*([kM])\s*\}}\s*\\Omega(?![a-zA-Z])", r"\\text{ \1ohm}"),
    (r"(?<=[0-9])((?:\s|\\[ ,;:]|~)*)\\Omega(?=[\s$.]*$)", r"\1\\text{ ohm}"),
    (rf"{_STYLE}\s*\{{\s*\\mu\s*([a-zA-Z])\s*\}}", r"\\text{ micro\1}"),
    (rf"\\mu\s*{_STYLE}\s*\{{\s*([a-zA-Z])\s*\}}", r"\\text{ micro\1}"),
    (rf"(?<![{_HAN}])(?:\u6216\u8005|\u6216|\u548c|\u4e0e|\u53ca|\u4e14)(?![{_HAN}])", " and "),
    (r"(?<=[0-9])\s*([\u4e07\u4ebf])", r" \1 "),
))  # fmt: skip
"""Pattern → what stands for it. Those of Chinese: or, and; ten thousand, a hundred million."""


def replaced(text: str) -> str:
    """Replaces phrases of a text of :func:`~.characters.plain` characters by plainer spellings."""
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    return text
