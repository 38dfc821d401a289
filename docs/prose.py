"""Check the prose of README.md and docs/: word counts, long sentences, and words that only we would use.

    python docs/prose.py            word counts of every page, and every finding
    python docs/prose.py --check    fails over the limits below; part of `make check`

Code blocks, tables, inline code and links count as words of a page, but not as sentences. Lab notes
(docs/lab) and files made by scripts are left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README_WORDS, DOCS_WORDS = 900, 15_000
LONG = 30  # words of a sentence
LONG_SHARE = 0.03  # of all sentences may be longer
PRIVATE = re.compile(  # the field has a standard word for each of these
    r"\b(?:sittings?|not to be told|tell(?:s|ing)? apart|dealt out|handed over|hands? over|mended|"
    r"merely|whatever is|as it were|but for|all the same|by itself, and|said so|gives? way|heap|survey)\b",
    re.IGNORECASE,
)
PRIVATE_RATE = 1.0  # findings per 1,000 words


def sentences(text: str) -> list[str]:
    """The sentences of a page's running text; a list item counts as a paragraph."""
    text = re.sub(r"^([ ]*)(`{3,}).*?^\1\2[ ]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<"))]
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n" + "\n".join(lines))
    found = [part for each in paragraphs for part in re.split(r"(?<=[.!?])\s+(?=\S)", " ".join(each.split()))]
    return [sentence for sentence in found if len(sentence.split()) > 2]


def main() -> int:
    total = long = count = private = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        words, found = len(text.split()), sentences(text)
        total += words if page.parent.name == "docs" else 0
        count += len(found)
        print(f"{page.relative_to(ROOT)!s:32}{words:7,} words")
        for sentence in found:
            length, odd = len(sentence.split()), PRIVATE.findall(sentence)
            long, private = long + (length > LONG), private + len(odd)
            if (length > LONG or odd) and "--quiet" not in sys.argv:
                print(f"    {length} words{', ' + ', '.join(odd) if odd else ''}: {sentence[:140]}")
    readme = len(PAGES[0].read_text(encoding="utf-8").split())
    rate = 1000 * private / max(1, total + readme)
    print(f"\nREADME.md {readme:,} words (at most {README_WORDS}); docs {total:,} (at most {DOCS_WORDS:,})")
    print(f"sentences over {LONG} words: {long / count:.1%} of {count:,} (at most {LONG_SHARE:.0%})")
    print(f"private words: {rate:.1f} per 1,000 words (at most {PRIVATE_RATE})")
    over = readme > README_WORDS or total > DOCS_WORDS or long > LONG_SHARE * count or rate > PRIVATE_RATE
    return int(over and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
