"""`python -m infctl_daemon.engine.sim --model-path DIR …`: forks the tree first, then serves."""

from __future__ import annotations

import asyncio
import logging
import sys

from infctl_daemon.engine.sim.argv import parse
from infctl_daemon.engine.sim.tree import Tree


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stderr)
    tree = Tree(parse(sys.argv[1:]))
    tree.start()
    # only after the forks: these load threads and a lot of memory
    if 0 in tree.options.ranks:
        from infctl_daemon.engine.sim.serve import serve as follow
    else:
        from infctl_daemon.engine.sim.member import follow
    asyncio.run(follow(tree))


if __name__ == "__main__":
    main()
