"""Do the simulated clusters notice when a mechanism of the shared order is missing? Takes them out of a copy, in turn.

    python -m tests.mutants.cluster [--list] [TEXT ...]

Each mutant is one mechanism taken out: a text of a source file that another one replaces. Seeds of clusters with
faults, or a scene or test that was made for the mechanism, run with it and have to fail. The exit code is 1 where a
mutant survives.
"""

import sys

from tests.mutants.sources import Mutant, run_chosen

TESTS = "tests/simulation/test_cluster.py::"
FOLLOWER, LEADER, LINK, MEMBER, ORDER = (
    f"gateway/cluster/{name}.py" for name in ("follower", "leader", "leader_link", "member", "pool_order")
)
ELECTION = "gateway/cluster/election.py"
ELECTING = ("tests/integration/store/test_redis_election.py",)
SEEDS = (f"{TESTS}test_a_cluster_with_faults_keeps_every_rule[0]",)
LEADING = ("tests/unit/gateway/cluster/test_leading.py",)
LEDGER = "policies/accounts/ledger.py"


def directed(scene: str) -> tuple[str]:
    return (f"{TESTS}test_every_rule_holds_where_one_mechanism_alone_keeps_it[{scene}]",)


MUTANTS = (
    # Who may decide, and who waits for whom.
    Mutant(
        "no action is carried out after the promise", LINK,
        "if not self.may_decide(now):  # rule 3", "if False:", directed("frozen_follower"),
    ),
    Mutant(
        "a leader waits for the members of the last list", LEADER,
        " or self._awaits(now):", ":", LEADING,
    ),
    Mutant(
        "a resigned leader that returns is waited for", "gateway/cluster/election.py",
        "if not returns:", "if True:", ("tests/unit/gateway/cluster/test_election.py",),
    ),
    Mutant(
        "the key of a leader that has ended is given up at once", ELECTION,
        "self._leader_epoch if self.leader in self._ended else 0", "0", directed("pause_of_a_killed_leader"),
    ),
    Mutant(
        "a process that has ended is waited for no more", ELECTION,
        "            if member not in self._ended:\n", "            if True:\n", directed("pause_of_a_killed_leader"),
    ),
    Mutant(
        "a key is given up when all have seen its leader end", "gateway/store/data/elect.lua",
        "has_ended = has_ended and (", "has_ended = has_ended or (", ELECTING,
    ),
    Mutant(
        "a former leader is waited for until its lease has ended, and no longer", ELECTION,
        "at if name == self._former else", "", directed("pause_of_a_frozen_leader"),
    ),
    Mutant(
        "members ask often where their leader is silent", ELECTION,
        "        if leader == self.leader:\n            self._hurry(now, SILENT_S)\n", "",
        ("tests/unit/gateway/cluster/test_election.py",),
    ),
    Mutant(
        "a leader waits until the lease of the one before has ended", ELECTION,
        "self._heard_from.get(name, at) + SILENT_S", "self._heard_from.get(name, at)", directed("lost_key"),
    ),
    Mutant(
        "nothing is sent to a backend before a measurement", "policies/fleet/fleet.py",
        "        for capacity in self.backends.values():\n            capacity.awaits_measurement = True\n",
        "        for capacity in self.backends.values():\n", directed("frozen_leader"),
    ),
    # What a leader goes on from.
    Mutant(
        "a leader goes on from the newest checkpoint", "gateway/cluster/checkpoints.py",
        "return decode_checkpoint(self.body) if self.body else None", "return None", SEEDS,
    ),
    Mutant(
        "counters do not begin at zero", ORDER,
        "        self.scheduler.restored(kept.service, now)\n", "", SEEDS,
    ),
    Mutant(
        "limits per minute go on", ORDER,
        "        self.scheduler.windows_restored(kept.windows, now)\n", "", directed("killed_leader"),
    ),
    Mutant(
        "a checkpoint has what was charged of open requests", ORDER,
        "{**self._charged, **open_}", "{}", SEEDS,
    ),
    Mutant(
        "a checkpoint says what it has taken in", LEADER,
        "{name: Taken((of := self._senders[name]).request, of.entry) for name in names}",
        "dict[str, Taken]()", SEEDS,
    ),
    Mutant(
        "an entry is kept until every later leader has it", "gateway/cluster/checkpoints.py",
        "SURE_AFTER: Final = 4", "SURE_AFTER: Final = 1", ("tests/unit/gateway/cluster/test_wire.py",),
    ),
    # What is charged.
    Mutant(
        "usage that was charged is not charged again", LEDGER,
        "True, self._charged_for(entry.usage), entry.usage", "True, 0.0, NO_USAGE", SEEDS,
    ),
    Mutant(
        "adopted requests are charged on", LEDGER,
        "        service = price(prompt, cached, output)\n",
        "        service = entry.service if entry.is_prepaid else price(prompt, cached, output)\n", SEEDS,
    ),
    Mutant(
        "what a checkpoint lacks of a running request is charged", ORDER,
        "asked, has.backend_id, charged or NO_USAGE)", "asked, has.backend_id, has.usage or NO_USAGE)", SEEDS,
    ),
    Mutant(
        "an entry of a log is taken in once", ORDER,
        "is_new = entry > self.entry", "is_new = True", SEEDS,
    ),
    Mutant(
        "a leader is told the log", FOLLOWER,
        "        for pool, entry in self.log:\n            say(pool, entry)\n", "", SEEDS,
    ),
    Mutant(
        "an end is logged while a leader decides", FOLLOWER,
        "        self.log.add(own.pool, own.ended(self.log.next_number(), outcome, timing))\n",
        "        entry = own.ended(self.log.next_number(), outcome, timing)\n"
        "        if self.link.leader is None:\n            self.log.add(own.pool, entry)\n", SEEDS,
    ),
    Mutant(
        "a rejection of what may have been dispatched is told", FOLLOWER,
        "if own.told is not None or own.is_retold:", "if False:", LEADING,
    ),
    Mutant(
        "what a member that is given up was charged is remembered", ORDER,
        "            self._charged[id_] = self._give_up(id_, known, now)\n        for id_ in",
        "            self._give_up(id_, known, now)\n        for id_ in", SEEDS,
    ),
    # What a connection that broke leaves behind.
    Mutant(
        "requests of a lost member are parked", ORDER,
        "            if known.backend_id is None:\n                self._park(id_, known, now)\n\n    def gone",
        "            pass\n\n    def gone", directed("broken_links"),
    ),
    Mutant(
        "a request that is read after its connection's end is parked", ORDER,
        "if sender.is_away:  # its connection was lost before this was taken in", "if False:", LEADING,
    ),
    Mutant(
        "a Dispatch that did not arrive is taken back", ORDER,
        "elif has.backend_id is None and known.backend_id is not None:", "elif False:", SEEDS,
    ),
    Mutant(
        "a request that no leader has taken in asks for admission", ORDER,
        "if not has_arrived and has.backend_id is None:", "if False:", SEEDS,
    ),
    Mutant(
        "a rejection stands", ORDER,
        "if id_ in self._refused:  # what was decided stays decided", "if False:", directed("broken_links"),
    ),
    # Members that are alone.
    Mutant(
        "a leader that is alone takes no checkpoints", LEADER,
        "now if self._alone is None else inf", "now", directed("lone_members"),
    ),
    Mutant(
        "a member that is alone has its part of a backend", MEMBER,
        "return replace(load, share=self.share)", "return load", SEEDS,
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_chosen(__doc__, MUTANTS))
