"""Load for tests of endurance: session-shaped requests, a client that sends them, a fast engine, a proxy process.

    engine = Engine(tokenize=reference_ids())
    async with engine, Served(config(engine.url)) as proxy, Client(proxy.url) as client:
        await drive([Session(seed) for seed in range(50)], client.send, requests=1000)

Nothing here judges an answer. Same seeds, same requests of each session; how sessions interleave is for the clock.
"""

from tools.traffic.client import Client, Reply, drive
from tools.traffic.engine import Engine, Received, reference_ids
from tools.traffic.process import ProxyFailed, Served, config
from tools.traffic.sessions import WEIGHTS, Session

__all__ = [
    "WEIGHTS",
    "Client",
    "Engine",
    "ProxyFailed",
    "Received",
    "Reply",
    "Served",
    "Session",
    "config",
    "drive",
    "reference_ids",
]
