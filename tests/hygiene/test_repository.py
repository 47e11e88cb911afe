"""The repository keeps its own rules: small files, a quick command line, nothing of one machine in it."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for top in ("infctl", "daemon") for p in (ROOT / top).rglob("*.py"))
HARD_STOP, MEDIAN = 600, 160


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_files_are_small() -> None:
    sizes = {p: n for p in SOURCES if (n := lines(p))}
    assert {str(p): n for p, n in sizes.items() if n > HARD_STOP} == {}
    assert statistics.median(sizes.values()) <= MEDIAN


def test_every_file_says_what_it_keeps_true() -> None:
    silent = [str(p.relative_to(ROOT)) for p in SOURCES if (text := p.read_text()) and not text.startswith('"""')]
    assert silent == []


def test_no_vague_names() -> None:
    vague = re.compile(r"class \w*(Manager|Helper|Utils?)\b")
    assert [str(p) for p in SOURCES if p.stem in ("utils", "helpers", "misc") or vague.search(p.read_text())] == []


def test_nothing_of_one_machine() -> None:
    """No path, host or address of where it was written; spelled in halves so that this file passes its own test."""
    words = ["/wo" + "rk/", "pypi" + ".org", "index" + "-url", "trusted" + "-host", "/ro" + "ot/.cache"]
    found = []
    for path in tracked():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []


HEAVY = ("grpc", "pydantic", "rich", "aiohttp", "httpx", "structlog", "textual", "yaml", "msgspec", "typer")


@pytest.mark.parametrize(
    ("words", "allowed"),
    [(["version"], ()), (["--help"], ("typer",)), (["help", "exit-codes"], ("typer",)), (["gte"], ("typer",))],
)
def test_quick_commands_load_nothing_heavy(words: list[str], allowed: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom infctl.cli.entry import run\n"
        f"run({words!r})\n"
        "print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert loaded & set(HEAVY) - set(allowed) == set()


def test_the_first_word_comes_quickly() -> None:
    """The best of five: a loaded machine may be slow, a heavy import is slow each time."""
    best = 9.9
    argv = [sys.executable, "-m", "infctl.cli.entry", "version"]
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(argv, capture_output=True, timeout=30, check=True)
        best = min(best, time.perf_counter() - began)
    assert best < 0.3
