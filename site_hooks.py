"""What ``mkdocs`` does to the pages (``make site``): files from outside ``docs/``, formulas, docstrings, tables.

Links of a page are those of the repository, so that they work there, too. Here they are given the site's addresses: a
page of its own (:data:`PAGES`), or a copy of the file below ``source/``.
"""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path
from posixpath import dirname, normpath, relpath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
PAGES = {"benchmarks/README.md": "benchmarks.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Page of the repository outside ``docs/`` → page of the site."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
LINK_TO_FOLDER = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):(?=<code>)")


LONG = 60
"""Characters of a table's cell from which on the table is shown as cards on a phone."""
TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")


def on_config(config: MkDocsConfig) -> None:
    """Links to the source as soon as ``pyproject.toml`` has its address (``Repository`` of ``project.urls``)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = config.repo_url or project.get("urls", {}).get("Repository")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and files outside ``docs/`` that pages link to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in list(files.documentation_pages()):
        for target in LINK.findall(page.content_string):
            source = _source(page.src_uri, target)
            uri = _address(source)
            if (ROOT / source).is_file() and uri.startswith("source/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Gives links out of ``docs/`` their addresses in the site; those to folders become text."""
    here = page.file.src_uri

    def address(match: re.Match[str]) -> str:
        return relpath(_address(_source(here, match[1])), dirname(here) or ".")

    def text(match: re.Match[str]) -> str:
        return match[1] if (ROOT / _source(here, match[2])).is_dir() else match[0]

    return LINK.sub(address, LINK_TO_FOLDER.sub(text, markdown))


def on_page_content(html_text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes formulas as MathML, which browsers draw by themselves, docstrings without Sphinx's roles, and tables of
    long texts with marks."""
    return TABLE.sub(_marked, ROLE.sub("", FORMULA.sub(_mathml, html_text)))


def _marked(table: re.Match[str]) -> str:
    """A table with long texts, whose cells carry the head of their column: ``site.css`` makes cards of its rows."""
    heads = [TAG.sub("", head).strip() for head in HEAD.findall(table[1])]
    if not any(len(TAG.sub("", text)) > LONG for _, text in CELL.findall(table[1])):
        return table[0]

    def row(match: re.Match[str]) -> str:
        left = iter(heads)
        return CELL.sub(lambda cell: f'<td{cell[1]} data-head="{next(left, "")}">{cell[2]}</td>', match[0])

    return f"<table data-long>{ROW.sub(row, table[1])}</table>"


def _mathml(match: re.Match[str]) -> str:
    return convert(html.unescape(match[2]), display="block" if match[1] == "div" else "inline")


def _source(page: str, target: str) -> str:
    """The file in the repository that a link of a page means."""
    own = next((source for source, name in PAGES.items() if name == page), f"docs/{page}")
    return normpath(f"{dirname(own)}/{target}".lstrip("/"))


def _address(source: str) -> str:
    """Where a file of the repository lies in the site."""
    if source in PAGES:
        return PAGES[source]
    if source == "README.md":
        return "index.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else f"source/{source}"
