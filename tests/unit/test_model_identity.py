"""Revision, tokenizer digest and the rest of a model's identity, from its files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from infctl.domain.errors import StartFailed
from infctl_daemon.engine import identity
from infctl_daemon.engine.identity import identify, revision
from infctl_daemon.node.endpoint import _plain_defaults


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 512, "max_position_embeddings": 4096, "eos_token_id": 1})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_the_identity_holds_what_an_endpoint_says_about_its_model(model: Path) -> None:
    found = identify(str(model))
    assert found.revision == revision(model)
    assert len(found.revision) == 64
    assert found.tokenizer == str(model / "tokenizer.json")
    assert found.tokenizer_digest == hashlib.sha256(b"{}").hexdigest()
    assert (found.vocab_size, found.context_length, found.eos_ids) == (512, 4096, (1, 7))


def test_a_changed_weight_or_configuration_is_another_revision(model: Path) -> None:
    seen = {revision(model)}
    (model / "model.safetensors").write_bytes(b"weightz")
    os.utime(model / "model.safetensors", ns=(1, 1))
    seen.add(revision(model))
    (model / "config.json").write_text("{}")
    seen.add(revision(model))
    assert len(seen) == 3


def test_with_an_index_the_shards_are_known_by_name_and_size(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("{}")
    before = revision(model)
    (model / "model.safetensors").write_bytes(b"other w")
    assert revision(model) == before
    (model / "model.safetensors").write_bytes(b"longer weights")
    assert revision(model) != before


def test_the_same_files_elsewhere_are_the_same_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert identify(str(copy)).revision == identify(str(model)).revision


def test_a_stated_revision_must_begin_the_real_one_unless_it_is_a_label(model: Path) -> None:
    real = revision(model)
    assert identify(str(model), stated=real[:12]).revision == real
    assert identify(str(model), stated="release-3").revision == "release-3"
    with pytest.raises(StartFailed, match="not 00000000") as caught:
        identify(str(model), stated="0000000000")
    assert caught.value.reason == "WrongRevision"


def test_a_stated_context_length_wins_and_nested_configurations_are_read(model: Path) -> None:
    (model / "config.json").write_text(
        json.dumps({"text_config": {"vocab_size": 9, "max_position_embeddings": 77, "eos_token_id": 3}})
    )
    found = identify(str(model))
    assert (found.vocab_size, found.context_length, found.eos_ids) == (9, 77, (1, 3, 7))
    assert identify(str(model), context_length=50).context_length == 50


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_an_error_with_its_name(model: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(StartFailed, match=missing) as caught:
        identify(str(model))
    assert caught.value.reason == "ModelMissing"


def test_a_missing_folder_is_an_error_with_its_path() -> None:
    with pytest.raises(StartFailed, match="/nonexistent/model does not exist"):
        identify("/nonexistent/model")


def test_the_models_own_sampling_is_read_and_only_what_is_a_number(model: Path) -> None:
    generation = {"eos_token_id": 7, "temperature": 0.6, "top_k": 20, "top_p": "0.9", "min_p": None, "do_sample": True}
    (model / "generation_config.json").write_text(json.dumps(generation))
    assert identify(str(model)).sampling_defaults == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ([], False),
        (["--sampling-defaults", "model"], False),
        (["--sampling-defaults", "openai"], True),
        (["--sampling-defaults=openai"], True),
        (["--note", "openai", "--sampling-defaults"], False),
    ],
)
def test_an_engine_that_ignores_it_is_told_apart(arguments: list[str], plain: bool) -> None:
    assert _plain_defaults(arguments) is plain


def test_a_tokenizer_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    bad = tmp_path / "tokenizer.json"
    bad.write_text("{}")
    with pytest.raises(StartFailed, match=re.escape(f"{bad} cannot be used: Exception: ")):
        identity.encode(str(bad), "text")
    with pytest.raises(StartFailed, match="cannot be used: Exception: No such file"):
        identity.encode(str(tmp_path / "none.json"), "text")
