"""How long are the pages, and do they use the words that they should?

    python tests/docs/words.py               words per page, and what is wrong; the exit code is 1 where anything is
    python tests/docs/words.py --sample 100  paragraphs of prose, drawn by --seed, for a second reader to mark

A word is what stands between spaces and has a letter or a digit, code and tables included. Banned words (banned.toml)
are looked for in prose: code, the targets of links and comments are left out.
"""

import argparse
import random
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("docs/**/*.md", "README.md", "CONTRIBUTING.md")
BANNED: Mapping[str, str] = tomllib.loads((ROOT / "tests/docs/banned.toml").read_text(encoding="utf-8"))["banned"]
# The goal is 35,000 words, which take a reader three hours (200 a minute); figures are looked up, a third of them. The
# limit of all pages is what they have now, and goes down with them.
WORDS_MAX = {"docs/results/": 8_900, "": 35_600}
NO_PROSE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
EACH = "|".join(sorted(BANNED, key=len, reverse=True)).replace(" ", r"\s+")
FORMS = re.compile(rf"\b({EACH})s?\b", re.IGNORECASE)


def count(page: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in page.split())


def banned(name: str, page: str) -> Iterator[str]:
    """A sentence on each banned word of a page."""
    prose = NO_PROSE.sub(lambda code: "\n" * code[0].count("\n"), page)
    for found in FORMS.finditer(prose):
        line, word = prose.count("\n", 0, found.start()) + 1, " ".join(found[1].lower().split())
        yield f"{name}:{line}: '{word}' is not a word of these pages: {BANNED[word]}"


def too_long(words: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """A sentence on each folder whose pages have more words than its limit; the empty name is that of all pages."""
    for folder, limit in limits.items():
        total = sum(number for name, number in words.items() if name.startswith(folder))
        if total > limit:
            yield f"{folder or 'all pages'}: {total:,} words, of {limit:,} at most"


def faults(pages: Mapping[str, str], limits: Mapping[str, int] = WORDS_MAX) -> list[str]:
    """What is wrong with these pages (name, text), in sentences."""
    words = {name: count(page) for name, page in pages.items()}
    return [*too_long(words, limits), *(each for name, page in pages.items() for each in banned(name, page))]


def paragraphs(page: str) -> Iterator[str]:
    """Blocks of prose and items of lists, of at least ten words: no headings, tables, code or pictures."""
    prose = re.sub(r"^```.*?^```$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        text = " ".join(block.split())
        if text and not text.startswith(("#", "|", "!")) and count(text) >= 10:
            yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="print so many paragraphs, drawn from all pages")
    parser.add_argument("--seed", type=int, default=1, help="which paragraphs are drawn")
    asked = parser.parse_args()
    files = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    pages = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    if asked.sample:
        every = [f"{name}: {text}" for name, page in pages.items() for text in paragraphs(page)]
        print("\n\n".join(random.Random(asked.seed).sample(every, asked.sample)))
        return
    words = {name: count(page) for name, page in pages.items()}
    for name, number in sorted(words.items(), key=lambda each: -each[1]):
        print(f"{number:7,} {name}")
    for folder, limit in WORDS_MAX.items():
        print(
            f"{sum(words[name] for name in words if name.startswith(folder)):7,} {folder or 'all'} (at most {limit:,})"
        )
    wrong = faults(pages)
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
