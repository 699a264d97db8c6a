"""Do the tests notice when a check of the administrator of a group is missing? Takes them out of a copy, one at a time.

    python -m tests.mutants.group_admins [--list] [TEXT ...]

Each mutant is one check of the role group-admin taken out, or one route opened to it. TEXT chooses those whose
description contains it. The exit code is 1 where a mutant survives.
"""

import sys

from tests.mutants.sources import Mutant, run_chosen

ADMIN = "tests/integration/admin"
WAYS_OUT, LIVE = f"{ADMIN}/test_group_admins.py", f"{ADMIN}/test_group_live.py"
TOKENS = f"{ADMIN}/test_admin_tokens.py"
EXPORT = f"{ADMIN}/test_admin_usage_export.py"
FILES = f"{ADMIN}/test_admin_files.py::test_roles_and_rates_hold_for_files_too"
SPENT = f"{ADMIN}/test_admin_usage_sums.py"
VIEWERS = "tests/unit/gateway/live/test_live_viewers.py"
SCOPE, COLLECTION, KEYS = (f"gateway/admin/resources/{name}.py" for name in ("group_scope", "collection", "keys"))
ROUTES, SERVER = "gateway/admin/routes.py", "gateway/admin/server.py"
RESOURCES = "gateway/admin/resources"


def ways(*names: str) -> tuple[str, ...]:
    return tuple(f"{WAYS_OUT}::{name}" for name in names) or (WAYS_OUT,)


OTHERS = ways("test_other_tenants_are_to_it_as_if_they_were_not_there")
GIVES = ways("test_it_gives_nothing_that_its_group_does_not_have")
SUMS = ways("test_budgets_of_its_tenants_sum_up_to_at_most_the_groups")
SEES = ways("test_it_sees_its_group_its_tenants_their_keys_and_their_usage_page_by_page")
KEYS_OF_OTHERS = ways("test_keys_of_others_and_of_roles_are_to_it_as_if_they_were_not_there")
BUDGETS = ways("test_it_reads_the_budgets_of_its_group_its_tenants_and_their_keys_and_no_others")
CLOSED = ways("test_every_other_path_is_closed_to_it_and_new_ones_are_until_they_say_otherwise")
NAMED = ways("test_a_name_of_its_own_that_another_group_has_is_refused_without_showing_it")


def opened(path: str, file: str, before: str) -> Mutant:
    """A route that is opened to administrators of groups; `before` stands once in its description."""
    return Mutant(f"{path} is closed", f"{RESOURCES}/{file}.py", before, f"{before} for_groups=True,", CLOSED)


MUTANTS = (
    # -- what it sees
    Mutant(
        "a tenant of another group is not there", SCOPE,
        "return caller.group is None or (isinstance(section, TenantSection) and section.group == caller.group)",
        "return True",
        OTHERS,
    ),
    Mutant(
        "another group is not there", SCOPE,
        "return caller.group in (None, entry.name)", "return True",
        (*SEES, f"{LIVE}::test_another_group_and_one_that_is_not_there_are_alike_to_an_administrator"),
    ),
    Mutant(
        "keys of another group's tenant, and of roles, are not there", SCOPE,
        "return entry is not None and self.sees_tenant(caller, entry)", "return True",
        KEYS_OF_OTHERS,
    ),
    Mutant(
        "a list has entries of its group alone", COLLECTION,
        "sees = partial(self.scope.sees, asked.caller)", "sees = lambda _entry: True",
        SEES,
    ),
    Mutant(
        "the list of keys has those of its tenants alone", KEYS,
        " and scope.sees_tenant_named(asked.caller, tenant)", "",
        SEES,
    ),
    Mutant(
        "usage and its export are of its tenants alone", f"{RESOURCES}/usage.py",
        "part if seen is None else [used for used in part if used[0].tenant in seen]", "part",
        (*SEES, EXPORT, SPENT),
    ),
    Mutant(
        "a trial is as a tenant of its group alone", f"{RESOURCES}/trials.py",
        "if not GroupScope(self.registry).sees_tenant_named(asked.caller, body.tenant):", "if False:",
        (f"{ADMIN}/test_trials.py::test_roles",),
    ),
    Mutant(
        "what is declared is shown of its group alone", f"{RESOURCES}/resource_files.py",
        "sees = partial(self._sees, asked)", "sees = lambda _entry: True",
        (FILES,),
    ),
    Mutant(
        "a tenant in the live document is of its group", "gateway/live/group_part.py",
        " if row.group == self.group}", "}",
        (LIVE,),
    ),
    Mutant(
        "a pool that no tenant of its group uses is not shown", "gateway/live/group_part.py",
        " if pool.tenants}", "}",
        (LIVE, VIEWERS),
    ),
    Mutant(
        "groups in the live document are its own", "gateway/live/group_part.py",
        "{self.group: pool.groups[self.group]} if self.group in pool.groups else {}", "pool.groups",
        (LIVE,),
    ),
    Mutant(
        "the live document of another group is not there", f"{RESOURCES}/live_page.py",
        "return entry is not None and GroupScope(self.registry).sees_group(asked.caller, entry)",
        "return entry is not None",
        (LIVE,),
    ),
    Mutant(
        "its stream ends with the group", f"{RESOURCES}/live_page.py",
        "lambda: is_allowed() and self._is_there(asked)", "is_allowed",
        (LIVE,),
    ),
    Mutant(
        "viewers of two groups get events of their own", "gateway/live/stream/audience.py",
        "return whole if self._part is None else self._part.of(whole)", "return whole",
        (VIEWERS,),
    ),
    Mutant(
        "viewers of a group leave room for others", "gateway/live/stream/feed.py",
        "return of_it < PART_VIEWERS_MAX and", "return",
        (VIEWERS,),
    ),
    Mutant(
        "it reads the budgets of its group alone", SERVER,
        'return query.model_copy(update={"group": group})', "return query",
        BUDGETS,
    ),
    Mutant(
        "it asks for the budgets of no other group", SERVER,
        "if query.group not in (None, group):", "if False:",
        BUDGETS,
    ),
    Mutant(
        "the process that leads is told its group", SERVER,
        "return url.raw_path_qs if caller.group is None else", "return url.raw_path_qs or",
        ways("test_the_leader_is_asked_for_the_budgets_of_its_group_alone"),
    ),
    # -- which paths it has
    Mutant(
        "only routes that say so are open", ROUTES,
        "return None if for_groups and caller.group", "return None if caller.group",
        CLOSED,
    ),
    Mutant(
        "metrics are closed", SERVER,
        "if (refused := refusal(caller, Role.VIEWER)) is not None:", "if False:",
        CLOSED,
    ),
    Mutant(
        "a route for groups is not answered by another process", ROUTES,
        "assert names_group or not (self.live and self.for_groups),", "assert True,",
        CLOSED,
    ),
    opened("/audit", "audit", "run=self.audit,"),
    opened("/requests", "requests", "run=self.listed,"),
    opened("the cancelling of requests", "requests", "run=self.cancel,"),
    opened("/preview", "preview", "run=self.show,"),
    opened("/what-ifs", "what_ifs", "run=self.ask,"),
    opened("the whole live document", "live_page", "run=self.document,"),
    opened("/pools", "pools", "run=self.listed,"),
    opened("/cluster", "live", "run=self.cluster,"),
    # -- what it may change
    Mutant(
        "a tenant's name begins with its group's", SCOPE,
        "if caller.group is not None and not name.startswith(", "if False and not name.startswith(",
        OTHERS,
    ),
    Mutant(
        "a name that another group has is refused by PUT", COLLECTION,
        "if entry is not None and not self.scope.sees(asked.caller, entry):\n            raise",
        "if False:\n            raise",
        NAMED,
    ),
    Mutant("it moves no tenant", SCOPE, 'if given.get("group") != caller.group:', "if False:", GIVES),
    Mutant(
        "it names no tier", SCOPE,
        'if given.get("tier", group.tier) != group.tier:', "if False:",
        ways("test_a_tier_that_is_there_and_one_that_is_not_are_alike_to_it"),
    ),
    Mutant("it sets no queue limits", SCOPE, "if getattr(after, field) != getattr(now, field):", "if False:", GIVES),
    Mutant("a limit is at most the group's", SCOPE, "value is not None and value > limit and", "False and", GIVES),
    Mutant("a budget is at most what the group has left", SCOPE, "if value > left:", "if False:", GIVES),
    Mutant(
        "budgets sum up to at most the group's", SCOPE,
        "left = budget - _sum(getattr(each, field) for each in others if each.group == after.group)", "left = budget",
        SUMS,
    ),
    Mutant(
        "a target is no tighter than the tier's", SCOPE,
        "if least is None or value < least:", "if least is None:",
        GIVES,
    ),
    Mutant(
        "a tier without targets gives none", SCOPE,
        "if least is None or value < least:", "if least is not None and value < least:",
        GIVES,
    ),
    Mutant(
        "a PATCH is judged", COLLECTION,
        "guard = self.scope.guard(asked.caller, entry.name, entry, merged(entry.body, asked.body))", "guard = None",
        GIVES,
    ),
    Mutant(
        "what is made is judged", COLLECTION,
        "self.scope.give(asked.caller, name, None, _given(asked))", "{**_given(asked), 'group': asked.caller.group}",
        GIVES,
    ),
    Mutant(
        "a PUT is judged", COLLECTION,
        "guard = self.scope.guard(asked.caller, entry.name, entry, body)", "guard = None",
        GIVES,
    ),
    Mutant(
        "a PUT leaves the group as it is", COLLECTION,
        "self.scope.kept(asked.caller, entry) | _given(asked)", "_given(asked)",
        ways("test_it_makes_tenants_and_keys_of_its_group_which_work_at_once"),
    ),
    Mutant(
        "a change is of the version that was judged", SCOPE,
        "return entry.etag if etag in (None, ANY_THERE) else etag", "return etag",
        ways("test_it_does_not_change_a_tenant_that_the_operator_has_moved_away_since_it_was_judged"),
    ),
    Mutant(
        "a tenant of the file is not set back to it", COLLECTION,
        "            check_deletes(asked.caller, entry)\n", "",
        ways("test_it_does_not_set_a_tenant_of_the_file_back_to_what_the_file_says"),
    ),
    Mutant(
        "a revoked key of the file is not set back to it", KEYS,
        "            check_deletes(asked.caller, entry)\n", "",
        ways("test_it_does_not_make_a_revoked_key_of_the_file_valid_again"),
    ),
    # -- keys
    Mutant(
        "it makes no key for a role", KEYS,
        "if asked.caller.group is not None and (new.role is not None or new.group is not None):", "if False:",
        ways("test_it_makes_no_key_for_a_role"),
    ),
    Mutant(
        "it makes no key for another group's tenant", KEYS,
        "if not self._scope.sees_tenant_named(asked.caller, new.tenant):", "if False:",
        OTHERS,
    ),
    Mutant(
        "a key of another is not changed", KEYS,
        "if entry is None or not self._scope.sees_tenant_named(asked.caller, entry.of(ApiKey).tenant):",
        "if entry is None:",
        KEYS_OF_OTHERS,
    ),
    Mutant(
        "its keys end with its group", "gateway/registry/changes.py",
        '"tenants": "tenant", "groups": "group"', '"tenants": "tenant"',
        ways("test_its_key_opens_nothing_at_the_data_port_and_ends_with_its_group"),
    ),
    Mutant(
        "a repeat returns nothing of another group", SERVER,
        "self._repeats.once(asked.caller, key", "self._repeats.once(Caller(asked.caller.name, Role.ADMIN), key",
        (TOKENS,),
    ),
    Mutant(
        "a token without a group is none", "gateway/admin/access/sign_in.py",
        "return Caller(name, role, group) if isinstance(group, str) and group else None",
        "return Caller(name, role, str(group))",
        (TOKENS,),
    ),
    # -- what its group has
    Mutant(
        "what a deleted tenant has used counts for its group", "gateway/admin/reconciler.py",
        "                    self._budgets.tenant_deleted(name)\n",
        "                    self._budgets.put_group(name, None)\n",
        ways("test_deleting_a_tenant_gives_the_group_no_budget_back"),
    ),
    Mutant(
        "so it does after a restart", "gateway/admin/reconciler.py",
        "            await self._recall_deleted_tenants()\n", "            pass\n",
        ways("test_deleting_a_tenant_gives_the_group_no_budget_back"),
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_chosen(__doc__, MUTANTS))
