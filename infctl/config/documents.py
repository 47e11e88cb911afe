"""Pools and groups as an operator writes them: one YAML document is one spec, `apiVersion: infctl/v1`.

What is read here is whole: types, what must hold between the keys of one document, and between documents that are
read together. Notes are no errors: they say what the engine or the cluster will do with what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infctl.config.group import GroupDocument
from infctl.config.group_rules import group_problems
from infctl.config.pool import PoolDocument, pool_problems
from infctl.config.source import Document, Problem
from infctl.config.values import PORT_STEP

__all__ = ["DOCUMENTS", "RULES", "GroupDocument", "PoolDocument", "Read", "notes", "problems_between"]

DOCUMENTS: dict[str, type[PoolDocument] | type[GroupDocument]] = {"Pool": PoolDocument, "Group": GroupDocument}
RULES: dict[str, Callable[[Document], list[Problem]]] = {"Pool": pool_problems, "Group": group_problems}


@dataclass(frozen=True, slots=True)
class Read:
    """A document that is right by itself, and its source."""

    document: PoolDocument | GroupDocument
    source: Document


def owner(group: GroupDocument) -> str:
    """The node of node-rank 0."""
    return group.spec.node or group.spec.hosts[0].node


def problems_between(read: Sequence[Read]) -> list[Problem]:
    """Fixed ports of groups of one node that are too near to each other."""
    found: list[Problem] = []
    fixed: list[tuple[str, int, str]] = []
    for one in read:
        if isinstance(one.document, GroupDocument) and (port := one.document.spec.port):
            node, name = owner(one.document), one.document.metadata.name
            for other_node, other, other_name in fixed:
                if node == other_node and abs(port - other) < PORT_STEP:
                    message = f"{port} is less than {PORT_STEP} from {other} of group {other_name} on the same node"
                    found.append(one.source.problem(("spec", "port"), message, "or leave both to the daemon: port 0"))
            fixed.append((node, port, name))
    return found


def notes(read: Sequence[Read]) -> list[Problem]:
    """What is right and may still surprise."""
    groups = [(one, one.document) for one in read if isinstance(one.document, GroupDocument)]
    found: list[Problem] = []
    used: dict[tuple[str, str], str] = {}
    for one, group in groups:
        if group.spec.role != "unified":
            message = f"SGLang ignores the queue cap of a {group.spec.role} worker"
            found.append(one.source.problem(("spec", "maxQueued"), message, "gateways alone hold it"))
        for i, host in enumerate(group.spec.hosts):
            for gpu in host.gpus:
                other = used.setdefault((host.node, gpu), group.metadata.name)
                if other != group.metadata.name:
                    message = f"GPU {gpu} of {host.node} is used by group {other} too"
                    found.append(one.source.problem(("spec", "hosts", i, "gpus"), message, "both must fit into it"))
    for one in read:
        if not isinstance(one.document, PoolDocument) or not (budget := one.document.spec.budgets.recovery_tokens):
            continue
        loads = [
            (g.spec.max_running * g.spec.context_length, g.metadata.name)
            for _, g in groups
            if g.spec.pool == one.document.metadata.name
        ]
        load, name = max(loads, default=(0, ""))
        if load > budget:
            message = f"{budget} is less than the {load} tokens that group {name} may hold (maxRunning x contextLength)"
            hint = "after a fault some of its streams would wait or end"
            found.append(one.source.problem(("spec", "budgets", "recoveryTokens"), message, hint))
    return found
