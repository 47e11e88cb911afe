"""Contexts: what is written is read back; a broken file names every problem; the order of sources holds."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.client.connect import find_cluster
from infctl.config.context import Context, Contexts, load_contexts, remove_context, save_context, text_of, use_context
from infctl.domain.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("INFCTL_ENDPOINTS", "INFCTL_CONTEXT", "INFCTL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "infctl" / "config.toml"


def test_round_trip_keeps_the_others(home: Path) -> None:
    save_context(Context("dev", ("127.0.0.1:1",), "default"), make_current=True)
    save_context(Context('we"ird\\name\n', ("h:2", "h:3"), "c"), make_current=False)
    found = load_contexts()
    assert found.current == "dev"
    assert found.contexts['we"ird\\name\n'] == Context('we"ird\\name\n', ("h:2", "h:3"), "c")
    assert remove_context("dev")
    assert not remove_context("dev")
    assert load_contexts().current == ""
    assert list(load_contexts().contexts) == ['we"ird\\name\n']


def test_the_token_for_daemons_is_the_environments_or_the_contexts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFCTL_READ_TOKEN_FILE", raising=False)
    home.parent.mkdir()
    home.write_text('current = "a"\n[contexts.a]\nendpoints = ["h:1"]\nread_token_file = "token"\n')
    token = home.parent / "token"
    assert find_cluster().read_token_file == token
    save_context(load_contexts().contexts["a"], make_current=True)
    assert load_contexts().contexts["a"].read_token_file == token
    assert find_cluster("flag:1").read_token_file is None
    monkeypatch.setenv("INFCTL_READ_TOKEN_FILE", "/other")
    assert find_cluster().read_token_file == find_cluster("flag:1").read_token_file == Path("/other")
    home.write_text("[contexts.a]\nendpoints = []\nread_token_file = 3\n")
    with pytest.raises(ConfigError, match=r"contexts\.a\.read_token_file: expected a text"):
        load_contexts()


def test_every_problem_is_named(home: Path) -> None:
    home.parent.mkdir()
    home.write_text('current = "x"\ncolour = 1\n[contexts.a]\nendpoints = "h"\n[contexts.b]\nendpoint = []\n')
    with pytest.raises(ConfigError) as caught:
        load_contexts()
    for words in ("colour: unknown key", "contexts.a.endpoints", "contexts.b.endpoint: unknown key", "no context 'x'"):
        assert words in caught.value.message


def test_flags_beat_environment_beats_context(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no cluster"):
        find_cluster()
    save_context(Context("dev", ("ctx:1",), "blue"), make_current=True)
    assert (find_cluster().endpoints, find_cluster().cluster) == (("ctx:1",), "blue")
    monkeypatch.setenv("INFCTL_ENDPOINTS", "env:1, env:2")
    assert find_cluster().endpoints == ("env:1", "env:2")
    assert find_cluster("flag:1").endpoints == ("flag:1",)
    assert find_cluster(context="dev").endpoints == ("ctx:1",)
    monkeypatch.setenv("INFCTL_CLUSTER", "green")
    assert {find_cluster("flag:1").cluster, find_cluster().cluster, find_cluster(context="dev").cluster} == {"green"}
    assert find_cluster("flag:1", cluster="red").cluster == "red"
    with pytest.raises(UsageError, match="no context 'nope'"):
        find_cluster(context="nope")
    with pytest.raises(UsageError, match="empty"):
        find_cluster(" , ")


HAND_WRITTEN = """\
# the clusters of the second floor
current = "dev"  # mine

[contexts.dev]
endpoints = ["127.0.0.1:1"]
cluster = "default"

# do not touch on Fridays
[contexts."big.one"]
endpoints = [
  "h1:2379",  # the rack at the window
  "h2:2379",
]
"""


def test_another_current_context_leaves_the_rest_as_it_was_written(home: Path) -> None:
    home.parent.mkdir()
    home.write_text(HAND_WRITTEN)
    assert use_context("big.one")
    assert home.read_text() == HAND_WRITTEN.replace('current = "dev"  # mine', 'current = "big.one"')
    assert not use_context("big.one")
    with pytest.raises(UsageError, match="no context 'x'") as caught:
        use_context("x")
    assert caught.value.hint == "known contexts: big.one, dev"


def test_a_context_is_replaced_where_it_stands_and_its_neighbours_keep_their_comments(home: Path) -> None:
    home.parent.mkdir()
    home.write_text(HAND_WRITTEN)
    save_context(Context("dev", ("h:9",), "blue"), make_current=True)
    text = home.read_text()
    assert text.startswith(
        '# the clusters of the second floor\ncurrent = "dev"\n\n[contexts.dev]\nendpoints = ["h:9"]\n'
    )
    assert "# do not touch on Fridays\n" in text
    assert '  "h1:2379",  # the rack at the window\n' in text
    assert remove_context("dev")
    assert "# do not touch on Fridays\n" in home.read_text()
    assert load_contexts() == Contexts(home, "", {"big.one": Context("big.one", ("h1:2379", "h2:2379"))})


def test_a_layout_that_cannot_be_edited_is_written_anew(home: Path) -> None:
    home.parent.mkdir()
    home.write_text('contexts = {a = {endpoints = ["h:1"]}, b = {endpoints = ["h:2"]}}\n')
    assert use_context("b")
    assert load_contexts() == Contexts(home, "b", {"a": Context("a", ("h:1",)), "b": Context("b", ("h:2",))})


NAMES = st.text(min_size=1, max_size=8)
CONTEXTS = st.dictionaries(NAMES, st.tuples(st.lists(NAMES, max_size=3), NAMES), max_size=4)


@given(CONTEXTS, st.lists(st.tuples(st.sampled_from(["use", "save", "drop"]), NAMES), max_size=6))
def test_whatever_is_done_the_file_says_what_was_meant(
    tmp_path_factory: pytest.TempPathFactory, start: dict[str, tuple[list[str], str]], changes: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("contexts") / "config.toml"
    have = Contexts(path, "", {n: Context(n, tuple(e), c) for n, (e, c) in start.items()})
    path.write_text(text_of(have), encoding="utf-8")
    assert load_contexts(path) == have
    expected = dict(have.contexts)
    current = ""
    for what, name in changes:
        if what == "save":
            save_context(Context(name, ("h:1",), name), make_current=True, path=path)
            expected[name], current = Context(name, ("h:1",), name), name
        elif what == "drop":
            assert remove_context(name, path) == (name in expected)
            expected.pop(name, None)
            current = "" if current == name else current
        elif name in expected:
            use_context(name, path)
            current = name
        assert load_contexts(path) == Contexts(path, current, expected)
    assert tomllib.loads(path.read_text(encoding="utf-8")).get("current", "") == current


def test_the_file_behind_a_link_is_written_and_keeps_its_mode(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(HAND_WRITTEN)
    real.chmod(0o600)
    home.parent.mkdir()
    home.symlink_to(real)
    assert use_context("big.one")
    assert home.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert load_contexts().current == "big.one"


def test_the_text_is_on_the_disk_before_it_takes_the_place_of_the_old(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        fsync(number)

    def moved(old: os.PathLike[str], new: os.PathLike[str]) -> None:
        done.append("moved")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    save_context(Context("dev", ("h:1",)), make_current=True)
    assert done == ["file", "moved", "folder"]
    assert os.listdir(home.parent) == ["config.toml"]


def test_a_write_that_fails_leaves_the_old_file_and_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.parent.mkdir()
    home.write_text(HAND_WRITTEN)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"config\.toml: cannot be written: No space left on device"):
        use_context("big.one")
    assert home.read_text() == HAND_WRITTEN
    assert os.listdir(home.parent) == ["config.toml"]
