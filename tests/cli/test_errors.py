"""Exit codes and the error form: one block for people, one line of JSON for programs, stdout stays clean."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infctl.cli.errors import EXIT_CODES
from tests.support.command import Run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("words", "code", "first", "hint"),
    [
        (["gte"], 2, "No such command 'gte'. Did you mean 'get'?", "infctl --help"),
        (["list", "nodes"], 2, "No such command 'list'. Did you mean 'get'?", "infctl --help"),
        (["get"], 2, "Missing argument", "infctl get --help"),
        (["get", "grops"], 2, "no kind 'grops'", "did you mean groups?"),
        (["get", "nodes", "-o", "xml"], 2, "Invalid value for '-o'", "infctl get --help"),
        (["get", "nodes,grops"], 2, "no kind 'grops'", "did you mean groups?"),
        (["get", "nodes,groups", "a"], 2, "names of several kinds are written KIND/NAME", "infctl get group/a node/n1"),
        (["get", "group/"], 2, "'group/' is not an address", "write group/NAME"),
        (["get", "node/n11"], 5, "node/n11 not found", "did you mean node/n1?"),
        (["get", "groups", "--for", "group/a"], 2, "--for goes with events only", "infctl get events --for group/a"),
        (["config", "use"], 2, "No such command 'use'. Did you mean 'use-context'?", "infctl config --help"),
        (["config", "use-context", "nope"], 2, "no context 'nope'", "known contexts: none"),
        (["config", "current-context"], 5, "no context is chosen", "infctl config use-context NAME"),
        (["config", "view", "-o", "xml"], 2, "no output 'xml'", "one of: toml"),
        (["get", "group/b"], 5, "group/b not found", "infctl get groups"),
        (["get", "group", "nwe"], 5, "group/nwe not found", "did you mean group/new?"),
        (["get", "nodes", "--context", "nope"], 2, "no context 'nope'", "known contexts: none"),
        (["apply", "-f", "absent.yaml"], 2, "absent.yaml: no such file", ""),
        (["demo", "--fault", "flood"], 2, "no fault 'flood'", "one of: kill-rank"),
        (["demo", "--tokens", "100"], 2, "--at must be between 1 and 99", ""),
        (["demo", "--engine", "vllm"], 2, "no engine 'vllm'", "one of: sim, sglang"),
        (["help", "exit-code"], 2, "no topic or command 'exit-code'", "did you mean exit-codes?"),
        (["completion", "csh"], 2, "no completion for 'csh'", "one of: bash, zsh, fish"),
    ],
)
def test_the_error_form(infctl: Run, words: list[str], code: int, first: str, hint: str) -> None:
    done = infctl(*words)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    told = [line for line in lines if line.startswith("error: ")]
    assert len(told) == 1
    assert told[0].startswith(f"error: {first}")
    assert any(re.fullmatch(r"  reason: [A-Z][A-Za-z]+", line) for line in lines)
    assert not hint or any(line.startswith("  hint: ") and hint in line for line in lines)


def test_json_mode_says_it_in_one_line(infctl: Run) -> None:
    done = infctl("get", "group/b", "-o", "json")
    assert (done.returncode, done.stdout) == (5, "")
    (line,) = done.stderr.splitlines()
    assert json.loads(line) == {
        "error": {"reason": "NotFound", "message": "group/b not found", "hint": "infctl get groups", "exitCode": 5}
    }


def test_an_unreachable_store_is_3(infctl: Run) -> None:
    done = infctl("get", "nodes", "--endpoints", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "StoreUnavailable" in done.stderr


def test_no_cluster_at_all_says_what_to_do(infctl: Run) -> None:
    done = infctl("get", "nodes", INFCTL_ENDPOINTS="")
    assert done.returncode == 2
    assert "reason: NoCluster" in done.stderr
    assert "infctl dev up" in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["version"], ["help", "exit-codes"], ["completion", "bash"]])
def test_a_broken_pipe_is_141_and_silent(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        argv = [sys.executable, "-m", "infctl.cli.entry", *words]
        done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, timeout=30)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_table_of_exit_codes_is_the_documented_one(infctl: Run) -> None:
    told = infctl("help", "exit-codes").stdout
    page = (DOCS / "exit-codes.md").read_text()
    for code, text in EXIT_CODES:
        assert f"{code:>4}  {text}" in told
        assert f"| {code} | {text} |" in page


def test_every_help_page_has_examples_or_is_short(infctl: Run) -> None:
    for words in (["get"], ["apply"], ["demo"], ["dev", "up"], ["completion"]):
        done = infctl(*words, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Examples:" in done.stdout
