"""A node: whether its daemon is heard, what the host is, and the groups that are to run there."""

from __future__ import annotations

from infctl.view.describe.look import Look, count
from infctl.view.describe.page import Page, Tone
from infctl.view.drains import INTENT_HEADS, group_phase, groups_on, intent_rows, node_phase
from infctl.view.hosts import HostPart, guests, running_spec
from infctl.view.humanize import size

PARTS = ("GROUP", "OWNER", "NODE-RANK", "STATE", "RANKS", "PID", "SINCE", "LAUNCH")


def describe(look: Look, name: str) -> Page:
    s = look.snapshot
    lease, status, spec = s.node_leases.get(name), s.node_status.get(name), s.node_specs.get(name)
    groups = groups_on(s, name)
    owned = [group for group in groups if s.groups[group].node == name]
    parts = guests(s, name)
    address = f"node/{name}"
    if lease is None:
        page = Page(address, "NotResponding", Tone.BAD, "its daemon's lease is gone; what runs there is not known")
    elif spec and spec.cordoned:
        page = Page(address, node_phase(s, name), Tone.WARN, spec.reason)
    else:
        lent = f", {len(groups) - len(owned)} owned by other hosts" if len(owned) < len(groups) else ""
        page = Page(address, "Ready", Tone.GOOD, f"{count(len(groups), 'group')} placed here{lent}")
    if lease:
        page.fact("Daemon", f"infctl-noded {lease.version}".rstrip(), f"started {look.ago(lease.started_at)}",
                  f"incarnation {lease.incarnation}")  # fmt: skip
        page.fact("Read API", lease.address or "off")
        if lease.engines_at:
            page.fact("Engines at", lease.engines_at)
        page.fact("Boot id", lease.boot_id)
    if status:
        page.fact("Host", f"{status.cpus} CPUs" if status.cpus else "", f"{size(status.memory_bytes)} of memory")
        page.fact("Last change", look.ago(status.updated_at))
    if spec and (spec.cordoned or spec.actor):
        page.fact("Cordoned", "yes" if spec.cordoned else "no", f"by {spec.actor}" if spec.actor else "",
                  spec.reason)  # fmt: skip
    if status:
        page.table("Conditions", ("TYPE", "STATUS", "REASON", "MESSAGE"), [
            tuple(str(c.get(key) or "-") for key in ("type", "status", "reason", "message")) for c in status.conditions
        ])  # fmt: skip
    rows = []
    for group in owned:
        said = s.group_status.get(group)
        live = look.live_streams(launch=said.launch) if said and said.launch else []
        state = group_phase(s, group).capitalize() if said else "Unknown"
        rows.append((group, state if lease else f"{state}?", (said.reason if said else "") or "-", s.groups[group].pool,
                     str(s.groups[group].ranks), str(said.processes if said else 0), str(len(live))))  # fmt: skip
    page.table("Groups", ("GROUP", "STATE", "REASON", "POOL", "RANKS", "PROCESSES", "STREAMS"), rows,
               right="RANKS PROCESSES STREAMS")  # fmt: skip
    page.table("Parts of groups that other hosts own", PARTS, [_part(look, group, one) for group, one in parts],
               right="NODE-RANK RANKS PID")  # fmt: skip
    intents = intent_rows(s, address, *(f"group/{group}" for group in groups))
    page.table("Intents", INTENT_HEADS, intents, right="STREAMS")
    look.tell(page, address, actor=address)
    _advise(look, page, name, groups, [(group, one) for group, one in parts if one.part and not one.loaded])
    return page


def _part(look: Look, group: str, one: HostPart) -> tuple[str, ...]:
    generation, part = look.snapshot.generations.get(group), one.part
    return (
        group,
        spec.node if (spec := running_spec(look.snapshot, group)) else "-",
        str(one.node_rank),
        one.state,
        f"{part.ranks if part else '-'}/{one.wanted}",
        str(part.pid) if part and part.pid else "-",
        (look.ago(part.at) if part else "") or "-",
        generation.launch if generation else "-",
    )


def _advise(look: Look, page: Page, name: str, groups: list[str], look_at: list[tuple[str, HostPart]]) -> None:
    """`look_at`: parts that are here and do not serve."""
    s = look.snapshot
    if name not in s.node_leases:
        page.step(f"Look at the daemon and the host: on {name}, systemctl status infctl-noded.")
        page.step("A lost lease kills nothing by itself: engines there may go on serving until their endpoint is gone.",
                  "infctl get endpoints")  # fmt: skip
        return
    spec = s.node_specs.get(name)
    if spec and spec.cordoned:
        if spec.drain:
            page.step("It and its groups come back when it is undrained.", "infctl undrain", f"node/{name}")
        else:
            page.step("It takes no new groups until it is uncordoned.", "infctl uncordon", f"node/{name}")
    for group in groups:
        said = s.group_status.get(group)
        if group in s.holds:
            continue
        if said is None or said.phase != "ready":
            page.step(
                f"group/{group} is {said.phase if said else 'not taken up'}.", "infctl describe", f"group/{group}"
            )
    for group, one in look_at:
        page.step(f"What the engine of group/{group} says here, where it is {one.state}:",
                  f"infctl logs group/{group} --host", name)  # fmt: skip
    if not groups:
        page.step(f"Nothing is placed here: apply a group with node: {name}.", "infctl apply -f GROUP.yaml")
