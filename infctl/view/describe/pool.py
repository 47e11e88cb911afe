"""A pool: how many of its groups serve, how many it needs, and which ones are missing."""

from __future__ import annotations

from infctl.store.records import KnownAnswer
from infctl.view.describe.look import Look, count
from infctl.view.describe.page import Page, Tone
from infctl.view.drains import group_phase
from infctl.view.humanize import short


def describe(look: Look, name: str) -> Page:
    s = look.snapshot
    pool = s.pools[name]
    groups = sorted(g.name for g in s.groups.values() if g.pool == name)
    endpoints = [e for e in s.endpoints.values() if e.pool == name]
    ready = [e for e in endpoints if e.state == "ready"]
    state, tone = _state(len(ready), pool.min_ready)
    page = Page(f"pool/{name}", state, tone, f"{len(ready)} of {count(len(groups), 'group')} ready, "
                                             f"{pool.min_ready} needed")  # fmt: skip
    page.fact("Model", f"{pool.model} (the name clients ask for)")
    page.fact(
        "Capacity", f"{sum(e.max_running for e in ready)} running + {sum(e.max_queued for e in ready)} queued now"
    )
    revisions = sorted({e.revision for e in ready})
    page.fact("Revisions", *(short(r, 20) for r in revisions))
    answer = s.answers.get(name)
    page.fact("Budgets", f"{count(pool.disruptions, 'group')} down on purpose at once",
              f"{pool.recovery_tokens} tokens prefilled again at once" if pool.recovery_tokens else "")  # fmt: skip
    page.fact("Canary", f"{pool.canary_tokens} tokens after {pool.canary_prompt!r}")
    if answer:
        page.fact("Known answer", _standing(answer), f"of revision {short(answer.revision, 20)}",
                  f"recorded {look.ago(answer.recorded_at)}", f"by {answer.recorded_by}")  # fmt: skip
    else:
        page.fact("Known answer", "the operator's" if pool.canary_answer else
                  "none yet; the first launch that answers records it")  # fmt: skip
    live = [r for r in look.live_streams() if r.model == pool.model]
    page.fact("Streams", f"{count(len(live), 'stream')} of this model running")
    page.table("Groups", ("GROUP", "STATE", "REASON", "NODE", "GEN", "LAUNCH"), [_row(look, g) for g in groups],
               right="GEN")  # fmt: skip
    look.tell(page, f"pool/{name}", *(f"group/{g}" for g in groups))
    if not groups:
        page.step(f"No group belongs to it: apply one with pool: {name}.", "infctl apply -f GROUP.yaml")
    missing = [g for g in groups if g not in {e.group for e in ready}]
    for node in sorted({s.groups[g].node for g in missing if not look.node_is_heard(s.groups[g].node)}):
        page.step(f"The daemon of node/{node} is not heard.", "infctl describe", f"node/{node}")
    for group in missing:
        if look.node_is_heard(s.groups[group].node):
            page.step(f"group/{group} does not serve.", "infctl describe", f"group/{group}")
    if answer and (odd := [voice.group for voice in answer.refused if voice.group in groups]):
        page.step(f"{', '.join(odd)} answered otherwise. Which is right? Two groups that agree decide it, or an answer "
                  "in the pool's specification.", "infctl describe", f"group/{odd[0]}")  # fmt: skip
    if ready and len(ready) == pool.min_ready:
        page.step("There is no spare group: the next loss leaves fewer than needed.")
    if len(revisions) > 1:
        page.step("Several revisions are served: a stream moves only to a group of its own revision.",
                  "infctl get endpoints -o wide")  # fmt: skip
    digests = {e.tokenizer_digest for e in ready}
    if len(digests) > 1:
        page.step("The tokenizers differ: a stream moves only where the tokenizer is the same.",
                  "infctl get endpoints -o json")  # fmt: skip
    return page


def _standing(answer: KnownAnswer) -> str:
    """Whose word the known answer is."""
    if answer.by_operator:
        return "given by the operator"
    voices = " and ".join(voice.group for voice in answer.voices)
    return f"agreed by {voices}" if answer.confirmed else f"provisional{f', given only by {voices}' if voices else ''}"


def _state(ready: int, needed: int) -> tuple[str, Tone]:
    if ready and ready >= needed:
        return "Ready", Tone.GOOD
    return ("Degraded", Tone.WARN) if ready else ("NotReady", Tone.BAD)


def _row(look: Look, name: str) -> tuple[str, ...]:
    s = look.snapshot
    status, generation = s.group_status.get(name), s.generations.get(name)
    node = s.groups[name].node
    state = group_phase(s, name).capitalize() if status else "Unknown"
    heard = look.node_is_heard(node)
    return (
        name,
        state if heard else f"{state}?",
        (status.reason if status and heard else "" if heard else "node not heard") or "-",
        node,
        str(generation.generation) if generation else "-",
        generation.launch if generation else "-",
    )
