"""README.md and the pages of docs/: their snippets, and the commands in them."""

import re
import shlex
from pathlib import Path
from typing import Iterator, List

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENDS = ("|", "&&", ";", "||")
REDIRECTIONS = (">", "<", "2>")


def snippets(page, language: str) -> List[str]:
    """The fenced blocks of a language in the order of the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", Path(page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page) -> Iterator[List[str]]:
    """The words of each command of the shell, without comments, redirections and what is left out (…)."""
    for snippet in snippets(page, "bash"):
        words: List[str] = []
        for word in [*_words(snippet), ";"]:
            if word not in ENDS and word.strip():
                words.append(word)
            elif words:
                yield _without_redirections(words)
                words = []


def _words(snippet: str) -> Iterator[str]:
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", snippet.replace("\\\n", " "))
    text = re.sub(r"^\w+=\$\((.*)\) *$", r"\1", text, flags=re.MULTILINE)  # NAME=$(COMMAND)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    return iter(lexer)


def _without_redirections(words: List[str]) -> List[str]:
    kept, skip = [], False
    for word in words:
        if not skip and word not in REDIRECTIONS and word != "…" and not re.match(r"^[A-Z_]+=", word):
            kept.append(word)
        skip = word in REDIRECTIONS
    return kept
