"""Tables of Markdown as GitHub (markdown-it) and TensorBoard (Python-Markdown) read them."""

import re
from html import unescape
from itertools import pairwise

import markdown
from markdown_it import MarkdownIt

HOSTILE = "a|b \\| c\\"


def github_rows(text: str) -> list[list[str]]:
    """The cells of each row of all tables, heads included."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    rows: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("th_open", "td_open"):
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def tensorboard_rows(text: str) -> list[list[str]]:
    """As `github_rows`."""
    page = markdown.markdown(text, extensions=["tables"])
    return [
        [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)
    ]
