"""Do the simulated clusters notice when a mechanism of the shared order is missing? Takes them out of a copy, in turn.

    python -m tests.mutants.cluster [--list] [TEXT ...]

Each mutant is one mechanism taken out: a text of a source file that another one replaces. Seeds of clusters with
faults, or a scene or test that was made for the mechanism, run with it and have to fail. The exit code is 1 where a
mutant survives.
"""

import sys

from tests.mutants.sources import Mutant, run_chosen

TESTS = "tests/simulation/test_cluster.py::"
FOLLOWER, LINK, REPORTS, TELLING = (
    f"gateway/cluster/follower/{name}.py" for name in ("follower", "leader_link", "leader_reports", "telling")
)
LEADER, ORDER, JOURNAL, STREAM, REQUESTS, DECISIONS, JOINING = (
    f"gateway/cluster/leader/{name}.py"
    for name in ("leader", "pool_order", "pool_journal", "checkpoint_stream", "pool_requests", "decisions", "joining")
)
MEMBER = "gateway/cluster/member.py"
ELECTION, CAMPAIGN, LISTED = (f"gateway/cluster/{name}.py" for name in ("election", "campaign", "listed_members"))
LUA = "gateway/store/data/elect.lua"
CANDIDATE = ("tests/unit/gateway/cluster/test_election.py",)
ELECTING = ("tests/integration/store/test_redis_election.py",)
SEEDS = (f"{TESTS}test_a_cluster_with_faults_keeps_every_rule[0]",)
LEADING = ("tests/unit/gateway/cluster/test_leading.py",)
KEPT = ("tests/unit/gateway/cluster/test_checkpoints.py",)
TOLD = ("tests/unit/gateway/cluster/test_telling.py",)
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
        "a leader waits for the members of the last list", "gateway/cluster/leader/gathering.py",
        " or self.awaits(now):", ":", LEADING,
    ),
    Mutant(
        "a resigned leader that returns is waited for", "gateway/cluster/election.py",
        "if not returns:", "if True:", CANDIDATE,
    ),
    # Whose key ends when.
    Mutant(
        "the key of a leader that has ended is given up at once", ELECTION,
        "has_ended = self.listed.has_ended(self.key.leader) and not self.is_bound", "has_ended = False",
        directed("pause_of_a_killed_leader"),
    ),
    Mutant(
        "a process that has ended is granted nothing", CAMPAIGN,
        "        self._follower.link.granting.release(member)\n", "", directed("pause_of_a_killed_leader"),
    ),
    Mutant(
        "a process that has ended is waited for no more", LISTED,
        "known | ended | unknown", "known | unknown", directed("pause_of_a_killed_leader"),
    ),
    Mutant(
        "backends have time to drop the requests of a process that has ended", LISTED,
        "name: at + ABORT_S for", "name: at for", CANDIDATE,
    ),
    Mutant(
        "a key is given up when all have seen its leader end", LUA,
        "has_ended = has_ended and (", "has_ended = has_ended or (", ELECTING,
    ),
    Mutant(
        "a former leader is waited for until its lease has ended, and no longer", LISTED,
        "at if name == self._former else", "", directed("pause_of_a_frozen_leader"),
    ),
    Mutant(
        "members ask often where their leader is silent", ELECTION,
        "        if leader == self.key.leader:\n            self.asking.hurry(now, SILENT_S)\n", "", CANDIDATE,
    ),
    Mutant(
        "a leader waits until the lease of the one before has ended", LISTED,
        "self._heard_from.get(name, at) + SILENT_S", "self._heard_from.get(name, at)", directed("lost_key"),
    ),
    # A majority renews the lease.
    Mutant(
        "members renew the lease of their leader", CAMPAIGN,
        "max(key.lease_until, min(by_members, key.lease_until + WITHOUT_STORE_S))", "key.lease_until",
        directed("without_store"),
    ),
    Mutant(
        "it takes a majority of them", "gateway/cluster/promise.py",
        "times[len(members) // 2]", "times[len(members) // 2 - 1]", directed("split"),
    ),
    Mutant(
        "a grant binds for as long as it lasts", "gateway/cluster/promise.py",
        "self._leader, self._until = leader, now + LEASE_S", "self._leader, self._until = leader, now",
        directed("split"),
    ),
    Mutant(
        "a member that helps a leader does not stand", ELECTION,
        "self.stands and not self.is_bound and", "self.stands and", CANDIDATE,
    ),
    Mutant(
        "a member that gave its word takes it back before it grants", ELECTION,
        "return self._told_free < epoch and", "return", CANDIDATE,
    ),
    Mutant(
        "a leader needs a majority of each list that the store may have", "gateway/cluster/witness_lists.py",
        "*([] if self._proposed is None else [self._proposed])", "", CANDIDATE,
    ),
    Mutant(
        "an order without the store ends", CAMPAIGN,
        "min(by_members, key.lease_until + WITHOUT_STORE_S)", "by_members", directed("abandoned"),
    ),
    Mutant(
        "a member that is alone returns to a leader that has a majority", CAMPAIGN,
        "if self._lead.is_standalone and self.candidate.listed.strangers:", "if self._lead.leader is not None:",
        directed("returned"),
    ),
    Mutant(
        "a member that may not lead is alone", CAMPAIGN,
        "candidate.asking.is_reached(now) and not candidate.key.is_refused(now)", "candidate.asking.is_reached(now)",
        directed("minority"),
    ),
    Mutant("witnesses keep the key", LUA, "return 2 * free_count >= count", "return true", ELECTING),
    Mutant(
        "a call that comes late says nothing", LUA,
        "if tonumber(ARGV[7]) <= report_of(name) then", "if false then", ELECTING,
    ),
    Mutant(
        "a leader has its key again", LUA,
        "or (not holder and before <= epoch)", "", ELECTING,
    ),
    # Before it decides.
    Mutant(
        "nothing is sent to a backend before a measurement", "policies/fleet/fleet.py",
        "        for capacity in self.backends.values():\n            capacity.awaits_measurement = True\n",
        "        for capacity in self.backends.values():\n", directed("frozen_leader"),
    ),
    # What a leader goes on from.
    Mutant(
        "a leader goes on from the newest checkpoint", "gateway/cluster/checkpoints.py",
        "return compose(self.records, self.at) if self.mark > Mark() else None", "return None", SEEDS,
    ),
    Mutant(
        "counters do not begin at zero", ORDER,
        "        self.scheduler.told(Restored(now, kept.service))\n", "", SEEDS,
    ),
    Mutant(
        "limits per minute go on", JOURNAL,
        "                self._scheduler.told(WindowsRestored(now, windows))\n", "                pass\n",
        directed("killed_leader"),
    ),
    Mutant(
        "a checkpoint has what was charged of open requests", JOURNAL,
        "            records |= charged_record(self._pool, id_, usage)\n", "", SEEDS,
    ),
    Mutant(
        "a checkpoint says what it has taken in", STREAM,
        "records |= member_record(sender.member, Taken(sender.request, sender.entry))", "pass", SEEDS,
    ),
    Mutant(
        "an entry is kept until every later leader has it", "gateway/cluster/checkpoints.py",
        "SURE_AFTER: Final = 4", "SURE_AFTER: Final = 1", KEPT,
    ),
    Mutant(
        "changes count only after the checkpoint that they are of", "gateway/cluster/checkpoints.py",
        "if Mark(*part.base) == self.mark:", "if mark > self.mark:", KEPT,
    ),
    Mutant(
        "a checkpoint is taken when all that changed was written", STREAM,
        "if all(journal.is_empty for journal in journals):", "if True:", KEPT,
    ),
    Mutant(
        "a member that is told all records is told what changes meanwhile", STREAM,
        "{*self._follow, *self._wholes, *self._told_whole}", "{*self._follow, *self._told_whole}", KEPT,
    ),
    Mutant(
        "a member that lacks the checkpoint is told all records", STREAM,
        "        if mark == self.newest.mark:\n", "        if True:\n", KEPT,
    ),
    Mutant(
        "what was spent is written", ORDER,
        "            self.journal.tenant(message.tenant_id, message.key_id)\n", "            pass\n", KEPT,
    ),
    Mutant(
        "what becomes of a request is written", ORDER,
        "            self.journal.request(id_, known.asked)\n\n", "            pass\n\n", SEEDS,
    ),
    Mutant(
        "what is decided is written", DECISIONS,
        "            self._journal.request(action.request_id, known.asked)\n", "", SEEDS,
    ),
    Mutant(
        "a turn writes a bounded number of tenants", JOURNAL,
        "most = len(self._tenants) if all_of_it else WRITTEN_MAX", "most = len(self._tenants)", KEPT,
    ),
    Mutant(
        "records of limits keep their age", "gateway/cluster/leader/checkpoint_stream.py",
        "self._later_s, self._due_at = self.newest.at - now, now", "self._due_at = now", KEPT,
    ),
    # What is charged.
    Mutant(
        "usage that was charged is not charged again", LEDGER,
        "True, _charged_before(self.price, entry.usage), entry.usage", "True, 0.0, NO_USAGE", SEEDS,
    ),
    Mutant(
        "adopted requests are charged on", LEDGER,
        "        service = price(prompt, cached, output)\n",
        "        service = entry.service if entry.is_prepaid else price(prompt, cached, output)\n", SEEDS,
    ),
    Mutant(
        "what a checkpoint lacks of a running request is charged", JOINING,
        "asked, has.backend_id, charged or NO_USAGE)", "asked, has.backend_id, has.usage or NO_USAGE)", SEEDS,
    ),
    Mutant(
        "an entry of a log is taken in once", "gateway/cluster/leader/ordered_requests.py",
        "is_new = entry > self.entry", "is_new = True", SEEDS,
    ),
    Mutant(
        "a leader is told the log", REPORTS,
        "Telling(self.log, ", "Telling((), ", SEEDS,
    ),
    Mutant(
        "an end is logged while a leader decides", REPORTS,
        "        self.log.add(pool, entry)\n",
        "        if self._link.leader is None:\n            self.log.add(pool, entry)\n", SEEDS,
    ),
    Mutant(
        "a rejection of what may have been dispatched is told", FOLLOWER,
        "if own.told is not None or own.is_retold:", "if False:", LEADING,
    ),
    Mutant(
        "what a member that is given up was charged is remembered", REQUESTS,
        "        self.keep_charged({id_: self.give_up(id_, known, now)})\n",
        "        self.give_up(id_, known, now)\n", SEEDS,
    ),
    # What a connection that broke leaves behind.
    Mutant(
        "requests of a lost member are parked", REQUESTS,
        "            self._journal.tenant(known.asked.tenant_id)\n            self._scheduler.told(Parked(now, id_))\n",
        "            pass\n", directed("broken_links"),
    ),
    Mutant(
        "a request that is read after its connection's end is parked", REQUESTS,
        "if known.sender.is_away:  # its connection was lost before this was taken in", "if False:", LEADING,
    ),
    Mutant(
        "a Dispatch that did not arrive is taken back", JOINING,
        "elif has.backend_id is None and known.backend_id is not None:", "elif False:", SEEDS,
    ),
    Mutant(
        "a request that no leader has taken in asks for admission", JOINING,
        "if not has_arrived and id_ not in self._charges:", "if False:", SEEDS,
    ),
    Mutant(
        "a rejection stands", JOINING,
        "if self._decisions.repeat(sender, id_):  # what was decided stays decided", "if False:",
        directed("broken_links"),
    ),
    # What is told, taken in and set aside in slices.
    Mutant(
        "what runs is told before what waits", TELLING,
        "(self._running or self._waiting)", "(self._waiting or self._running)", TOLD,
    ),
    Mutant(
        "a leader begins when it knows what runs", LEADER,
        "there.has_told_running |= message.has_told_running", "pass", TOLD,
    ),
    Mutant(
        "a slice has an end", TELLING,
        "for _ in range(SLICE_MAX):", "for _ in range(10**6):", TOLD,
    ),
    Mutant(
        "entries of a log are told in their order", REPORTS,
        "if self._telling is not None and not self._telling.has_told_log:", "if False:", TOLD,
    ),
    Mutant(
        "nothing is said of a request before it was told", REPORTS,
        "        if self._telling is not None:\n            self._telling.arrived(own)\n            return\n", "", TOLD,
    ),
    Mutant(
        "an end is told with its request where that was not told", REPORTS,
        "return own.known_on == self._joins", "return True", TOLD,
    ),
    Mutant(
        "what was told in order asks for admission", JOINING,
        "has_arrived = has.number <= sender.joined_at",
        "has_arrived = has.number <= max(sender.request, sender.ran)", TOLD,
    ),
    Mutant(
        "a source has its part of a turn", "gateway/cluster/leader/inbox.py",
        "part = max(1, most // len(self._entries)) if self._size > most else most", "part = most",
        ("tests/unit/gateway/cluster/test_wire.py",),
    ),
    Mutant(
        "no decision is made before a lost member's requests are parked", "gateway/cluster/leader/led_pools.py",
        "if any(order.chores.is_urgent for order in self._all.values()):", "if False:", TOLD,
    ),
    Mutant(
        "a member that comes back is given up no further", "gateway/cluster/leader/ordered_requests.py",
        "self._each(lambda: waiting, self._give_up, lambda: not sender.is_here)",
        "self._each(lambda: waiting, self._give_up, lambda: True)", TOLD,
    ),
    # Members that are alone.
    Mutant(
        "what a member took back while it was alone counts", JOINING,
        "    return (has.request.preemptions, has.request.produced_tokens) != (\n"
        "        known.asked.preemptions,\n        known.asked.produced_tokens,\n    )\n",
        "    return False\n", LEADING,
    ),
    Mutant(
        "a member that is alone and told to stop serves on", MEMBER,
        "if leader is not None and self.lead.is_for_all:", "if leader is not None:", directed("stopped_alone"),
    ),
    Mutant(
        "a leader that is alone takes no checkpoints", LEADER,
        "        if self._alone is not None:\n            for journal", "        if False:\n            for journal",
        LEADING,
    ),
    Mutant(
        "a member that is alone has its part of a backend", "gateway/cluster/own_share.py",
        "loads=tuple(replace(load, share=self.part) for load in fact.loads)", "loads=fact.loads", SEEDS,
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_chosen(__doc__, MUTANTS))
