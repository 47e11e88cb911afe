"""Where the read-only API may listen: whatever others could read without a token or a certificate is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.config.load import load_node_config
from infctl.config.read_api import ReadApi, check_read_api, host_port, read_token
from infctl.domain.errors import ConfigError
from infctl_daemon.node.api_options import read_api
from infctl_daemon.node.main import arguments
from tests.support.certs import HAVE_OPENSSL, Authority


def token(folder: Path, text: str = "0123456789abcdef\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def api_of(folder: Path, text: str, *words: str) -> ReadApi:
    file = folder / "node.yaml"
    file.write_text(text)
    args = arguments(["--config", str(file), *words])
    return read_api(args, load_node_config(file))


def test_by_default_it_is_on_loopback_and_needs_nothing(tmp_path: Path) -> None:
    assert api_of(tmp_path, "") == ReadApi("127.0.0.1", 8070)
    assert api_of(tmp_path, "", "--read-api", "127.0.0.1:0").port == 0
    assert api_of(tmp_path, "readApi: {listen: '[::1]:81'}").host == "::1"


@pytest.mark.parametrize("listen", ["10.0.0.1:8070", "0.0.0.0:8070", "[::]:8070", "gpu-01.rack2:8070"])
def test_an_address_for_others_without_a_token_or_certificates_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        api_of(tmp_path, "", "--read-api", listen)
    assert caught.value.reason == "ReadApiOpen"
    assert caught.value.message.startswith("--read-api: the read API would listen on ")


def test_a_token_opens_an_address_for_others(tmp_path: Path) -> None:
    text = f"readApi: {{listen: '10.0.0.1:81', tokenFile: {token(tmp_path)}}}"
    assert api_of(tmp_path, text).token_file == tmp_path / "token"
    with pytest.raises(ConfigError, match="no address that others can reach"):
        api_of(tmp_path, text, "--read-api", "0.0.0.0:81")
    good = api_of(tmp_path, text.replace("10.0.0.1", "0.0.0.0").replace("{l", "{advertise: 'h:81', l"))
    assert (good.wildcard, good.advertise) == (True, "h:81")


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl is not installed")
def test_client_certificates_open_an_address_for_others_and_a_certificate_of_ours_alone_does_not(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("node")
    pair = f"cert: {tmp_path}/ca/node.pem, key: {tmp_path}/ca/node.key"
    text = f"readApi: {{listen: '10.0.0.1:81', tls: {{{pair}, clientCa: {tmp_path}/ca/ca.pem}}}}"
    assert api_of(tmp_path, text).tls is not None
    with pytest.raises(ConfigError, match="for everybody"):
        api_of(tmp_path, f"readApi: {{listen: '10.0.0.1:81', tls: {{{pair}}}}}")
    with pytest.raises(ConfigError, match=r"TLS of the read API .*No such file"):
        api_of(tmp_path, text.replace("node.key", "other.key"))


def test_every_error_of_the_file_comes_at_once(tmp_path: Path) -> None:
    text = "readApi:\n  listen: nowhere\n  tokenfile: x\n  tls:\n    clientCa: ca.pem\n"
    with pytest.raises(ConfigError) as caught:
        api_of(tmp_path, text)
    file = tmp_path / "node.yaml"
    assert [line.strip() for line in caught.value.message.splitlines()][1:] == [
        f"{file}:2: readApi.listen: expected host:port, not 'nowhere'",
        f"{file}:3: readApi.tokenfile: unknown key (did you mean tokenFile?)",
        f"{file}:4: readApi.tls: clientCa needs a certificate of our own: cert and key are missing",
    ]


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("0123456789abcdef", 0o640, "can be read by others (mode 0640)"),
        ("0123456789abcdef", 0o604, "can be read by others (mode 0604)"),
        ("short", 0o600, "one word of at least 16 characters"),
        ("", 0o600, "one word of at least 16 characters"),
        ("two words of many letters", 0o600, "one word of at least 16 characters"),
    ],
)
def test_a_token_file_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_read_api(ReadApi(token_file=token(tmp_path, text, mode)), "readApi")
    assert said in caught.value.message
    assert "0123456789abcdef" not in caught.value.message


def test_a_token_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "8070", ":8070", "h:", "h:x", "h:70000", "::1:80", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        host_port(text)
