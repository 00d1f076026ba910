"""Placement on a live Ray with two pretended GPUs: giving up, waiting, binding to a card."""

from __future__ import annotations

import os
import subprocess
import sys

# In a process of its own: Ray allows one cluster a process, and the one that other tests share has
# no GPUs.
SCRIPT = """
import logging, os, threading, time
import ray
from ray.util import placement_group_table
from mupo_ray.config import load_config
from mupo_ray.errors import PlacementError
from mupo_ray.placement.plan import Card, Role, actor_options, live_cluster, plan, wait_for_plan

def config(*overrides):
    return load_config([], ["run.device=cuda", "placement.check_memory=false", *overrides])

@ray.remote(num_gpus=1)
class Holder:
    def card(self):
        context = ray.get_runtime_context()
        return Card(node_id=context.get_node_id(), gpu=context.get_accelerator_ids()["GPU"][0])

class Engine:
    def cards(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

def held(gpus):
    while live_cluster().nodes[0].gpus != 2 - gpus:
        time.sleep(0.1)

logging.basicConfig(level=logging.WARNING)
ray.init(address="local", num_cpus=8, num_gpus=2, logging_level="ERROR",
         object_store_memory=80 * 2**20)
two = config("train.num_workers=2", "rollout.num_engines=2")
colocated = plan(two, live_cluster())
three = config("train.num_workers=2", "placement.mode=split")
holders = []
for gpus in (0, 1, 2):
    if gpus:
        holders.append(Holder.remote())
    cards = ray.get([holder.card.remote() for holder in holders])
    held(gpus)
    began = time.monotonic()
    try:
        wait_for_plan(three, 1)
    except PlacementError as err:
        print(err)
    assert time.monotonic() - began < 20
assert placement_group_table() == {}

# The holders stand for trainers: what is bound to their cards must see those, and reserve none.
assert sorted(card.gpu for card in cards) == ["0", "1"]
engines = [ray.remote(Engine).options(**actor_options(bundle, cards)).remote()
           for bundle in colocated.of(Role.ENGINE)]
assert ray.get([e.cards.remote() for e in engines], timeout=90) == [card.gpu for card in cards]

threading.Timer(1.0, lambda: [ray.kill(holder) for holder in holders]).start()
found = wait_for_plan(two, 60)
print("planned", [bundle.name for bundle in found.bundles if bundle.gpus])
"""


def test_d04_live_placement():
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for free in (2, 1, 0):
        assert f" CPU and {free} GPU free" in done.stdout
    assert done.stdout.count("gave up after 1 s: ") == 3
    assert "engine 0: required 1 GPU, available 0 GPU" in done.stdout
    assert "trainer 0-1, engine 0: required 1 GPU, available 0 GPU" in done.stdout
    assert "waiting for resources" in done.stderr
    assert "planned ['trainer 0', 'trainer 1']" in done.stdout
