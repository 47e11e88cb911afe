"""Contexts: what is written is read back; a broken file names every problem; the order of sources holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.client.connect import find_cluster
from infctl.config.context import Context, load_contexts, remove_context, save_context
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
