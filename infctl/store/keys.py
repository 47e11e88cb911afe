"""Every key of the cluster's state, in one place (docs/design.md). Nobody else joins strings into keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cluster. Names are checked where they enter (`domain.ids.check_name`), so none holds a '/'."""

    cluster: str = "default"

    @property
    def root(self) -> str:
        return f"/infctl/v1/{self.cluster}/"

    # nodes
    @property
    def nodes(self) -> str:
        return f"{self.root}nodes/"

    def node_spec(self, node: str) -> str:
        return f"{self.nodes}{node}/spec"

    def node_status(self, node: str) -> str:
        return f"{self.nodes}{node}/status"

    def node_lease(self, node: str) -> str:
        return f"{self.nodes}{node}/lease"

    # pools
    @property
    def pools(self) -> str:
        return f"{self.root}pools/"

    def pool_spec(self, pool: str) -> str:
        return f"{self.pools}{pool}/spec"

    def pool_answer(self, pool: str) -> str:
        """The canary's known answer, recorded once by compare-and-swap and compared ever after."""
        return f"{self.pools}{pool}/answer"

    # groups
    @property
    def groups(self) -> str:
        return f"{self.root}groups/"

    def group(self, group: str) -> str:
        return f"{self.groups}{group}/"

    def group_spec(self, group: str) -> str:
        return f"{self.groups}{group}/spec"

    def group_status(self, group: str) -> str:
        return f"{self.groups}{group}/status"

    def group_generation(self, group: str) -> str:
        return f"{self.groups}{group}/generation"

    def group_hold(self, group: str) -> str:
        """There while the group is drained: no launch of it is started."""
        return f"{self.groups}{group}/hold"

    def group_launch(self, group: str, launch: str) -> str:
        return f"{self.groups}{group}/launches/{launch}"

    def launch_plan(self, group: str, launch: str) -> str:
        """What every host of a launch over several hosts starts; it goes with the launch's record."""
        return f"{self.group_launch(group, launch)}/plan"

    def group_rank(self, group: str, launch: str, host: str) -> str:
        return f"{self.groups}{group}/ranks/{launch}/{host}"

    # what gateways watch
    @property
    def endpoints(self) -> str:
        return f"{self.root}endpoints/"

    def endpoint(self, group: str) -> str:
        return f"{self.endpoints}{group}"

    @property
    def secrets(self) -> str:
        return f"{self.root}secrets/"

    def secret(self, group: str) -> str:
        return f"{self.secrets}{group}"

    @property
    def faults(self) -> str:
        return f"{self.root}faults/"

    def fault(self, group: str, launch: str) -> str:
        return f"{self.faults}{group}/{launch}"

    @property
    def suspicions(self) -> str:
        return f"{self.root}suspicions/"

    def suspicion(self, group: str, launch: str, gateway: str) -> str:
        return f"{self.suspicions}{group}/{launch}/{gateway}"

    # gateways and streams
    @property
    def gateways(self) -> str:
        return f"{self.root}gateways/"

    def gateway(self, gateway: str) -> str:
        return f"{self.gateways}{gateway}"

    @property
    def streams(self) -> str:
        return f"{self.root}streams/"

    def stream(self, stream: str) -> str:
        return f"{self.streams}{stream}"

    # what operators want, and what became of it
    @property
    def intents(self) -> str:
        return f"{self.root}intents/"

    def intent(self, intent: str) -> str:
        return f"{self.intents}{intent}"

    def intent_statuses(self, intent: str) -> str:
        return f"{self.intents}{intent}/status/"

    def intent_status(self, intent: str, executor: str) -> str:
        """`executor` carries it out: the name of a node, or `@infctl` for what infctl did itself when it wrote it."""
        return f"{self.intent_statuses(intent)}{executor}"

    @property
    def disruptions(self) -> str:
        return f"{self.root}disruptions/"

    def disruption(self, pool: str) -> str:
        return f"{self.disruptions}{pool}"

    @property
    def events(self) -> str:
        return f"{self.root}events/"

    def event(self, event: str) -> str:
        return f"{self.events}{event}"

    @property
    def format(self) -> str:
        """The version of this layout; written once by compare-and-swap."""
        return f"{self.root}format"

    def parts(self, key: str) -> tuple[str, ...]:
        """The segments after the root; empty when the key is of another cluster."""
        return tuple(key[len(self.root) :].split("/")) if key.startswith(self.root) else ()
