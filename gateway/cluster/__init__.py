"""One fair order over many processes: one leads and runs the Schedulers, the others report facts and carry out actions.

Everything here is sans-IO: `now` is an argument in seconds of the process's own clock, messages are values. A shell
connects this package to sockets, to a store for elections and to the event loop. `wire.py` defines the messages,
`member.py` shows how a process puts the parts together.

The rules, by the numbers that the code cites. A *promise* is how long a follower may carry out the leader's actions; a
*lease* is how long the leader may decide.

Leading

1. An epoch numbers a leadership and only grows: the next epoch is one more than the highest that the store and the
   candidate know. A leader that hears of a higher epoch resigns, and stands again above that epoch.
2. A leader decides once every member of the last list has joined it, or was silent until its old promise surely ended.
   A member joins when its promise to the old leader has ended or was released.
3. A follower pings at t0; the leader answers with the rest of its lease, d. The follower carries out actions until t0 +
   0.98 d by its own clock. It drops later actions, and closes the connection.
4. A leader checks its lease before each frame. The lease counts from before its renewal was sent, less a margin. The
   store renews it, or a majority of the members does (docs/decisions/0010-a-majority-renews-the-lease.md).

The wire

5. A frame names its pool and its epoch. Each side drops frames of another epoch than the one it has joined.
6. A request's wire id is its member and a number that is never used again. A repeated submission is ignored.
7. A request of a tenant that the registry does not know waits 1 s for the registry; then it is refused.
8. A follower names the backends that it cannot reach. A dispatch there comes back as undelivered.
9. A connection is first in, first out. The facts of one turn are one frame, in their order; of each request's usages
   only the newest is sent.
10. Facts of all members share one inbox, in the order of arrival. The leader polls when the inbox is empty, or after 1
    ms. A fact that arrived before a load is processed before it.
11. A follower reports the tokens that its requests hold at each backend every 0.25 s, a request's first usage and
    changes of its prompt at once, and all usages each second.
12. A reservation grows when usage is reported; the leader does not wait for it.
13. Dispatches to a backend are numbered for each member, and the engine's plugin gets member and number.
14. A client's disconnect is one fact. It cancels a waiting request, and ends a request in flight with its usage. The
    follower ignores a dispatch that crosses it.
15. A follower answers a withdrawal: kept, once a byte was sent to the client; returned otherwise; nothing after the
    end.
16. An undelivered request goes to the head of its tenant's queue, stays prepaid, and is no evidence against the
    backend.
17. When a connection is lost, the slots and places of its requests are held until the member's promise has surely
    ended, 2 s after its last message. Then waiting requests are cancelled, running ones end as if their clients had
    disconnected, and those that may still run are external load until a measurement says less. A parent that sees a
    process end ends this wait at once.

A change of leaders

18. A member that joins reports all its requests, in slices that the leader asks for. A request that the leader believes
    in flight and the member reports as waiting was not delivered; a request that the member does not report has ended;
    a request that the leader does not know is adopted or submitted.
19. The newest checkpoint counts, by epoch and number, whether the store or a member has it.
20. A running request is adopted with its backend, reservation, usage and age. It takes its slot, whatever the limit,
    and the usage that the checkpoint counts as charged is not charged again.
21. A waiting request is reported with its age, its prepaid usage, and its hold. A hold begins anew.
22. A leader dispatches to a backend once the backend was measured after all requests were adopted. That measurement
    sets the external load at once.
23. The dead leader's last dispatches run at the members that received them; at other members, these requests wait. The
    requests of the dead process's own clients are external load until a measurement says less.
24. A deadline depends on a request's age and wait, not on the leadership. Without a leader a follower refuses a request
    at its deadline by its own clock, or after 5 s.
25. A member that reaches no leader, and may not be elected, leads itself: it adopts its own requests, and each limit is
    divided by the highest number of members in the last 60 s.

Failures

26. A follower pings every 0.25 s; silence of 1 s is a lost connection. With more than 4 MB or 1 s unsent a follower
    refuses new calls; with more than 8 MB or 2 s unsent the leader closes the connection.
27. When a call of one follower fails, the leader measures that backend now, and sends none of that follower's requests
    there. The backend is closed for all when its health fails, by the leader's measurements and the members' reports. A
    leader that alone reaches no backend hands over.
28. Processes of unequal versions do not join each other. A frame has at most 1 MiB.
"""
