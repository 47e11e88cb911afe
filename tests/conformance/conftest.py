"""The engines under test: one of each kind for the whole run, started again after a case that ended it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infctl_daemon.engine.sim.model import write_model
from tests.conformance.engines import CONTEXT, SGLANG_MODEL, SGLANG_PYTHON, Engine, start
from tests.conformance.sims import Sim, Start, launch, wait_ready

_START_LIMIT = 420  # the first case of the real engine waits for it: a minute and more on two cores


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("sim"),
        pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.timeout(_START_LIMIT)]),
    ],
)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "sglang" and not (SGLANG_PYTHON.exists() and (SGLANG_MODEL / "config.json").exists()):
        pytest.skip("the real engine is not installed: .ci/sglang_env.sh builds it")
    return str(request.param)


@pytest.fixture(scope="session")
def launcher(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Engine]]:
    """Gives the running engine of a diagnostics setting, starting one when there is none."""
    folder = tmp_path_factory.mktemp(kind)
    model = SGLANG_MODEL
    if kind == "sim":
        model = folder / "model"
        write_model(model, context=CONTEXT)
    current: list[tuple[bool, Engine]] = []

    def give(diagnostics: bool) -> Engine:
        if current and (current[0][0] != diagnostics or not current[0][1].alive):
            current.pop()[1].end()
        if not current:
            current.append((diagnostics, start(kind, model, Path(folder), diagnostics=diagnostics)))
        return current[0][1]

    yield give
    if current:
        current[0][1].end()


@pytest.fixture
def engine(launcher: Callable[[bool], Engine]) -> Iterator[Engine]:
    """A ready engine with the crash diagnostics off. Whatever a case froze is thawed after it."""
    running = launcher(False)
    yield running
    _thaw(running)


@pytest.fixture
def diagnosing(launcher: Callable[[bool], Engine]) -> Iterator[Engine]:
    """A ready engine with SGLang's default environment: it freezes before it ends."""
    running = launcher(True)
    yield running
    _thaw(running)


def _thaw(running: Engine) -> None:
    for pid in list(running.frozen):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    running.frozen.clear()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated model, shared by all cases of simulated engines only."""
    out = tmp_path_factory.mktemp("model")
    write_model(out)
    return out


@pytest.fixture
def start_sim(model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts simulated engines with flags of one's own; all are ended afterwards."""
    running: list[Sim] = []

    def go(*flags: str, ready: bool = True) -> Sim:
        running.append(launch(model, tmp_path, *flags))
        if ready:
            wait_ready(running[-1])
        return running[-1]

    yield go
    for sim in running:
        sim.end()
