"""Check the prose of README.md, docs/ and src/evenhand: word counts, long sentences, private words.

    python docs/prose.py    word counts, and every finding; --check: totals, and exit code 1 above a limit

All words of a page count, with code and tables. Sentences are those of running text, docstrings and messages.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, PAGES = ROOT / "README.md", sorted((ROOT / "docs").glob("*.md"))  # without docs/lab
README_WORDS, DOCS_WORDS = 900, 15_000  # of README; of docs without it, as `wc -w` counts
LONG, LONG_RATE = 30, 0.012  # words of a long sentence; the share of longer ones
PRIVATE_RATE = 0.5  # private words per 1,000 words
PRIVATE = re.compile(  # the field, or plain English, has a standard word for each
    r"\b(?:sittings?|not to be told|tell(?:s|ing)? apart|told apart|dealt|hand(?:ed|s)? over|mended|lest|"
    r"merely|whatever is|as it were|but for|all the same|said so|(?:is|are) said|g[ia]ves? way|heap|anew|"
    r"of one's own|in words|with a sentence|like predictions|evened|unasked|stands in)\b",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """The sentences of running text; a list item is a paragraph, inline code is one word."""
    text = re.sub(r"^([ ]*)(`{3,}).*?^\1\2[ ]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1 ", re.sub(r"`[^`]*`", "CODE", text))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<", ">>>"))]
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n" + "\n".join(lines))
    found = [part for each in blocks for part in re.split(r"(?<=[.!?])\s+(?=\S)", " ".join(each.split()))]
    return [sentence for sentence in found if len(sentence.split()) > 2]


def strings(path: Path) -> Iterator[str]:
    """The docstrings of a module, and its other strings of at least four words: messages and help texts."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[ast.expr] = [node] if isinstance(node, ast.Constant) and id(node) not in inside else []
        if isinstance(node, ast.JoinedStr):
            parts, inside = node.values, inside | {id(part) for part in ast.walk(node)}
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in parts)
        if len(text.split()) > 3:
            yield text


def check(title: str, texts: list[tuple[str, str]], quiet: bool) -> bool:
    """Print the rates of these (place, text), and every finding; True if both rates are within the limits."""
    found = [(place, sentence) for place, text in texts for sentence in sentences(text)]
    words = [len(sentence.split()) for _, sentence in found]
    private = [PRIVATE.findall(sentence) for _, sentence in found]
    for (place, sentence), count, own in zip(found, words, private, strict=True):
        if not quiet and (count > LONG or own):
            print(f"    {place}: {', '.join([f'{count} words', *own])}: {sentence[:140]}")
    long, rate = sum(count > LONG for count in words) / len(found), 1000 * sum(map(len, private)) / sum(words)
    print(
        f"{title}: {long:.1%} of {len(found):,} sentences have over {LONG} words (at most {LONG_RATE:.1%});"
    )
    print(f"    {rate:.2f} private words per 1,000 (at most {PRIVATE_RATE})")
    return long <= LONG_RATE and rate <= PRIVATE_RATE


def main(quiet: bool) -> int:
    pages = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in [README, *PAGES]}
    counts = {page: len(text.split()) for page, text in pages.items()}
    for page, count in {} if quiet else counts.items():
        print(f"{page:32}{count:7,} words")
    files = {path: str(path.relative_to(ROOT)) for path in sorted((ROOT / "src").rglob("*.py"))}
    texts = [(place, text) for path, place in files.items() for text in strings(path)]
    readme = counts.pop("README.md")
    total = sum(counts.values())
    good = [check("pages", [*pages.items()], quiet), check("source", texts, quiet)]
    print(f"README {readme:,} words (at most {README_WORDS}); docs {total:,} (at most {DOCS_WORDS:,})")
    return int(not all(good) or readme > README_WORDS or total > DOCS_WORDS)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
